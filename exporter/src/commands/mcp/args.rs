//! Flags of `gpucause mcp`.

use std::path::PathBuf;

use clap::Args;
use gpucause_http::server::ListenAddress;
use gpucause_investigations::node::NodeUrl;

use crate::logging;
use crate::nodes::NodeArgs;
use crate::store_url::{ClickHouseLogin, ClickHouseUrl, PrometheusUrl};

/// Flags of `gpucause mcp`.
#[derive(Debug, Clone, Args)]
pub struct McpArgs {
    /// The node on which gpucause exporter runs, such as https://me@gpu-1:9400
    #[arg(long, value_name = "URL", default_value = "http://localhost:9400", conflicts_with_all = ["nodes", "nodes_file", "nodes_from"])]
    pub url: NodeUrl,
    /// Answer from this trace file instead of a node
    #[arg(long, value_name = "FILE", conflicts_with_all = ["url", "nodes", "nodes_file", "nodes_from", "nodes_user", "password_file", "ca_file", "client_cert", "client_key"])]
    pub db: Option<PathBuf>,
    /// Flags of several nodes, and of access to nodes.
    #[command(flatten)]
    pub nodes: NodeArgs,
    /// Also answer which ranks stand off their job, and what lost and idle GPU time costs, by the Prometheus at this address that has the rules, such as http://prometheus:9090
    #[arg(long, value_name = "URL")]
    pub prometheus: Option<PrometheusUrl>,
    /// Also answer which causal chains nodes had in the past, by the ClickHouse at this address that has the tables of clickhouse.sql, such as http://clickhouse:8123 or https://me@clickhouse:8443/DATABASE
    #[arg(long, value_name = "URL")]
    pub clickhouse: Option<ClickHouseUrl>,
    /// Flags of the login at a ClickHouse.
    #[command(flatten)]
    pub clickhouse_login: ClickHouseLogin,
    /// Serve over HTTP at this address, such as 127.0.0.1:9402, rather than over standard input and output; clients must authenticate with a token; for access from other hosts, a token and TLS are required
    #[arg(long, value_name = "ADDRESS")]
    pub http: Option<ListenAddress>,
    /// File whose first line is the token of clients over HTTP [default: GPUCAUSE_MCP_TOKEN in the environment, or else a new token in /run/gpucause/PORT.token or the file that the log names]
    #[arg(long, value_name = "PATH", requires = "http")]
    pub token_file: Option<PathBuf>,
    /// Host name that clients over HTTP may use, beside localhost, addresses and the host's own name; may be repeated
    #[arg(long = "allow-host", value_name = "NAME", requires = "http")]
    pub allow_hosts: Vec<String>,
    /// File with TLS and client certificates, in the format of Prometheus's exporter-toolkit
    #[arg(long = "web.config.file", value_name = "PATH", requires = "http")]
    pub web_config: Option<PathBuf>,
    /// Allow assistants to start demos, which put load on this host for a minute at most
    #[arg(long)]
    pub allow_demo: bool,
    /// Flags of the log.
    #[command(flatten)]
    pub log: logging::LogArgs,
}
