//! Flags of the commands that work on trace files.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use gpucause_input::duration;
use gpucause_investigations::export;

use crate::config::source::{ConfigSource, Overrides};
use crate::flags::{MetricsArgs, WebArgs};
use crate::logging;
use crate::nodes::NodeArgs;

/// Flags of `gpucause view`.
#[derive(Debug, Clone, Args)]
pub struct ViewArgs {
    /// The trace file
    #[arg(value_name = "FILE")]
    pub db: PathBuf,
    /// Name of the node to show; required if the file has several
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Port on the loopback address, or 0 for any that is free
    #[arg(long, value_name = "PORT", default_value = "0")]
    pub port: u16,
}

/// Flags of `gpucause replay`.
#[derive(Debug, Clone, Args)]
pub struct ReplayArgs {
    /// The recording
    #[arg(long, value_name = "FILE")]
    pub db: PathBuf,
    /// Name of the node to replay; required if the recording has several
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Seconds of the recording that pass in a second, such as 10 or 0.5; rates are multiplied by this
    #[arg(long, value_name = "FACTOR", default_value = "1")]
    pub speed: Speed,
    /// Exit when the recording is over, instead of serving the last page until a signal
    #[arg(long)]
    pub exit: bool,
    /// Flags of the HTTP server.
    #[command(flatten)]
    pub web: WebArgs,
    /// Configuration file of the exporter, for the thresholds of chains
    #[arg(long = "config.file", value_name = "PATH")]
    pub config_file: Option<PathBuf>,
    /// Flags of the page of metrics.
    #[command(flatten)]
    pub metrics: MetricsArgs,
    /// Flags of the log.
    #[command(flatten)]
    pub log: logging::LogArgs,
}

impl ReplayArgs {
    /// Where the configuration comes from.
    #[must_use]
    pub fn config_source(&self) -> ConfigSource {
        let MetricsArgs { level, classic_buckets } = self.metrics;
        let overrides = Overrides { level, classic_buckets, ..Overrides::default() };
        ConfigSource { file: self.config_file.clone(), optional: false, overrides }
    }
}

/// How many seconds of a recording pass in a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed(pub f64);

/// The least and the highest speed.
const SPEEDS: (f64, f64) = (0.01, 1000.0);

impl FromStr for Speed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (least, most) = SPEEDS;
        match text.parse() {
            Ok(speed) if (least..=most).contains(&speed) => Ok(Self(speed)),
            _ => Err(format!("invalid speed {text:?}; expected a number from {least} to {most}")),
        }
    }
}

/// Flags of `gpucause merge`.
#[derive(Debug, Clone, Args)]
pub struct MergeArgs {
    /// File to write
    #[arg(short, long, value_name = "PATH")]
    pub output: PathBuf,
    /// Overwrite it when it exists
    #[arg(long)]
    pub force: bool,
    /// Trace files: those of gpucause, and Ingero's
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
}

/// Flags of nodes, which conflict with a file.
const OF_NODES: [&str; 9] = [
    "nodes",
    "nodes_file",
    "nodes_from",
    "nodes_user",
    "prometheus_password_file",
    "password_file",
    "ca_file",
    "client_cert",
    "client_key",
];

/// Flags of `gpucause query`.
#[derive(Debug, Clone, Args)]
pub struct QueryArgs {
    /// The trace file, of gpucause or Ingero
    #[arg(long, value_name = "FILE", conflicts_with_all = OF_NODES)]
    pub db: Option<PathBuf>,
    /// Flags of nodes, whose chains and metrics are queried instead of a file.
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
    #[arg(long, value_name = "PID", value_parser = crate::pid::parse)]
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
