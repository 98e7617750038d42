//! `gpucause explain`: the incident report of a node.

use std::io::{self, Write as _};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use gpucause_investigations::explain::{Incident, render};
use gpucause_investigations::node;

use crate::cli::ExplainArgs;

/// Asks the node and prints the report.
///
/// # Errors
/// When the node does not answer, or standard output is gone.
pub fn run(args: &ExplainArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let answer = runtime.block_on(node::chains(&args.url))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let since = now.saturating_sub(args.since).as_secs_f64();
    let incident = Incident::of(answer.node, answer.chains, since);
    let mut report = if args.json {
        serde_json::to_string_pretty(&incident).context("the report is not JSON")?
    } else {
        render(&incident, args.per_process)
    };
    if !report.ends_with('\n') {
        report.push('\n');
    }
    io::stdout().write_all(report.as_bytes()).context("cannot print the report")
}
