//! Statistics of calls and waits.

use serde_json::{Value, json};

use super::Tool;
use crate::mcp::answer::list;
use crate::mcp::arguments::Rows;
use crate::mcp::statistics::{Found, find, json_row};
use crate::mcp::{Shared, ToolError};

/// Waits listed, without and with details.
const WAITS: [usize; 2] = [6, 40];

/// The tool.
pub(super) struct GetTraceStats;

impl Tool for GetTraceStats {
    const NAME: &str = "get_trace_stats";
    const DESCRIPTION: &str = "Per process and function: calls, time, p50, p99, longest, time off the CPU; per process and reason: waits. Says where percentiles are of a sample or of buckets. Waits of workers, such as those of data loaders, are in rows (worker): of a file their own, of live nodes those of the process that feeds the GPU.";
    type Arguments = Rows;

    async fn answer(server: &Shared, asked: Rows) -> Result<Value, ToolError> {
        let found = find(&server.source).await?;
        let unknown = found.unknown(&asked);
        let Found { mut head, mut calls, mut waits, nodes, .. } = found;
        head.extend(unknown.map(|note| ("note".to_owned(), note.into())));
        let page = asked.page();
        for rows in [&mut calls, &mut waits] {
            rows.retain(|row| asked.includes(&row.node, row.pid, &row.comm));
            rows.sort_by_key(|row| std::cmp::Reverse(row.sum_ns));
        }
        let listed = WAITS[usize::from(page.detail)];
        let several = nodes > 1;
        let shown = waits.iter().take(listed).map(|row| json_row(row, "reason", several));
        head.insert("waits".into(), shown.collect());
        if waits.len() > listed {
            let left =
                json!({"rows": waits.len() - listed, "how": "ask for one pid, or with detail"});
            head.insert("waits_left_out".into(), left);
        }
        let rows: Vec<_> = calls.iter().map(|row| json_row(row, "op", several)).collect();
        list(head, "calls", &rows, page)
    }
}
