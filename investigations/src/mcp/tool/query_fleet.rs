//! Causal chains of all nodes, with the nodes and their failures.

use serde_json::Value;

use super::Tool;
use crate::mcp::arguments::Rows;
use crate::mcp::chains::{find, select};
use crate::mcp::{Shared, ToolError};

/// The tool.
pub(super) struct QueryFleet;

impl Tool for QueryFleet {
    const NAME: &str = "query_fleet";
    const DESCRIPTION: &str = "The chains of all nodes of this server, the worst first, with the nodes that did not answer and why, and clocks that differ.";
    type Arguments = Rows;

    async fn answer(server: &Shared, asked: Rows) -> Result<Value, ToolError> {
        select(find(&server.source).await?, &asked)
    }
}
