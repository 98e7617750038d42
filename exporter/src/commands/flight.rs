//! `gpucause flight`: all nodes write a flight record at once, and these become one trace file.

use std::io::{self, Write as _};
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;
use gpucause_http::client::Client;
use gpucause_investigations::collectives::HOW_JOBS_ARE_NAMED;
use gpucause_investigations::fleet::{self, FetchedFlights, Limits};
use gpucause_investigations::node::NodeUrl;
use gpucause_trace::merge::{MergeError, Merged, Warning};
use gpucause_trace::trace::WriteError;
use gpucause_trace::unfinished_file::UnfinishedFile;

use super::explain::ranks_of;
use super::merge::merged;
use crate::failure::Advice;
use crate::interrupt;
use crate::nodes::{NodeArgs, block_on, report_failures};

/// Examples and exit status of `gpucause flight`.
pub(crate) const STATUS: &str = "\
Each node needs an exporter with --flight-recorder.dir. Its record also stays on the node.

Examples:
  sudo gpucause flight -o now.db
      The last seconds of this host; sudo, as only root reads its exporter's token
  gpucause flight --job 4711 --nodes-from prometheus:http://localhost:9090 --nodes-user me --ca-file ca.crt -o job.db
      Those of all nodes that have ranks of a job, at the same time

Exit status:
  0   The records of all nodes are in the file
  1   A node has no record, which is reported; those of the others are in the file
  64  Invalid command line
  78  Invalid list of nodes, certificate or password";

/// Flags of `gpucause flight`.
#[derive(Debug, Clone, Args)]
pub struct FlightOfNodesArgs {
    /// The node on which gpucause exporter runs, such as https://me@gpu-1:9400
    #[arg(long, value_name = "URL", default_value = "http://localhost:9400", conflicts_with_all = ["nodes", "nodes_file", "nodes_from"])]
    pub url: NodeUrl,
    /// Flags of several nodes, and of access to nodes.
    #[command(flatten)]
    pub nodes: NodeArgs,
    /// Only nodes that have ranks of this job; by its number in Slurm, or the name of its processes
    #[arg(long, value_name = "JOB")]
    pub job: Option<String>,
    /// Trace file to write
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Overwrite it when it exists
    #[arg(long)]
    pub force: bool,
}

/// Has the nodes write their records and merges these.
///
/// # Errors
/// When the file cannot be written, or a node has no record; those of the others are in the file then.
pub fn run(args: &FlightOfNodesArgs) -> anyhow::Result<()> {
    interrupt::remove_unfinished_files()?;
    // Before any node writes.
    let writable = UnfinishedFile::create(&args.output, args.force);
    let writable = writable.with_context(|| format!("cannot create {}", args.output.display()));
    drop(writable.context(Advice("name another file, or add --force to overwrite it"))?);
    let clients = args.nodes.clients(&args.url)?;
    let mut fetched = block_on(fetched(args, &clients))??;
    if let Some(merged) = merge(args, &mut fetched)? {
        say(args, &fetched, &merged)?;
    }
    report_failures(fetched.flights.len(), &fetched.failures)
}

async fn fetched(args: &FlightOfNodesArgs, clients: &[Client]) -> anyhow::Result<FetchedFlights> {
    let limits = Limits::default();
    let Some(job) = &args.job else {
        return Ok(fleet::flights(clients, limits, &args.output).await);
    };
    let (ranks, mut failures) = ranks_of(job, clients).await;
    let has_rank = |client: &&Client| ranks.is_on(&client.address().to_string());
    let of_job: Vec<_> = clients.iter().filter(has_rank).cloned().collect();
    let answered = clients.len() - failures.len();
    if of_job.is_empty() && answered > 0 {
        let others = report_failures(answered, &failures).err();
        let others = others.map(|error| format!(", and {error}")).unwrap_or_default();
        bail!("no node that answered has a rank of job {job}{others} - {HOW_JOBS_ARE_NAMED}");
    }
    let mut fetched = fleet::flights(&of_job, limits, &args.output).await;
    failures.append(&mut fetched.failures);
    Ok(FetchedFlights { failures, ..fetched })
}

/// Merges the records that can be read; `None` when there are none.
fn merge(args: &FlightOfNodesArgs, fetched: &mut FetchedFlights) -> anyhow::Result<Option<Merged>> {
    let all = |fetched: &mut FetchedFlights| {
        let inputs = fetched.open();
        let some = !inputs.is_empty();
        some.then(|| merged(&inputs, &args.output, args.force)).transpose()
    };
    Ok(match all(fetched) {
        // Again without those that cannot be merged: no node keeps the others' records out.
        Err(MergeError::Read(_) | MergeError::Write(WriteError::Write(..))) => {
            fetched.leave_out_damaged(&args.output);
            all(fetched)?
        }
        other => other?,
    })
}

fn say(args: &FlightOfNodesArgs, fetched: &FetchedFlights, merged: &Merged) -> anyhow::Result<()> {
    for warning in &merged.warnings {
        // The differences of clocks are in the file, and exports correct them.
        if !matches!(warning, Warning::Skew { .. }) {
            tracing::warn!("{warning}");
        }
    }
    let mut text = String::new();
    for flight in &fetched.flights {
        let clock = flight.clock.map_or_else(
            || "its clock could not be measured".to_owned(),
            |clock| {
                let (ahead, error) = (clock.ahead_seconds * 1e3, clock.uncertainty_seconds * 1e3);
                format!("its clock is {ahead:+.3} ms from this host's (+- {error:.3} ms)")
            },
        );
        text.push_str(&format!("{}: {clock}\n", flight.url));
    }
    let (nodes, path) = (fetched.flights.len(), args.output.display());
    let plural = if nodes == 1 { "" } else { "s" };
    text.push_str(&format!(
        "{} events of {nodes} node{plural} in {path}; next: gpucause explain --db {path}, or gpucause export --db {path} --format perfetto \
         -o {path}.pftrace\n",
        merged.events
    ));
    io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")
}
