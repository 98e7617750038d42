//! `gpucause explain`: the incident report of a node, of several, or of a trace file.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use gpucause_investigations::explain::{
    FleetReport, Incident, Report, html, render, render_report,
};
use gpucause_investigations::fleet::{self, Limits};
use gpucause_investigations::http::Client;
use gpucause_investigations::observation::Outcome;
use gpucause_investigations::{node, recording};
use serde::Serialize;

use crate::cli::ExplainArgs;
use crate::cli::progress::Progress;

/// Asks the nodes, or reads the file, and prints the report; returns what it says.
///
/// # Errors
/// When no node answers, the file cannot be read, or standard output is gone.
pub fn run(args: &ExplainArgs) -> anyhow::Result<Outcome> {
    if let Some(path) = &args.db {
        return of_file(path, args);
    }
    let clients = args.nodes.clients(&args.url)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(async {
        match &clients[..] {
            [client] if !args.nodes.names_several() => one(args, client).await,
            _ => several(args, &clients).await,
        }
    })
}

/// The exit status, as the help of the command documents it.
#[must_use]
pub const fn exit_status(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Found => 0,
        Outcome::NothingFound => 2,
        Outcome::NotObserved => 3,
    }
}

fn of_file(path: &Path, args: &ExplainArgs) -> anyhow::Result<Outcome> {
    let recording = recording::open(path)?;
    let events = if Progress::is_shown() { recording.event_count()? } else { 0 };
    let progress = Progress::of(events, "events");
    let report =
        Report::read(path, recording.as_ref(), &args.wanted(), &mut |events| progress.at(events))?;
    drop(progress);
    let text = || render_report(&report, args.per_process);
    hand_over(args, &report, text, || html::of_file(&report))?;
    Ok(report.outcome)
}

async fn one(args: &ExplainArgs, client: &Client) -> anyhow::Result<Outcome> {
    let answer = node::chains(client).await?;
    let incident = Incident::of_answer(answer, args.since.as_secs_f64(), here(), &args.wanted());
    let text = || render(&incident, args.per_process);
    hand_over(args, &incident, text, || html::of_incident(&incident))?;
    Ok(incident.outcome)
}

async fn several(args: &ExplainArgs, clients: &[Client]) -> anyhow::Result<Outcome> {
    let answer = fleet::chains(clients, Limits::default()).await;
    let report = FleetReport::of(answer, args.since.as_secs_f64(), here(), &args.wanted());
    hand_over(args, &report, || report.render(args.per_process), || html::of_fleet(&report))?;
    ensure!(!report.nodes.is_empty(), "none of {} nodes answered", report.failures.len());
    Ok(report.outcome)
}

fn here() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Prints or writes the report in the form that is asked for.
fn hand_over(
    args: &ExplainArgs,
    report: &impl Serialize,
    text: impl FnOnce() -> String,
    html: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    match &args.html {
        Some(path) if path.as_os_str() != "-" => write_new(path, &html()),
        Some(_) => print(html()),
        None if args.json => {
            print(serde_json::to_string_pretty(report).context("the report is not JSON")?)
        }
        None => print(text()),
    }
}

/// Writes a file that does not exist yet; on failure it is removed.
fn write_new(path: &Path, content: &str) -> anyhow::Result<()> {
    let context = || format!("cannot write {}", path.display());
    let mut file = File::create_new(path).with_context(context)?;
    let written = file.write_all(content.as_bytes());
    if written.is_err() {
        // The first error says more.
        let _ = fs::remove_file(path);
    }
    written.with_context(context)
}

fn print(mut report: String) -> anyhow::Result<()> {
    if !report.ends_with('\n') {
        report.push('\n');
    }
    io::stdout().write_all(report.as_bytes()).context("cannot print the report")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory as _;

    #[test]
    fn the_help_documents_the_exit_status_of_each_outcome() {
        let mut cli = Cli::command();
        let help = cli.find_subcommand_mut("explain").unwrap().render_long_help().to_string();
        for (outcome, text) in [
            (Outcome::Found, "There is a causal chain"),
            (Outcome::NothingFound, "There is no causal chain, and all of the time was observed"),
            (Outcome::NotObserved, "Not observed:"),
        ] {
            let line = format!("\n  {}   {text}", exit_status(outcome));
            assert!(help.contains(&line), "{line:?} is missing in {help}");
        }
    }
}
