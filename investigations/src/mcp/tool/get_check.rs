//! A check that the exporter can run on this host.

use std::sync::Arc;

use serde_json::{Value, json};

use super::Tool;
use crate::mcp::answer::{self, Page, list, object};
use crate::mcp::arguments::Nothing;
use crate::mcp::call::blocking;
use crate::mcp::{CheckLine, Shared, ToolError};

/// The tool.
pub(super) struct GetCheck;

impl Tool for GetCheck {
    const NAME: &str = "get_check";
    const DESCRIPTION: &str = "Whether the exporter can observe the host where this server runs, as `gpucause check` reports: kernel, privileges, eBPF programs, CUDA libraries, and what to do where something is missing; without what depends on flags of the exporter. It loads the programs and detaches them again, which needs root.";
    type Arguments = Nothing;

    async fn answer(server: &Shared, _: Nothing) -> Result<Value, ToolError> {
        let host = Arc::clone(&server.host);
        let report = blocking(move |_| host.check()).await?;
        let line = |own: &CheckLine| {
            json!({
                "state": own.state,
                "subject": answer::name(&own.subject),
                "detail": answer::text(&own.detail, 300),
            })
        };
        let (ok, not_ok): (Vec<_>, Vec<_>) = report.lines.iter().partition(|own| own.state == "ok");
        let rows: Vec<_> = not_ok.into_iter().map(line).collect();
        let head = json!({
            "host": answer::name(&report.host),
            "exporter_can_run": report.can_run,
            "lines_ok": ok.len(),
            "left_out": "what depends on the flags of the exporter: its configuration, ports and DCGM; `gpucause check` has them, too",
        });
        list(object(head), "not_ok", &rows, Page::LARGEST)
    }
}
