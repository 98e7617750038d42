//! Flags of commands that query nodes.

mod from;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::Args;
use gpucause_http::client::{Client, Identity, Login, LoginError, TrustError, connector};
use gpucause_http::token_file;
use gpucause_input::complaint::in_one_line;
use gpucause_input::document::typed;
use gpucause_input::text_file;
use gpucause_investigations::fleet::{FleetAnswer, NodeFailure};
use gpucause_investigations::node::NodeUrl;
use serde::Deserialize;

use crate::failure::UsageError;
use crate::store_url::PrometheusLogin;

pub(crate) use from::{MAX_ANSWER, TARGETS};
pub use from::{NodesFrom, NodesFromError};

/// The environment variable of the password, which other users cannot read.
const PASSWORD: &str = "GPUCAUSE_PASSWORD";
const HINT: &str = "set it with --password-file or GPUCAUSE_PASSWORD";
/// Maximum number of nodes.
const MAX_NODES: usize = 1000;

/// Flags of nodes, which conflict with a file.
pub(crate) const FLAGS: [&str; 9] = [
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

/// Flags that name nodes.
#[derive(Debug, Clone, Args)]
pub struct NodeArgs {
    /// Several nodes, such as gpu-1:9400,gpu-2:9400 or https://me@gpu-1
    #[arg(long, value_name = "URL,URL", value_delimiter = ',', conflicts_with = "nodes_file")]
    pub nodes: Vec<NodeUrl>,
    /// Several nodes, in a YAML file that has a list under the key nodes
    #[arg(long, value_name = "PATH")]
    pub nodes_file: Option<PathBuf>,
    /// Several nodes: those that a Prometheus scrapes by a job whose name begins with gpucause, or those of a file of its service discovery
    #[arg(long, value_name = "prometheus:URL|file_sd:FILE", conflicts_with_all = ["nodes", "nodes_file"])]
    pub nodes_from: Option<NodesFrom>,
    /// Flags of the login at a Prometheus.
    #[command(flatten)]
    pub prometheus_login: PrometheusLogin,
    /// User of the nodes of --nodes-from that have TLS; their certificates must be of --ca-file, so that no other host gets the password
    #[arg(long, value_name = "USER", requires_all = ["nodes_from", "ca_file"])]
    pub nodes_user: Option<String>,
    /// File whose first line is the password [default: the environment variable GPUCAUSE_PASSWORD]; not needed for an exporter at localhost whose token file, /run/gpucause/PORT.token, is readable, as it is for root
    #[arg(long, value_name = "PATH")]
    pub password_file: Option<PathBuf>,
    /// CA certificates to verify nodes with, in PEM [default: those that this host trusts]. The certificate of a Prometheus or ClickHouse may be of either
    #[arg(long, value_name = "PATH")]
    pub ca_file: Option<PathBuf>,
    /// Client certificate, in PEM
    #[arg(long, value_name = "PATH", requires = "client_key")]
    pub client_cert: Option<PathBuf>,
    /// Private key of the client certificate, in PEM
    #[arg(long, value_name = "PATH", requires = "client_cert")]
    pub client_key: Option<PathBuf>,
}

/// Why nodes cannot be queried.
#[derive(Debug, thiserror::Error)]
pub enum NodesError {
    /// The list of nodes cannot be read.
    #[error("{path}: {reason} - it must have a list of addresses under the key nodes", path = .path.display())]
    List {
        /// The file.
        path: PathBuf,
        /// The problem with it.
        reason: String,
    },
    /// The source of nodes cannot be read.
    #[error("{0}")]
    From(String),
    /// It names none, or too many.
    #[error("{0} has {1} nodes - --nodes-from needs 1 to {MAX_NODES}")]
    Number(NodesFrom, usize),
    /// The CA certificates are unusable.
    #[error(transparent)]
    Trust(Arc<TrustError>),
    /// The credentials are unusable.
    #[error(transparent)]
    Login(#[from] LoginError),
    /// The credentials are not valid in a header.
    #[error("invalid user name or password: {0}")]
    Header(#[from] hyper::http::Error),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    nodes: Vec<String>,
}

impl NodeArgs {
    /// Returns true if several nodes are named.
    #[must_use]
    pub fn names_several(&self) -> bool {
        !self.nodes.is_empty() || self.nodes_file.is_some() || self.nodes_from.is_some()
    }

    /// Refuses a command line that names neither a file nor nodes.
    ///
    /// # Errors
    /// When no nodes are named.
    pub(crate) fn require(&self) -> Result<(), UsageError> {
        const MISSING: &str =
            "no source is given - use --db FILE, or --nodes, --nodes-file or --nodes-from";
        if self.names_several() { Ok(()) } else { Err(UsageError(MISSING.to_owned())) }
    }

    /// A client for each node; `url` when none are named.
    ///
    /// # Errors
    /// When one of the files cannot be used, or a password is missing.
    pub fn clients(&self, url: &NodeUrl) -> Result<Vec<Client>, NodesError> {
        if self.names_several() { self.several() } else { self.each(std::slice::from_ref(url)) }
    }

    /// A client for each of several nodes; none when none are named.
    ///
    /// # Errors
    /// When one of the files cannot be used, or a password is missing.
    pub fn several(&self) -> Result<Vec<Client>, NodesError> {
        match (&self.nodes_file, &self.nodes_from) {
            (Some(path), _) => self.each(&read(path)?),
            (None, Some(source)) => self.each(&self.known(source)?),
            (None, None) => self.each(&self.nodes),
        }
    }

    fn known(&self, source: &NodesFrom) -> Result<Vec<NodeUrl>, NodesError> {
        let (ca_file, user) = (self.ca_file.as_deref(), self.nodes_user.as_deref());
        let nodes = source.read(&self.prometheus_login, ca_file, user).map_err(NodesError::From)?;
        match nodes.len() {
            1..=MAX_NODES => Ok(nodes),
            number => Err(NodesError::Number(source.clone(), number)),
        }
    }

    fn each(&self, nodes: &[NodeUrl]) -> Result<Vec<Client>, NodesError> {
        let wants_tls = nodes.iter().any(|node| node.address().is_tls());
        let identity = self.client_cert.as_deref().zip(self.client_key.as_deref());
        let identity = identity.map(|(certificate, key)| Identity { certificate, key });
        let tls = if wants_tls {
            connector(self.ca_file.as_deref(), identity).map_err(Arc::new)
        } else {
            Err(Arc::new(TrustError::NoFile))
        };
        let mut once: Vec<&NodeUrl> = Vec::new();
        for node in nodes {
            // Named twice, its chains would count twice.
            if !once.contains(&node) {
                once.push(node);
            }
        }
        once.into_iter().map(|node| self.client(node, &tls)).collect()
    }

    fn client(
        &self,
        node: &NodeUrl,
        tls: &Result<tokio_rustls::TlsConnector, Arc<TrustError>>,
    ) -> Result<Client, NodesError> {
        let address = node.address();
        let client = Client::over(address.clone(), tls).map_err(NodesError::Trust)?;
        let inherited = std::env::var(PASSWORD).ok();
        // With several nodes the file is only for those with a user name.
        let file = self.password_file.as_deref();
        let file = file.filter(|_| !self.names_several() || address.user().is_some());
        Ok(match Login::of(address, file, inherited, HINT)? {
            Some(login) => client.with_login(&login)?,
            None => {
                let files = token_file::candidates(client.address());
                client.with_token_files(files)
            }
        })
    }
}

/// Runs a request to nodes.
///
/// # Errors
/// When the runtime cannot be started.
pub fn block_on<T>(request: impl Future<Output = T>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Ok(runtime.context("cannot start the runtime")?.block_on(request))
}

/// Logs clock skew, and the nodes that did not answer.
///
/// # Errors
/// When a node did not answer, for the exit code.
pub fn report(answer: &FleetAnswer) -> anyhow::Result<()> {
    for warning in answer.clock_warnings() {
        tracing::warn!("{warning}");
    }
    report_failures(answer.answers.len(), &answer.failures)
}

/// Logs the nodes that did not answer.
///
/// # Errors
/// When there are any, for the exit code.
pub fn report_failures(answered: usize, failures: &[NodeFailure]) -> anyhow::Result<()> {
    for failure in failures {
        tracing::warn!("{}", failure.error);
    }
    match (answered, failures.len()) {
        (_, 0) => Ok(()),
        (0, failed) => bail!("none of {failed} nodes answered"),
        (answered, failed) => bail!("{failed} of {} nodes did not answer", answered + failed),
    }
}

fn read(path: &Path) -> Result<Vec<NodeUrl>, NodesError> {
    let wrong = |reason: String| NodesError::List { path: path.to_owned(), reason };
    let text = text_file::read(path).map_err(|error| wrong(error.to_string()))?;
    let list: List = typed(&text).map_err(|complaints| wrong(in_one_line(&complaints)))?;
    if list.nodes.is_empty() || list.nodes.len() > MAX_NODES {
        return Err(wrong(format!("nodes has {} - name 1 to {MAX_NODES}", list.nodes.len())));
    }
    // By its index: it may contain a password.
    let parsed = |(index, text): (usize, &String)| {
        text.parse().map_err(|error| wrong(format!("nodes[{index}]: {error}")))
    };
    list.nodes.iter().enumerate().map(parsed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Vec<String>, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let nodes = read(file.path()).map_err(|error| error.to_string())?;
        Ok(nodes.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_list_of_nodes_is_read_and_anything_else_is_refused() {
        assert_eq!(
            read_text("nodes: [a:9400, 'https://me@b']\n"),
            Ok(vec!["http://a:9400".into(), "https://b:9400".into()])
        );
        for (text, part) in [
            ("nodes: []", "name 1 to"),
            ("nodes: [a/b]", "invalid node address"),
            ("nodes: ['https://me:secret@a']", "nodes[0]: other users of this host"),
            ("hosts: [a]", "the file has no key hosts; it has nodes - it must have a list"),
            ("[a]", "the file is a list, and must be a section: keys with values"),
        ] {
            let error = read_text(text).unwrap_err();
            assert!(error.contains(part) && !error.contains("secret"), "{text}: {error}");
        }
    }
}
