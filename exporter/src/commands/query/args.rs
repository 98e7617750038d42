//! Flags of `gpucause query`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use gpucause_input::duration;

use crate::nodes::{FLAGS as OF_NODES, NodeArgs};

/// Tables and examples of `gpucause query`.
pub(crate) const TABLES_AND_STATUS: &str = "\
Tables of a file of gpucause record:
  events           One row per event, with names: query this first (start_ns, duration_ns, pid, comm, kind, op, reason, by_comm)
  chains           Causal chains (cause, effect, severity, victim_comm, culprit_comm, lost_seconds, sentence, fix)
  call_totals      All calls by process and op, also those without an event; wait_totals and dispatcher_time: all waits and states
  processes        Processes of all nodes; nodes, sessions, threads, stacks and more are in investigations/trace-file.md

Tables of nodes: those of a file without events, of what they know now, and failures (url, reason)

Examples:
  gpucause query --db trace.db \"SELECT cause, sentence FROM chains ORDER BY lost_seconds DESC\"
  gpucause query --db trace.db \"SELECT by_comm, sum(duration_ns) / 1e9 AS seconds FROM events WHERE kind = 'off_cpu' GROUP BY by_comm ORDER BY seconds DESC\"
  gpucause query --db trace.db \"SELECT name, sql FROM sqlite_schema\"
      All tables and their columns; also of a file of Ingero, which has others
  sudo gpucause query --nodes localhost:9400 \"SELECT comm, rank FROM processes\"

Exit status:
  0   The rows were printed
  1   Invalid statement, a limit was exceeded, or a file or node could not be read
  64  Invalid command line
  78  Invalid list of nodes, certificate or password";

/// Flags of `gpucause query`.
#[derive(Debug, Clone, Args)]
pub struct QueryArgs {
    /// The trace file, of gpucause or Ingero
    #[arg(long, value_name = "FILE", conflicts_with_all = OF_NODES)]
    pub db: Option<PathBuf>,
    /// Flags of nodes, which are queried for what they know now instead of a file.
    #[command(flatten)]
    pub nodes: NodeArgs,
    /// The statement, such as 'SELECT count(*) FROM events'; - reads it from standard input
    #[arg(value_name = "SQL")]
    pub sql: String,
    /// How the rows are printed
    #[arg(long, value_enum, default_value = "table")]
    pub format: QueryFormat,
    /// Print at most this many rows
    #[arg(long, value_name = "ROWS", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub limit: u32,
    /// Time limit, such as 30s
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    pub timeout: Duration,
}

/// How rows are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum QueryFormat {
    /// Aligned columns; long values are cut
    Table,
    /// Comma-separated values
    Csv,
    /// Tab-separated values; NULL is \N, and values have \t, \n and \\ for tab, line end and backslash
    Tsv,
    /// An object with a version, columns, rows, and whether there are more
    Json,
    /// A JSON object a row, with the columns as keys
    Jsonl,
}
