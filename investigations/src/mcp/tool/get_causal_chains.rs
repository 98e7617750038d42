//! Causal chains of the nodes or the file.

use serde_json::Value;

use super::Tool;
use crate::mcp::arguments::Rows;
use crate::mcp::chains::{find, select};
use crate::mcp::{Shared, ToolError};

/// The tool.
pub(super) struct GetCausalChains;

impl Tool for GetCausalChains {
    const NAME: &str = "get_causal_chains";
    const DESCRIPTION: &str = "Causes of GPU starvation, the worst first: cause, effect, victim, culprit, share of the effect explained, seconds that the cause took, lost seconds, a sentence and a fix. With pid or comm: the chains whose victim it is, and in delays_others those of other processes whose culprit it is. detail adds evidence and path.";
    type Arguments = Rows;

    async fn answer(server: &Shared, asked: Rows) -> Result<Value, ToolError> {
        let mut found = find(&server.source).await?;
        if found.nodes == 1 {
            found.head.remove("nodes");
        }
        select(found, &asked)
    }
}
