//! Asking a node that runs the exporter.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use gpucause_engine::chain::Chain;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, HOST};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Time for the whole of a question.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of an answer. A thousand chains, the most that are kept, have less than a tenth of it.
const MAX_ANSWER: usize = 32 << 20;
/// Characters of a refusal that are told.
const MAX_REASON: usize = 300;
/// Where chains are.
const CHAINS: &str = "/api/v1/chains";

/// Address of a node, such as `http://localhost:9400`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeUrl {
    host: String,
    port: u16,
}

/// Why text is no [`NodeUrl`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// It is none.
    #[error("{0:?} is no address of a node; write http://HOST:PORT, such as http://localhost:9400")]
    Form(String),
    /// It asks for TLS.
    #[error(
        "{0:?} asks for TLS, which gpucause explain does not speak yet; write http://HOST:PORT"
    )]
    Tls(String),
}

impl FromStr for NodeUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let form = || UrlError::Form(text.to_owned());
        let full = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let uri: Uri = full.parse().map_err(|_| form())?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(UrlError::Tls(text.to_owned())),
            _ => return Err(form()),
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(form());
        }
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(form)?;
        Ok(Self { host: host.to_owned(), port: uri.port_u16().unwrap_or(9400) })
    }
}

impl fmt::Display for NodeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}", self.host, self.port)
    }
}

/// Why a node did not answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody listens, or it cannot be reached.
    #[error(
        "{url} cannot be reached ({source}); does gpucause exporter run there, and on that port?"
    )]
    Unreachable {
        /// The node.
        url: NodeUrl,
        /// What the kernel says.
        source: std::io::Error,
    },
    /// It did not answer in time.
    #[error("{0} did not answer within {PATIENCE:?}")]
    Silent(NodeUrl),
    /// The connection broke, or the answer is too long.
    #[error("{url} did not answer as it should: {source}")]
    Broken {
        /// The node.
        url: NodeUrl,
        /// What went wrong.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It refused.
    #[error("{url} answered {status}: {reason}")]
    Refused {
        /// The node.
        url: NodeUrl,
        /// The status code.
        status: u16,
        /// What it said.
        reason: String,
    },
    /// It is something else.
    #[error("{url} is not gpucause, or not of a version that this one understands: {source}")]
    NotUnderstood {
        /// The node.
        url: NodeUrl,
        /// What was not understood.
        source: serde_json::Error,
    },
}

/// What a node answers.
#[derive(Debug, Deserialize)]
struct Answer {
    data: Option<Chains>,
    error: Option<String>,
}

/// The chains of a node.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Chains {
    /// Name of the host.
    pub node: String,
    /// The node's clock when it answered, in seconds since the Unix epoch: that of the chains, which ours may not be.
    #[serde(default)]
    pub now: Option<f64>,
    /// Since when the node looks for chains, in seconds since the Unix epoch by its clock.
    #[serde(default)]
    pub watched_since: Option<f64>,
    /// The worst first.
    pub chains: Vec<Chain>,
}

/// Asks a node for its chains.
///
/// # Errors
/// When there is no answer, or not one that is understood.
pub async fn chains(url: &NodeUrl) -> Result<Chains, AskError> {
    match timeout(PATIENCE, ask(url)).await {
        Ok(answer) => answer,
        Err(_) => Err(AskError::Silent(url.clone())),
    }
}

async fn ask(url: &NodeUrl) -> Result<Chains, AskError> {
    let broken = |source: Box<dyn std::error::Error + Send + Sync>| AskError::Broken {
        url: url.clone(),
        source,
    };
    let host = url.host.trim_start_matches('[').trim_end_matches(']');
    let unreachable = |source| AskError::Unreachable { url: url.clone(), source };
    let stream = TcpStream::connect((host, url.port)).await.map_err(unreachable)?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|e| broken(e.into()))?;
    // It ends with the sender; what goes wrong in it is told by the request.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    let request = Request::get(CHAINS)
        .header(HOST, format!("{}:{}", url.host, url.port))
        .header(ACCEPT, "application/json")
        .body(Empty::<Bytes>::new())
        .map_err(|e| broken(e.into()))?;
    let response = sender.send_request(request).await.map_err(|e| broken(e.into()))?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await.map_err(broken)?;
    let bytes = body.to_bytes();
    let parsed: Result<Answer, _> = serde_json::from_slice(&bytes);
    if !status.is_success() {
        let told = parsed.ok().and_then(|answer| answer.error);
        let told = told.unwrap_or_else(|| String::from_utf8_lossy(&bytes).trim().to_owned());
        let reason = told.chars().take(MAX_REASON).collect();
        return Err(AskError::Refused { url: url.clone(), status: status.as_u16(), reason });
    }
    let not_understood = |source| AskError::NotUnderstood { url: url.clone(), source };
    let answer = parsed.map_err(not_understood)?;
    answer.data.ok_or_else(|| not_understood(serde::de::Error::custom("the answer has no data")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_and_may_have_a_port() {
        for (text, told) in [
            ("http://node:9400", "http://node:9400"),
            ("http://node:9400/", "http://node:9400"),
            ("node:9401", "http://node:9401"),
            ("node", "http://node:9400"),
            ("http://[::1]:9400", "http://[::1]:9400"),
        ] {
            assert_eq!(text.parse::<NodeUrl>().map(|url| url.to_string()), Ok(told.into()));
        }
        for text in ["", "http://", "ftp://node", "http://node/metrics", "a b", "http://node?x"] {
            let error = text.parse::<NodeUrl>().unwrap_err().to_string();
            assert!(error.contains("such as http://localhost:9400"), "{text}: {error}");
        }
        assert_eq!("https://x".parse::<NodeUrl>(), Err(UrlError::Tls("https://x".into())));
    }
}
