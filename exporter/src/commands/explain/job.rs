//! `gpucause explain --job`: what keeps the ranks of a job that hangs waiting.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use gpucause_http::client::Client;
use gpucause_investigations::collectives::{JobReport, Reading};
use gpucause_investigations::fleet::{self, Limits, NodeAnswer, NodeFailure};
use gpucause_investigations::json::Versioned;
use gpucause_investigations::node::AskError;
use gpucause_trace::trace::Trace;
use tokio::time::{Instant, sleep};

use super::{ExplainArgs, ReportFormat, exit_status, print};
use crate::failure::UsageError;

/// Between the readings.
const BETWEEN: Duration = Duration::from_secs(2);

/// Reads what ranks of a job the nodes have.
pub(in crate::commands) async fn read(
    job: &str,
    clients: &[Client],
) -> (Reading, Vec<NodeFailure>) {
    let mut reading = Reading::of(job);
    let mut add = |node: &NodeAnswer, trace: Trace| {
        let url = &node.url;
        let added = reading.add(&url.to_string(), &trace);
        added.map_err(|error| AskError::BadSnapshot(url.clone(), error.to_string()))
    };
    // Clocks are not compared.
    let limits = Limits { samples: 1, ..Limits::default() };
    let failures = fleet::snapshots(clients, limits, &mut add).await.failures;
    (reading, failures)
}

/// Reads the nodes twice and prints the report; returns the exit status.
pub(super) async fn run(args: &ExplainArgs, clients: &[Client]) -> anyhow::Result<u8> {
    let job = args.job.as_deref().unwrap_or_default();
    let format = args.format();
    if !matches!(format, ReportFormat::Text | ReportFormat::Json) {
        return Err(UsageError("--job prints text or json - leave the format out".into()).into());
    }
    let begin = Instant::now();
    let (before, _) = read(job, clients).await;
    sleep(BETWEEN).await;
    let between = begin.elapsed();
    let (now, failures) = read(job, clients).await;
    let report = JobReport::of(&before, now, between.as_secs_f64(), &failures);
    let text = if format == ReportFormat::Json {
        serde_json::to_string_pretty(&Versioned::new(&report)).context("the report is not JSON")?
    } else {
        report.render()
    };
    print(format, text)?;
    ensure!(
        failures.len() < clients.len(),
        "none of {} nodes answered - the report says why",
        failures.len()
    );
    Ok(exit_status(report.outcome))
}
