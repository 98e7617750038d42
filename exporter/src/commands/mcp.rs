//! `gpucause mcp`: chains of nodes, and checks of this host, for assistants.

mod args;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use gpucause_http::token::{Token, TokenError};
use gpucause_http::token_file::{TokenFile, TokenFileError};
use gpucause_http::web_config::LiveWebConfig;
use gpucause_investigations::any_format;
use gpucause_investigations::mcp::http::Access;
use gpucause_investigations::mcp::{
    Assistant, CheckLine, CheckReport, DemoReport, Host, Scenario as Shown, Source, SqlOfFile,
    Stores, http,
};
use gpucause_investigations::prometheus::Prometheus;
use gpucause_observe::host_name::node_name;

use crate::commands::check::Report;
use crate::commands::demo;
use crate::commands::demo::scenario::Scenario;
use crate::shutdown::shutdown_signal;
use clap::ValueEnum as _;

pub use args::McpArgs;

/// The environment variable of the token, which other users cannot read.
const TOKEN: &str = "GPUCAUSE_MCP_TOKEN";
/// Maximum bytes of a token file.
const MAX_TOKEN_FILE: u64 = 4096;
/// Time for responses in progress when the server stops.
const DRAIN: Duration = Duration::from_secs(1);

/// Why the server cannot authenticate clients.
#[derive(Debug, thiserror::Error)]
pub enum McpError {
    /// The token file is unusable.
    #[error("cannot read the token from {path}: {reason}", path = .path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The environment variable is invalid.
    #[error("GPUCAUSE_MCP_TOKEN is not a valid token")]
    TokenVariable(#[from] TokenError),
    /// Other hosts could send requests without a token.
    #[error(
        "{0} is reachable from other hosts, which must send a token - set one with --token-file or GPUCAUSE_MCP_TOKEN, or listen on 127.0.0.1"
    )]
    NoToken(String),
    /// Tokens and responses would be sent in the clear.
    #[error(
        "{0} is reachable from other hosts, which requires TLS - set tls_server_config in --web.config.file, or listen on 127.0.0.1"
    )]
    NoTls(String),
    /// The token file cannot be written.
    #[error(
        "{0} - set a token with --token-file or in GPUCAUSE_MCP_TOKEN (`openssl rand -hex 32` makes one)"
    )]
    NoFile(#[from] TokenFileError),
    /// Users are configured, which MCP does not support.
    #[error(
        "basic_auth_users of --web.config.file are not supported: MCP clients send a token - set one with --token-file, or remove the users"
    )]
    Users,
}

/// Serves until the client hangs up or a signal ends it.
///
/// # Errors
/// When the file cannot be read, or the flags are not valid for the nodes or clients.
pub fn run(args: &McpArgs) -> anyhow::Result<()> {
    let source = match &args.db {
        Some(path) => {
            Source::file(any_format::open(path)?, Some(Box::new(SqlOfFile(path.clone()))))
        }
        None => Source::Nodes(args.nodes.clients(&args.url)?),
    };
    let (login, ca_file) = (&args.nodes.prometheus_login, args.nodes.ca_file.as_deref());
    let prometheus = args.prometheus.as_ref().map(|url| url.client_also_trusting(login, ca_file));
    let prometheus = prometheus.transpose();
    let prometheus = prometheus.context("--prometheus")?.map(Prometheus::new);
    let login = &args.clickhouse_login;
    let clickhouse = args.clickhouse.as_ref().map(|url| url.clickhouse(login, ca_file));
    let clickhouse = clickhouse.transpose().context("--clickhouse")?;
    let host = Arc::new(ThisHost { allow_demo: args.allow_demo });
    let assistant = Assistant::new(source, host, Stores { prometheus, clickhouse });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let served = runtime.block_on(async {
        match &args.http {
            Some(_) => over_http(args, assistant).await,
            None => {
                let stop = shutdown_signal().context("cannot catch signals")?;
                tokio::select! {
                    served = assistant.serve(tokio::io::stdin(), tokio::io::stdout()) => {
                        served.map_err(Into::into)
                    }
                    () = stop => Ok(()),
                }
            }
        }
    });
    // A read of standard input is never given up.
    runtime.shutdown_timeout(DRAIN);
    served
}

async fn over_http(args: &McpArgs, assistant: Assistant) -> anyhow::Result<()> {
    let Some(address) = &args.http else { bail!("no listen address") };
    let given = token(args.token_file.as_deref())?;
    let file = args.web_config.as_deref().filter(|path| !path.as_os_str().is_empty());
    let live = Arc::new(file.map(LiveWebConfig::load).transpose()?.unwrap_or_default());
    let listener = address.bind()?;
    let local = listener.local_addr().context("cannot read the address")?;
    if !local.ip().to_canonical().is_loopback() {
        if given.is_none() {
            return Err(McpError::NoToken(address.to_string()).into());
        }
        if live.current().is_plain() {
            return Err(McpError::NoTls(address.to_string()).into());
        }
    }
    if given.is_none() && live.current().has_users() {
        return Err(McpError::Users.into());
    }
    // Removed when the process ends.
    let made = match &given {
        None => Some(TokenFile::create(&[local].into()).map_err(McpError::NoFile)?),
        Some(_) => None,
    };
    let path = made.as_ref().and_then(TokenFile::path).or(args.token_file.as_deref());
    let token_file = path.map(|path| tracing::field::display(path.display()));
    let token = given.or_else(|| made.as_ref().map(|file| file.token().clone()));
    let Some(token) = token else { bail!("no token") };
    let scheme = if live.current().is_plain() { "http" } else { "https" };
    let following = tokio::spawn(Arc::clone(&live).follow());
    let mut hosts = args.allow_hosts.clone();
    hosts.push(node_name());
    let tls: http::Tls = Arc::new(move || live.current().tls_config());
    let stop = shutdown_signal().context("cannot catch signals")?;
    tracing::info!(url = format!("{scheme}://{local}{}", http::PATH), token_file, "listening");
    let served = http::serve(assistant, listener, Access { token, hosts, tls }, stop).await;
    following.abort();
    served.context("cannot serve")
}

fn token(file: Option<&Path>) -> Result<Option<Token>, McpError> {
    let Some(path) = file else {
        let inherited = std::env::var(TOKEN).ok();
        return Ok(inherited.map(|text| Token::of(&text)).transpose()?);
    };
    let wrong = |reason: String| McpError::TokenFile { path: path.to_owned(), reason };
    let read = || {
        let mut text = String::new();
        let file = std::fs::File::open(path)?;
        std::io::Read::read_to_string(&mut std::io::Read::take(file, MAX_TOKEN_FILE), &mut text)?;
        Ok(text)
    };
    let text = read().map_err(|error: std::io::Error| wrong(error.to_string()))?;
    Token::of(&text).map(Some).map_err(|error| wrong(error.to_string()))
}

/// The tools of this host.
#[derive(Debug)]
struct ThisHost {
    allow_demo: bool,
}

impl Host for ThisHost {
    fn check(&self) -> CheckReport {
        // Without ports: a running exporter has them.
        let report = Report::of_this_host();
        let can_run = report.can_run();
        let line = |point: crate::commands::check::Point| CheckLine {
            state: point.state.label(),
            detail: point.text(),
            subject: point.subject,
        };
        CheckReport {
            host: node_name(),
            can_run,
            lines: report.points.into_iter().map(line).collect(),
        }
    }

    fn scenarios(&self) -> Option<Vec<Shown>> {
        let shown = |scenario: &Scenario| Shown { name: scenario.name(), what: scenario.what() };
        self.allow_demo.then(|| Scenario::value_variants().iter().map(shown).collect())
    }

    fn demo(&self, scenario: &str, time: Duration) -> Result<DemoReport, String> {
        let shown = || {
            ensure!(self.allow_demo, "demos are disabled - enable them with --allow-demo");
            let scenario = Scenario::from_str(scenario, false).map_err(anyhow::Error::msg)?;
            demo::run_scenario(scenario, time)
        };
        let (chains, comparison) = shown().map_err(|error| format!("{error:#}"))?;
        Ok(DemoReport { chains, comparison })
    }
}
