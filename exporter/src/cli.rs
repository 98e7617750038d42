//! The command line.

use crate::version;
use clap::{Parser, Subcommand};
use clap_complete::Shell;
use std::path::PathBuf;

use crate::commands::check::{self, CheckArgs};
use crate::commands::demo::DemoArgs;
use crate::commands::explain::{self, ExplainArgs};
use crate::commands::export::ExportArgs;
use crate::commands::flight::{self, FlightOfNodesArgs};
use crate::commands::mcp::McpArgs;
use crate::commands::merge::MergeArgs;
use crate::commands::query::{self, QueryArgs};
use crate::commands::record::{self, RecordArgs};
use crate::commands::replay::{ReplayArgs, ViewArgs};
use crate::commands::top::TopArgs;
use crate::flags::ExporterArgs;

/// Signals, files and exit status of the exporter.
const SIGNALS_AND_STATUS: &str = "\
Signals:
  SIGTERM, SIGINT  Detach all probes and exit
  SIGHUP           Reload the configuration file
  SIGUSR1          Detach all probes at once; the next SIGUSR1 attaches them again
  SIGUSR2          Write the flight recorder's events to a trace file

Files:
  /run/gpucause/PORT.token
      Created at start and removed at the end, in the directory RUNTIME_DIRECTORY where that is set: the token with which
      programs of this host read causal chains (Authorization: Bearer TOKEN). explain, query, export, flight, check and mcp read it.

Exit status:
  0   Ended by a signal, or --config.check found the configuration valid
  1   Runtime error
  64  Invalid command line
  78  Invalid configuration, or invalid value of a --metrics flag";

/// The command line of the user.
#[derive(Debug, Parser)]
#[command(name = "gpucause", version = version::LONG, about, arg_required_else_help = true)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Observe CUDA processes on this host and serve metrics to Prometheus
    #[command(after_long_help = SIGNALS_AND_STATUS)]
    Exporter(ExporterArgs),
    /// Check whether the exporter can run on this host and whether it does, and show how to fix what failed
    #[command(visible_alias = "doctor", after_long_help = check::STATUS)]
    Check(Box<CheckArgs>),
    /// Explain why a GPU was not fed: the causal chains of a node, with the root cause, a timeline and a fix
    #[command(after_long_help = explain::STATUS)]
    Explain(ExplainArgs),
    /// Record single events and accounts of the CUDA processes on this host to a trace file
    #[command(after_long_help = record::STATUS)]
    Record(RecordArgs),
    /// Have nodes write the last seconds to flight records, all at once, and merge these into one trace file
    #[command(after_long_help = flight::STATUS)]
    Flight(FlightOfNodesArgs),
    /// Merge several trace files, of one node or many, into one
    Merge(MergeArgs),
    /// Run read-only SQL on a trace file, or on chains and metrics of nodes
    #[command(after_long_help = query::TABLES_AND_STATUS)]
    Query(QueryArgs),
    /// Write a trace file, or the chains of nodes, for Perfetto or as Parquet files
    Export(ExportArgs),
    /// Run the exporter and top together; without a CUDA process here, on a stand-in workload under real CPU contention
    Demo(DemoArgs),
    /// Show live what each CUDA process does to feed its GPU, and who delays it
    Top(TopArgs),
    /// Serve a recording as the node served it, so that rules, alerts and dashboards can be tried on it
    Replay(ReplayArgs),
    /// Show a trace file as a page in a browser of this host: processes, causal chains and a timeline
    View(ViewArgs),
    /// Answer assistants over the Model Context Protocol: why a GPU was not fed, from nodes that run the exporter
    Mcp(McpArgs),
    /// Print a shell completion script
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Print the manual page, or write one for each command
    Man {
        /// Folder to write the pages to
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

impl Command {
    /// Returns true if it runs as a service: its errors are lines of its log.
    #[must_use]
    pub const fn is_daemon(&self) -> bool {
        match self {
            Self::Exporter(_) => true,
            Self::Mcp(args) => args.http.is_some(),
            _ => false,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
