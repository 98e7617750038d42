//! Flags of `gpucause explain`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use gpucause_engine::chain::Severity;
use gpucause_input::duration;
use gpucause_investigations::chain_filter::ChainFilter;
use gpucause_investigations::export::timestamp;
use gpucause_investigations::node::NodeUrl;

use crate::nodes::NodeArgs;

/// Examples and exit status of `gpucause explain`.
pub(crate) const STATUS: &str = "\
Examples:
  sudo gpucause explain --since 5m
      What delayed the GPUs of this host in the last five minutes, as its exporter saw it; sudo, as only root reads its token
  sudo gpucause explain --pid 4242
      What delays this process, and what it delays
  gpucause explain --db trace.db
      The same of a file of gpucause record; without sudo, and also on another host

Exit status:
  0   There is a causal chain
  1   No node answered, or the file cannot be read
  2   There is no causal chain, and all of the time was observed
  3   Not observed: there is no causal chain, but for all or part of the time probes were disabled or missing,
      the exporter did not run yet, or a node did not answer; the report names that time
  4   With --fail-on: there is a causal chain of that severity or above
  64  Invalid command line
  78  Invalid list of nodes, certificate or password";

/// Flags of `gpucause explain`.
#[derive(Debug, Clone, Args)]
pub struct ExplainArgs {
    /// The node on which gpucause exporter runs, such as https://me@gpu-1:9400
    #[arg(long, value_name = "URL", default_value = "http://localhost:9400", conflicts_with_all = ["nodes", "nodes_file", "nodes_from"])]
    pub url: NodeUrl,
    /// Explain this trace file, of gpucause record or Ingero, instead of a node
    #[arg(long, value_name = "FILE", conflicts_with_all = ["url", "nodes", "nodes_file", "nodes_from", "nodes_user", "prometheus_password_file", "password_file", "ca_file", "client_cert", "client_key"])]
    pub db: Option<PathBuf>,
    /// Flags of several nodes, and of access to nodes.
    #[command(flatten)]
    pub nodes: NodeArgs,
    /// Only what was seen in this time, such as 5m or 1h30m; of a file, in this time before its end [default: 1h; all of a file]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub since: Option<Duration>,
    /// Only chains in which this process is the victim, and after those the ones that it is only the culprit of; of a file also only rows of it and its culprits [default: all; of a file of record --pid its processes]
    #[arg(long, value_name = "PID", value_parser = crate::pid_flag::parse)]
    pub pid: Option<u32>,
    /// Only chains that reached this severity in the asked period: low, medium, high or critical
    #[arg(long, value_name = "SEVERITY", value_parser = severity)]
    pub severity: Option<Severity>,
    /// Only what was seen from this time on, such as 2026-07-01T12:00:00Z, by the clock of the node
    #[arg(long, value_name = "TIME", value_parser = timestamp, conflicts_with = "since")]
    pub from: Option<i64>,
    /// Only what began until this time; --since is the time before it
    #[arg(long, value_name = "TIME", value_parser = timestamp)]
    pub until: Option<i64>,
    /// Show which rank of a hanging job has not entered which collective, and what it does instead. JOB is the job's number in Slurm or the name of its processes. The report is about now, and excludes --since, --pid and other selections
    #[arg(long, value_name = "JOB", conflicts_with_all = ["db", "since", "pid", "severity", "from", "until", "per_process", "html", "follow", "fail_on"])]
    pub job: Option<String>,
    /// Add a table of the time that chains took from each process
    #[arg(long)]
    pub per_process: bool,
    /// How the report is printed
    #[arg(long, value_enum, default_value = "text", conflicts_with_all = ["json", "html"])]
    pub format: ReportFormat,
    /// Print JSON: as --format json
    #[arg(long)]
    pub json: bool,
    /// Write the report as one HTML file for a ticket, or - for standard output, instead of printing text
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub html: Option<PathBuf>,
    /// Overwrite the file of --html
    #[arg(long, requires = "html")]
    pub force: bool,
    /// Print chains as they appear or become more severe, until Ctrl-C; those of --since first. As text, md, or a line of json each
    #[arg(long, conflicts_with_all = ["db", "html", "until", "per_process"])]
    pub follow: bool,
    /// End with exit status 4 if a selected chain reached this severity in the asked period: low, medium, high or critical; with --follow as soon as there is one
    #[arg(long, value_name = "SEVERITY", value_parser = severity)]
    pub fail_on: Option<Severity>,
}

/// How a report is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// Text for a terminal
    Text,
    /// Markdown, for a ticket or a chat
    Md,
    /// An object with all numbers and a version
    Json,
    /// One HTML file without anything beside it
    Html,
}

impl ExplainArgs {
    /// How the report is printed.
    #[must_use]
    pub fn format(&self) -> ReportFormat {
        match (self.json, &self.html) {
            (true, _) => ReportFormat::Json,
            (false, Some(_)) => ReportFormat::Html,
            (false, None) => self.format,
        }
    }

    /// Returns true if this severity, the worst of the chains, is one of `--fail-on`.
    #[must_use]
    pub fn fails(&self, worst: Option<Severity>) -> bool {
        self.fail_on.is_some_and(|least| worst.is_some_and(|worst| worst >= least))
    }

    /// The time before now, or before `--until`, that is reported of a node, in seconds.
    #[must_use]
    pub fn since_seconds(&self) -> f64 {
        const DEFAULT: Duration = Duration::from_secs(3600);
        self.since.unwrap_or(DEFAULT).as_secs_f64()
    }

    /// The selected chains.
    #[must_use]
    pub fn wanted(&self) -> ChainFilter {
        let seconds = |ns: i64| ns as f64 / 1e9;
        ChainFilter {
            pids: self.pid.into_iter().collect(),
            severity: self.severity,
            from: self.from.map(seconds),
            until: self.until.map(seconds),
        }
    }
}

fn severity(text: &str) -> Result<Severity, String> {
    let named = Severity::ALL.iter().find(|severity| severity.label() == text);
    named
        .copied()
        .ok_or_else(|| format!("invalid severity {text:?}; expected low, medium, high or critical"))
}
