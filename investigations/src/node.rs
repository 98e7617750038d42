//! Asking a node that runs the exporter.

use std::fmt;
use std::future::Future;
use std::str::FromStr;
use std::time::Duration;

use gpucause_engine::chain::Chain;
use gpucause_engine::observation::ObservationState;
use hyper::StatusCode;
use serde::Deserialize;
use tokio::time::timeout;

use crate::explain::Wanted;
use crate::http::{Address, Client, Conversation, GetError};
use crate::observation::Observed;

/// Time for the whole of a question.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of an answer. A thousand chains, the most that are kept, have less than a tenth of it.
const MAX_ANSWER: usize = 32 << 20;
/// Characters of a refusal that are told.
const MAX_REASON: usize = 600;
/// Where chains are.
const CHAINS: &str = "/api/v1/chains";
const JSON: &str = "application/json";
/// Where metrics are, unless the exporter was told otherwise.
const METRICS: &str = "/metrics";
const TEXT: &str = "text/plain;version=0.0.4";

/// Port of a node whose address has none.
const PORT: u16 = 9400;

/// Address of a node, such as `http://localhost:9400` or `https://me@gpu-1:9400`. Shown without a password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeUrl(Address);

/// Why text is no [`NodeUrl`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is no address of a node; write http://HOST:PORT, such as http://localhost:9400, or https://USER@HOST:PORT"
)]
pub struct UrlError;

impl FromStr for NodeUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let full = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let address = Address::parse(&full, [PORT, PORT]).ok_or(UrlError)?;
        if address.path() == "/" { Ok(Self(address)) } else { Err(UrlError) }
    }
}

impl NodeUrl {
    /// The address.
    #[must_use]
    pub const fn address(&self) -> &Address {
        &self.0
    }
}

impl fmt::Display for NodeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a node did not answer. Each tells its cause itself, once: none has a source that a printer of chains would tell again.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody listens, or it cannot be reached.
    #[error(
        "{url} cannot be reached ({cause}); does gpucause exporter run there, and on that port?"
    )]
    Unreachable {
        /// The node.
        url: Address,
        /// What the kernel says.
        cause: std::io::Error,
    },
    /// It speaks no TLS, or nobody who is trusted says that it is the node.
    #[error(
        "{url} was not believed to be the node, or speaks no TLS ({cause}); a certificate of an authority of your own is trusted with --ca-file"
    )]
    Tls {
        /// The node.
        url: Address,
        /// What is wrong.
        cause: std::io::Error,
    },
    /// It did not answer in time.
    #[error("{url} did not answer within {within:?}")]
    Silent {
        /// The node.
        url: Address,
        /// How long it was waited for.
        within: Duration,
    },
    /// The connection broke, or the answer is too long.
    #[error("{url} did not answer as it should: {cause}")]
    Broken {
        /// The node.
        url: Address,
        /// What went wrong.
        cause: GetError,
    },
    /// It told more than there was memory for.
    #[error("{url} told more than there is room for ({reason}); ask fewer nodes at once")]
    NoRoom {
        /// The node.
        url: Address,
        /// What had no room.
        reason: String,
    },
    /// It does not know who asks.
    #[error(
        "{0} tells only who logs in; write https://USER@HOST:PORT, with the right password in GPUCAUSE_PASSWORD or in the file of --password-file"
    )]
    Unauthorized(Address),
    /// It refused.
    #[error("{url} answered {status}: {reason}")]
    Refused {
        /// The node.
        url: Address,
        /// The status code.
        status: u16,
        /// What it said.
        reason: String,
    },
    /// It is something else.
    #[error("{url} is not gpucause, or not of a version that this one understands: {cause}")]
    NotUnderstood {
        /// The node.
        url: Address,
        /// What was not understood.
        cause: serde_json::Error,
    },
}

/// What a node answers.
#[derive(Debug, Deserialize)]
struct Answer<T> {
    #[serde(default = "Option::default")]
    data: Option<T>,
    error: Option<String>,
}

/// What of the chains tells the time.
#[derive(Debug, Deserialize)]
struct Clock {
    now: Option<f64>,
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
    /// Whether the node observes its processes; `None` where its version is too old to report it.
    #[serde(default)]
    pub observation: Option<ObservationState>,
    /// PIDs of the processes that are observed; `None` where the node's version is too old to report them.
    #[serde(default)]
    pub processes: Option<Vec<u32>>,
    /// The worst first.
    pub chains: Vec<Chain>,
}

impl Chains {
    /// What the node observed in the time before it answered; `here` is this host's clock, for nodes that do not tell theirs.
    /// Moments that are asked for stand before the seconds.
    #[must_use]
    pub fn observed(&self, seconds: f64, here: f64, wanted: &Wanted) -> Observed {
        let now = self.now.unwrap_or(here);
        let until = wanted.until.unwrap_or(now).min(now);
        let from = wanted.from.unwrap_or(until - seconds).min(until);
        Observed::of_node(self.observation.clone(), from, until)
    }
}

/// Asks a node for its chains.
///
/// # Errors
/// When there is no answer, or not one that is understood.
pub async fn chains(node: &Client) -> Result<Chains, AskError> {
    let asked = async { chains_over(&mut connect(node).await?, node.address()).await };
    within(PATIENCE, node, asked).await
}

/// Asks a node for its metrics, in Prometheus's text format.
///
/// # Errors
/// When there is no answer.
pub async fn metrics(node: &Client) -> Result<String, AskError> {
    let asked = async {
        let body = body_of(&mut connect(node).await?, node.address(), METRICS, TEXT).await?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    };
    within(PATIENCE, node, asked).await
}

/// What `asked` gives, unless it takes longer.
pub(crate) async fn within<T>(
    patience: Duration,
    node: &Client,
    asked: impl Future<Output = Result<T, AskError>>,
) -> Result<T, AskError> {
    let silent = |_| AskError::Silent { url: node.address().clone(), within: patience };
    timeout(patience, asked).await.map_err(silent)?
}

/// Connects to a node.
pub(crate) async fn connect(node: &Client) -> Result<Conversation<'_>, AskError> {
    node.connect().await.map_err(|error| failed(node.address(), error))
}

/// Asks for chains on a connection.
pub(crate) async fn chains_over(
    node: &mut Conversation<'_>,
    url: &Address,
) -> Result<Chains, AskError> {
    let body = body_of(node, url, CHAINS, JSON).await?;
    let not_understood = |cause| AskError::NotUnderstood { url: url.clone(), cause };
    let answer: Answer<Chains> = serde_json::from_slice(&body).map_err(not_understood)?;
    answer.data.ok_or_else(|| not_understood(serde::de::Error::custom("the answer has no data")))
}

/// Asks what the node's clock says, in seconds since the Unix epoch.
pub(crate) async fn now_over(node: &mut Conversation<'_>, url: &Address) -> Option<f64> {
    let body = body_of(node, url, CHAINS, JSON).await.ok()?;
    serde_json::from_slice::<Answer<Clock>>(&body).ok()?.data?.now
}

fn failed(url: &Address, error: GetError) -> AskError {
    let url = url.clone();
    match error {
        GetError::Unreachable(cause) => AskError::Unreachable { url, cause },
        GetError::Tls(cause) => AskError::Tls { url, cause },
        cause => AskError::Broken { url, cause },
    }
}

async fn body_of(
    node: &mut Conversation<'_>,
    url: &Address,
    path: &str,
    accept: &str,
) -> Result<Vec<u8>, AskError> {
    let answer = node.get(path, accept, MAX_ANSWER).await;
    let answer = answer.map_err(|error| failed(url, error))?;
    if answer.status.is_success() {
        return Ok(answer.body);
    }
    let told = serde_json::from_slice::<Answer<Clock>>(&answer.body).ok();
    let told = told.and_then(|answer| answer.error);
    // With a reason, it says itself what it wants to be shown.
    if answer.status == StatusCode::UNAUTHORIZED && told.is_none() {
        return Err(AskError::Unauthorized(url.clone()));
    }
    let told = told.unwrap_or_else(|| String::from_utf8_lossy(&answer.body).trim().to_owned());
    let reason = told.chars().take(MAX_REASON).collect();
    Err(AskError::Refused { url: url.clone(), status: answer.status.as_u16(), reason })
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
            ("https://me:secret@node", "https://node:9400"),
        ] {
            assert_eq!(text.parse::<NodeUrl>().map(|url| url.to_string()), Ok(told.into()));
        }
        for text in ["", "http://", "ftp://node", "http://node/metrics", "a b", "http://node?x"] {
            let error = text.parse::<NodeUrl>().unwrap_err().to_string();
            assert!(error.contains("such as http://localhost:9400"), "{text}: {error}");
        }
    }
}
