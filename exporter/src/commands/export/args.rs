//! Flags of `gpucause export`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use gpucause_input::duration;
use gpucause_investigations::export;

use crate::nodes::{FLAGS as OF_NODES, NodeArgs};

/// Flags of `gpucause export`.
#[derive(Debug, Clone, Args)]
pub struct ExportArgs {
    /// The trace file
    #[arg(long, value_name = "FILE", conflicts_with_all = OF_NODES)]
    pub db: Option<PathBuf>,
    /// Flags of nodes, whose chains are exported instead of a file.
    #[command(flatten)]
    pub nodes: NodeArgs,
    /// Format of the output
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub format: ExportFormat,
    /// File to write, or - for standard output; of parquet the folder
    #[arg(short, long, value_name = "OUT")]
    pub output: PathBuf,
    /// Overwrite files that exist, and write to a terminal
    #[arg(long)]
    pub force: bool,
    /// Leave out what ended before this time, such as 2026-01-31T07:03:12Z or seconds since the Unix epoch
    #[arg(long, value_name = "TIME", value_parser = export::timestamp)]
    pub from: Option<i64>,
    /// Leave out what began at or after this time
    #[arg(long, value_name = "TIME", value_parser = export::timestamp)]
    pub until: Option<i64>,
    /// Only this much time before the end, such as 30s or 5m
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with = "from")]
    pub since: Option<Duration>,
    /// Only this process, on every node that has it
    #[arg(long, value_name = "PID", value_parser = crate::pid_flag::parse)]
    pub pid: Option<u32>,
    /// Only events that take at least this long, such as 50us or 2ms
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = duration::parse_short)]
    pub at_least: Duration,
}

/// Formats of `gpucause export`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// A protobuf trace for ui.perfetto.dev: a track for each node, process and thread, with causal chains
    Perfetto,
    /// A folder of Parquet files by node and date, for Spark, DuckDB and ClickHouse
    Parquet,
}

impl ExportArgs {
    /// The part of the file that is exported.
    #[must_use]
    pub fn selection(&self) -> export::Selection {
        export::Selection {
            from_ns: self.from,
            until_ns: self.until,
            last: self.since,
            pid: self.pid,
            at_least_ns: u64::try_from(self.at_least.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}
