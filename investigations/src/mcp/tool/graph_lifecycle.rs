//! CUDA graphs: what each process did with them.

use serde_json::{Value, json};

use super::Tool;
use crate::mcp::answer::{list, seconds};
use crate::mcp::arguments::Rows;
use crate::mcp::graphs::{head, process, steps};
use crate::mcp::{Shared, ToolError, statistics};

/// The tool.
pub(super) struct GraphLifecycle;

impl Tool for GraphLifecycle {
    const NAME: &str = "graph_lifecycle";
    const DESCRIPTION: &str = "CUDA graphs per process: captures, instantiations, updates, launches, destructions, with counts and times.";
    type Arguments = Rows;

    async fn answer(server: &Shared, asked: Rows) -> Result<Value, ToolError> {
        let mut found = statistics::find(&server.source).await?;
        found.calls.retain(|row| asked.includes(&row.node, row.pid, &row.comm));
        let rows: Vec<Value> = steps(&found.calls)
            .iter()
            .map(|(key, steps)| {
                let mut row = process(key, found.nodes > 1);
                for (step, (count, sum)) in steps {
                    let counted = json!({"count": count, "total_s": seconds(*sum)});
                    row.insert(step.label().into(), counted);
                }
                row.into()
            })
            .collect();
        list(head(&found, &asked, rows.is_empty()), "processes", &rows, asked.page())
    }
}
