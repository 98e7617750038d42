//! `gpucause explain`: the incident report of a node, of several, or of a trace file.

mod args;
mod colour;
mod follow;
mod job;

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use gpucause_engine::chain::Severity;
use gpucause_http::client::Client;
use gpucause_investigations::explain::{REPORT_VERSION, Report, html, markdown, render_report};
use gpucause_investigations::export::{end_ns, of_pid};
use gpucause_investigations::fleet::{self, Limits};
use gpucause_investigations::json::Versioned;
use gpucause_investigations::observation::Outcome;
use gpucause_investigations::{any_format, node};
use gpucause_trace::unfinished_file::UnfinishedFile;

use self::colour::coloured;
pub(super) use self::job::read as ranks_of;
use crate::failure::{Advice, UsageError};
use crate::progress::Progress;

pub(crate) use args::STATUS;
pub use args::{ExplainArgs, ReportFormat};

/// Exit status when there is a chain of the severity of `--fail-on`.
const TOO_SEVERE: u8 = 4;

/// Asks the nodes, or reads the file, and prints the report; returns the exit status.
///
/// # Errors
/// When no node answers, the file cannot be read, or standard output is gone.
pub fn run(args: &ExplainArgs) -> anyhow::Result<u8> {
    if args.follow && args.format() == ReportFormat::Html {
        let text =
            "--follow prints text, md or json, and no html - leave --follow or the format out";
        return Err(UsageError(text.to_owned()).into());
    }
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
            _ if args.job.is_some() => job::run(args, &clients).await,
            _ if args.follow => follow::run(args, &clients).await,
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

fn status(args: &ExplainArgs, report: &Report) -> u8 {
    let worst = report.nodes.iter().filter_map(|node| node.incident.severity()).max();
    status_of(args, report.outcome, worst)
}

/// The exit status with `--fail-on`, which applies to the worst of the selected chains.
fn status_of(args: &ExplainArgs, outcome: Outcome, worst: Option<Severity>) -> u8 {
    if args.fails(worst) { TOO_SEVERE } else { exit_status(outcome) }
}

fn of_file(path: &Path, args: &ExplainArgs) -> anyhow::Result<u8> {
    let recording = any_format::open(path)?;
    let events = if Progress::is_shown() { recording.event_count()? } else { 0 };
    let mut wanted = args.wanted();
    if let Some(since) = args.since {
        let until = match wanted.until {
            Some(until) => until,
            None => end_ns(recording.as_ref())? as f64 / 1e9,
        };
        wanted.from = Some(until - since.as_secs_f64());
    }
    let progress = Progress::of(events, "events");
    let report =
        Report::read(path, recording.as_ref(), &wanted, &mut |events| progress.at(events))?;
    drop(progress);
    if let Some(pid) = args.pid
        && report.outcome != Outcome::Found
    {
        // That no chain is of a process that is not there would mean nothing.
        of_pid(recording.as_ref(), pid)?;
    }
    hand_over(args, &report)?;
    Ok(status(args, &report))
}

async fn one(args: &ExplainArgs, client: &Client) -> anyhow::Result<u8> {
    let answer = node::chains(client).await?;
    let report = Report::of_node(client.address(), answer, asked(args), &args.wanted());
    hand_over(args, &report)?;
    Ok(status(args, &report))
}

async fn several(args: &ExplainArgs, clients: &[Client]) -> anyhow::Result<u8> {
    let answer = fleet::chains(clients, Limits::default()).await;
    let report = Report::of_nodes(answer, asked(args), &args.wanted());
    hand_over(args, &report)?;
    ensure!(
        !report.nodes.is_empty(),
        "none of {} nodes answered - the report says why",
        report.failures.len()
    );
    Ok(status(args, &report))
}

/// The time that is asked for, and this host's clock, in seconds.
fn asked(args: &ExplainArgs) -> (f64, f64) {
    (args.since_seconds(), here())
}

fn here() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Prints or writes the report in the form that is asked for.
fn hand_over(args: &ExplainArgs, report: &Report) -> anyhow::Result<()> {
    if let Some(path) = args.html.as_deref().filter(|path| path.as_os_str() != "-") {
        write_file(path, &html::of(report), args.force)?;
        // Ignored: the file is complete.
        let _ = writeln!(io::stderr(), "wrote {}", path.display());
        return Ok(());
    }
    let report = match args.format() {
        ReportFormat::Text => render_report(report, args.per_process),
        ReportFormat::Md => markdown::of(report),
        ReportFormat::Html => html::of(report),
        ReportFormat::Json => serde_json::to_string_pretty(&Versioned::of(REPORT_VERSION, report))
            .context("the report is not JSON")?,
    };
    print(args.format(), report)
}

/// Writes a file, which has its name once it is complete.
fn write_file(path: &Path, content: &str, overwrite: bool) -> anyhow::Result<()> {
    let write = || {
        let file = UnfinishedFile::create(path, overwrite)?;
        fs::write(file.hidden(), content)?;
        file.publish()
    };
    let written = write();
    let exists = matches!(&written, Err(error) if error.kind() == io::ErrorKind::AlreadyExists);
    let written = written.with_context(|| format!("cannot write {}", path.display()));
    if exists {
        return written.context(Advice("name another file, or add --force to overwrite it"));
    }
    written
}

/// Prints a report; text has colours on a terminal.
fn print(format: ReportFormat, mut report: String) -> anyhow::Result<()> {
    if !report.ends_with('\n') {
        report.push('\n');
    }
    let written = if format == ReportFormat::Text {
        write(&mut anstream::stdout().lock(), &coloured(&report))
    } else {
        write(&mut io::stdout().lock(), &report)
    };
    match written {
        // The reader has ended, such as head; the exit status is still that of the report.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot print the report"),
    }
}

fn write(out: &mut impl io::Write, report: &str) -> io::Result<()> {
    out.write_all(report.as_bytes())?;
    out.flush()
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
        let line = format!("\n  {TOO_SEVERE}   With --fail-on:");
        assert!(help.contains(&line), "{line:?} is missing in {help}");
    }
}
