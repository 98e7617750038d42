//! Flags of the commands that ask nodes, or a trace file, what happened.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use gpucause_engine::chain::Severity;
use gpucause_investigations::explain::ChainFilter;
use gpucause_investigations::export::timestamp;
use gpucause_investigations::node::NodeUrl;

use crate::nodes::NodeArgs;
use crate::server::ListenAddress;
use crate::{duration, logging};

/// What the exit status of `gpucause explain` tells.
pub(super) const EXPLAIN_STATUS: &str = "\
Exit status:
  0   There is a causal chain
  1   No node answered, or the file cannot be read
  2   All of the time was observed, and there is no causal chain
  3   Not observed: there is no causal chain, but probes were disabled or missing, the exporter did not run
      yet, or a node did not answer, for all of the time or a part of it, which the report names
  64  The command line is wrong
  78  What says how nodes are asked is wrong: a list of nodes, a certificate, a password";

/// Flags of `gpucause explain`.
#[derive(Debug, Clone, Args)]
pub struct ExplainArgs {
    /// The node, where gpucause exporter runs, such as https://me@gpu-1:9400; a password in it can be seen by other users of this host
    #[arg(long, value_name = "URL", default_value = "http://localhost:9400", conflicts_with_all = ["nodes", "nodes_file"])]
    pub url: NodeUrl,
    /// Explain this trace file, such as one of Ingero, and ask no node
    #[arg(long, value_name = "FILE", conflicts_with_all = ["url", "nodes", "nodes_file", "password_file", "ca_file", "client_cert", "client_key", "since"])]
    pub db: Option<PathBuf>,
    /// Flags that name several nodes, and say how nodes are asked.
    #[command(flatten)]
    pub nodes: NodeArgs,
    /// Only what was seen in this time, such as 5m or 1h30m
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = duration::parse)]
    pub since: Duration,
    /// Only chains in which this process is the victim or the culprit
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    /// Only chains that are at least so severe: low, medium, high or critical
    #[arg(long, value_name = "SEVERITY", value_parser = severity)]
    pub severity: Option<Severity>,
    /// Only what was seen from this moment on, such as 2026-07-01T12:00:00Z, by the clock of the node
    #[arg(long, value_name = "MOMENT", value_parser = timestamp, conflicts_with = "since")]
    pub from: Option<i64>,
    /// Only what began until this moment; --since is the time before it
    #[arg(long, value_name = "MOMENT", value_parser = timestamp)]
    pub until: Option<i64>,
    /// Add a table of what chains took of each process's time
    #[arg(long)]
    pub per_process: bool,
    /// Print JSON, with all numbers
    #[arg(long)]
    pub json: bool,
}

impl ExplainArgs {
    /// The chains that are asked for.
    #[must_use]
    pub fn wanted(&self) -> ChainFilter {
        let seconds = |ns: i64| ns as f64 / 1e9;
        ChainFilter {
            pid: self.pid,
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
        .ok_or_else(|| format!("{text:?} is no severity; write low, medium, high or critical"))
}

/// Flags of `gpucause mcp`.
#[derive(Debug, Clone, Args)]
pub struct McpArgs {
    /// The node, where gpucause exporter runs, such as https://me@gpu-1:9400; a password in it can be seen by other users of this host
    #[arg(long, value_name = "URL", default_value = "http://localhost:9400", conflicts_with_all = ["nodes", "nodes_file"])]
    pub url: NodeUrl,
    /// Answer from this trace file, and ask no node
    #[arg(long, value_name = "FILE", conflicts_with_all = ["url", "nodes", "nodes_file", "password_file", "ca_file", "client_cert", "client_key"])]
    pub db: Option<PathBuf>,
    /// Flags that name several nodes, and say how nodes are asked.
    #[command(flatten)]
    pub nodes: NodeArgs,
    /// Serve over HTTP at this address, such as 127.0.0.1:9402, rather than over standard input and output; clients must show a token; for other hosts one must be given, and TLS is needed
    #[arg(long, value_name = "ADDRESS")]
    pub http: Option<ListenAddress>,
    /// File whose first line is the token that clients over HTTP must show; without it GPUCAUSE_MCP_TOKEN in the environment is taken, and without that one is made, in /run/gpucause/PORT.token or the file that the log names
    #[arg(long, value_name = "PATH", requires = "http")]
    pub token_file: Option<PathBuf>,
    /// Name under which clients may ask over HTTP, beside localhost, addresses and the host's own name; may be repeated
    #[arg(long = "allow-host", value_name = "NAME", requires = "http")]
    pub allow_hosts: Vec<String>,
    /// File with TLS and client certificates, in the format of Prometheus's exporter-toolkit
    #[arg(long = "web.config.file", value_name = "PATH", requires = "http")]
    pub web_config: Option<PathBuf>,
    /// Let assistants start demonstrations, which put a load on this host for a minute at most
    #[arg(long)]
    pub allow_demo: bool,
    /// Flags of the log.
    #[command(flatten)]
    pub log: logging::LogArgs,
}
