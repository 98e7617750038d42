//! `gpucause explain`: the incident report of a node, or of a trace file.

use std::io::{self, Write as _};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use gpucause_investigations::explain::{Incident, Report, render, render_report};
use gpucause_investigations::http::{Client, Login};
use gpucause_investigations::{node, recording};

use crate::cli::ExplainArgs;

/// Where a password may be, which no other user can see there.
const PASSWORD: &str = "GPUCAUSE_PASSWORD";
const HINT: &str =
    "write it to a file and name that with --password-file, or put it into GPUCAUSE_PASSWORD";

fn client(args: &ExplainArgs) -> anyhow::Result<Client> {
    let address = args.url.address();
    let client = Client::new(address.clone(), args.ca_file.as_deref())?;
    let inherited = std::env::var(PASSWORD).ok();
    Ok(match Login::of(address, args.password_file.as_deref(), inherited, HINT)? {
        Some(login) => client.with_login(&login)?,
        None => client,
    })
}

/// Asks the node, or reads the file, and prints the report.
///
/// # Errors
/// When the node does not answer, the file cannot be read, or standard output is gone.
pub fn run(args: &ExplainArgs) -> anyhow::Result<()> {
    let mut report = match &args.db {
        Some(path) => of_file(path, args)?,
        None => of_node(args)?,
    };
    if !report.ends_with('\n') {
        report.push('\n');
    }
    io::stdout().write_all(report.as_bytes()).context("cannot print the report")
}

fn of_file(path: &Path, args: &ExplainArgs) -> anyhow::Result<String> {
    let recording = recording::open(path)?;
    let report = Report::of(path, recording.as_ref())?;
    if args.json {
        return serde_json::to_string_pretty(&report).context("the report is not JSON");
    }
    Ok(render_report(&report, args.per_process))
}

fn of_node(args: &ExplainArgs) -> anyhow::Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let answer = runtime.block_on(node::chains(&client(args)?))?;
    let here = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let since = answer.now.unwrap_or_else(here) - args.since.as_secs_f64();
    let watched_since = answer.watched_since;
    let incident = Incident { watched_since, ..Incident::of(answer.node, answer.chains, since) };
    if args.json {
        return serde_json::to_string_pretty(&incident).context("the report is not JSON");
    }
    Ok(render(&incident, args.per_process))
}
