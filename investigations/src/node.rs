//! Client of a node that runs the exporter.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::future::Future;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use gpucause_engine::chain::Chain;
use gpucause_engine::observation::ObservationState;
use gpucause_http::client::{self, Address, Client, Conversation, GetError, tls_advice};
use gpucause_trace::recording::Recording as _;
use gpucause_trace::trace::Trace;
use hyper::{Method, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::chain_filter::ChainFilter;
use crate::observation::Observed;

/// Time for a request, with connecting.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer in bytes: over ten times that of the 1,000 chains that a node keeps at most.
const MAX_ANSWER: usize = 32 << 20;
/// Characters shown of a node's error message.
const MAX_REASON: usize = 600;
/// Begins the part of a node's error message that is for clients other than gpucause.
pub const FOR_CURL: &str = "; for curl: ";
const CHAINS: &str = "/api/v1/chains";
const JSON: &str = "application/json";
/// Where a node has what it knows now, as a trace file.
pub const SNAPSHOT: &str = "/api/v1/snapshot";
/// The type of a trace file.
pub const TRACE_FILE: &str = "application/vnd.sqlite3";
/// Largest snapshot in bytes: many times one of thousands of processes.
const MAX_SNAPSHOT: usize = 64 << 20;
const FLIGHT: &str = "/-/flight";
/// Largest flight record in bytes: twice what a node writes at most.
const MAX_FLIGHT: usize = 128 << 20;

/// Default port.
const PORT: u16 = 9400;

/// Address of a node, such as `http://localhost:9400` or `https://me@gpu-1:9400`. Shown without the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeUrl(Address);

/// Text that is not a [`NodeUrl`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// It is no address of a node.
    #[error(
        "invalid node address; expected http://HOST:PORT, such as http://localhost:9400, or https://USER@HOST:PORT"
    )]
    Invalid,
    /// It has a password.
    #[error(
        "other users of this host can see a password in an address - write https://USER@HOST:PORT, and set it with --password-file or GPUCAUSE_PASSWORD"
    )]
    Password,
}

impl FromStr for NodeUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let full = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        match Address::parse(&full, [PORT, PORT]) {
            Some(address) if address.has_password() => Err(UrlError::Password),
            Some(address) if address.path() == "/" => Ok(Self(address)),
            _ => Err(UrlError::Invalid),
        }
    }
}

impl NodeUrl {
    /// The address.
    pub const fn address(&self) -> &Address {
        &self.0
    }
}

impl fmt::Display for NodeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a node did not answer. The messages contain their cause, which is therefore no `source`: it would be printed twice.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The node cannot be reached.
    #[error("{0} cannot be reached ({1}) - does gpucause exporter run there, on that port?")]
    Unreachable(Address, std::io::Error),
    /// TLS failed, such as for an untrusted certificate.
    #[error("TLS with {0} failed ({1}) - {advice}", advice = tls_advice(.1))]
    Tls(Address, std::io::Error),
    /// The request timed out.
    #[error("{0} did not answer within {1:?}")]
    Silent(Address, Duration),
    /// The connection broke, or the answer is too large.
    #[error("{0} did not answer correctly: {1}")]
    Broken(Address, GetError),
    /// The time for all nodes was over.
    #[error("{0} did not answer within the {1:?} for all nodes - query fewer at once")]
    NotInTime(Address, Duration),
    /// The answer does not fit into memory.
    #[error("the answer of {0} does not fit into memory ({1}) - query fewer nodes at once")]
    OutOfMemory(Address, String),
    /// The login is wrong.
    #[error("{0}: login refused - wrong user or password{1}")]
    LoginRefused(Address, &'static str),
    /// The login is missing.
    #[error(
        "{0} requires a login - use https://USER@HOST:PORT, with the password in GPUCAUSE_PASSWORD or --password-file"
    )]
    Unauthorized(Address),
    /// The token of this host is not sent where others may receive it.
    #[error(
        "{0} requires the token of this host, which is not sent while another user's program listens on the same port: {1} - stop that \
         program, or move the exporter with --web.listen-address"
    )]
    Withheld(Address, String),
    /// The node answered with an error status, and why.
    #[error("{0} answered {1}: {2}")]
    Refused(Address, u16, String),
    /// Something answered with an error status, and not as a node does.
    #[error("{0} answered {1}: {2} - is this a gpucause exporter?")]
    Foreign(Address, u16, String),
    /// The answer is not gpucause's.
    #[error("{0} is not gpucause, or an incompatible version: {1}")]
    NotUnderstood(Address, serde_json::Error),
    /// A snapshot is damaged, or none.
    #[error("the snapshot of {0} cannot be read: {1}")]
    BadSnapshot(Address, String),
    /// A flight record cannot be stored here.
    #[error("the flight record of {0} cannot be stored here: {1}")]
    NotStored(Address, std::io::Error),
    /// A flight record is damaged, or none.
    #[error("the flight record of {0} cannot be read: {1}")]
    BadFlight(Address, String),
}

/// The envelope of a node's answers.
#[derive(Debug, Deserialize)]
struct Answer<T> {
    #[serde(default = "Option::default")]
    data: Option<T>,
    error: Option<String>,
}

/// The clock in the answer with chains.
#[derive(Debug, Deserialize)]
struct Clock {
    now: Option<f64>,
}

/// A flight record that a node has written.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Flight {
    path: String,
}

/// The chains of a node.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Chains {
    /// Name of the host.
    pub node: String,
    /// The node's clock when it answered, in seconds since the Unix epoch. The chains' times are by this clock.
    #[serde(default)]
    pub now: Option<f64>,
    /// Start of the evaluation, in seconds since the Unix epoch.
    #[serde(default)]
    pub watched_since: Option<f64>,
    /// The node's observation state; `None` for a version too old to report it.
    #[serde(default)]
    pub observation: Option<ObservationState>,
    /// PIDs of the observed processes; `None` for a version too old to report them.
    #[serde(default)]
    pub processes: Option<Vec<u32>>,
    /// Names of those that have not ended, by PID; none of a version too old to report them.
    #[serde(default)]
    pub names: BTreeMap<u32, String>,
    /// The worst first.
    pub chains: Vec<Chain>,
}

impl Chains {
    /// Returns what the node observed in the last `seconds`, or in the filter's time range. `here` is this host's clock in seconds
    /// since the Unix epoch, for nodes too old to report theirs.
    pub fn observed(&self, seconds: f64, here: f64, filter: &ChainFilter) -> Observed {
        let now = self.now.unwrap_or(here);
        let until = filter.until.unwrap_or(now).min(now);
        let from = filter.from.unwrap_or(until - seconds).min(until);
        Observed::of_node(self.observation.clone(), from, until)
    }
}

/// Fetches a node's chains.
///
/// # Errors
/// When there is no valid answer.
pub async fn chains(node: &Client) -> Result<Chains, AskError> {
    let fetch = async { chains_over(&mut connect(node).await?, node.address()).await };
    within(TIMEOUT, node, fetch).await.map(|(chains, _)| chains)
}

/// Has a node write a flight record.
pub(crate) async fn record_flight(node: &Client) -> Result<Flight, AskError> {
    let mut conversation = connect(node).await?;
    let answer = conversation.ask(Method::POST, FLIGHT, JSON, MAX_ANSWER).await;
    data_of(node.address(), &succeeded(&conversation, node.address(), answer)?)
}

/// Fetches a flight record.
pub(crate) async fn download(
    node: &Client,
    flight: &Flight,
    out: &mut File,
) -> Result<(), AskError> {
    let mut conversation = connect(node).await?;
    let answer = conversation.download(&flight.path, MAX_FLIGHT, out).await;
    succeeded(&conversation, node.address(), answer).map(drop)
}

/// Runs a request with a timeout.
pub(crate) async fn within<T>(
    limit: Duration,
    node: &Client,
    request: impl Future<Output = Result<T, AskError>>,
) -> Result<T, AskError> {
    let silent = |_| AskError::Silent(node.address().clone(), limit);
    timeout(limit, request).await.map_err(silent)?
}

pub(crate) async fn connect(node: &Client) -> Result<Conversation<'_>, AskError> {
    node.connect().await.map_err(|error| failed(node.address(), error))
}

/// Fetches chains on an open connection, and the size of the answer in bytes.
pub(crate) async fn chains_over(
    node: &mut Conversation<'_>,
    url: &Address,
) -> Result<(Chains, usize), AskError> {
    let body = body_of(node, url, CHAINS, JSON, MAX_ANSWER).await?;
    Ok((data_of(url, &body)?, body.len()))
}

/// Fetches what a node knows now: a recording without events. It is read on a thread for that, so that deadlines hold meanwhile.
pub(crate) async fn snapshot(node: &Client) -> Result<Trace, AskError> {
    let url = node.address().clone();
    let body = body_of(&mut connect(node).await?, &url, SNAPSHOT, TRACE_FILE, MAX_SNAPSHOT).await?;
    let read = move || {
        let trace = snapshot_of(Path::new(&url.to_string()), &body);
        trace.map_err(|why| AskError::BadSnapshot(url, why))
    };
    let read = tokio::task::spawn_blocking(read).await;
    // It is not cancelled, so an error is a panic, and a bug here.
    read.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

/// Reads a node's snapshot. Errors name `source`.
///
/// # Errors
/// When the bytes are no trace file, or not that of one node at one time.
pub fn snapshot_of(source: &Path, bytes: &[u8]) -> Result<Trace, String> {
    let trace = Trace::of_bytes(source, bytes).map_err(|error| error.to_string())?;
    match trace.nodes() {
        [_] if !trace.is_of_one_time().map_err(|error| error.to_string())? => {
            Err("it has more than one snapshot".to_owned())
        }
        [_] => Ok(trace),
        nodes => Err(format!("it has {} nodes", nodes.len())),
    }
}

fn data_of<T: DeserializeOwned>(url: &Address, body: &[u8]) -> Result<T, AskError> {
    let not_understood = |cause| AskError::NotUnderstood(url.clone(), cause);
    let answer: Answer<T> = serde_json::from_slice(body).map_err(not_understood)?;
    answer.data.ok_or_else(|| not_understood(serde::de::Error::custom("the answer has no data")))
}

/// Reads the node's clock, in seconds since the Unix epoch.
pub(crate) async fn now_over(node: &mut Conversation<'_>, url: &Address) -> Option<f64> {
    let body = body_of(node, url, CHAINS, JSON, MAX_ANSWER).await.ok()?;
    serde_json::from_slice::<Answer<Clock>>(&body).ok()?.data?.now
}

fn failed(url: &Address, error: GetError) -> AskError {
    let url = url.clone();
    match error {
        GetError::Unreachable(cause) => AskError::Unreachable(url, cause),
        GetError::Tls(cause) => AskError::Tls(url, cause),
        GetError::Write(cause) => AskError::NotStored(url, cause),
        cause => AskError::Broken(url, cause),
    }
}

async fn body_of(
    node: &mut Conversation<'_>,
    url: &Address,
    path: &str,
    accept: &str,
    largest: usize,
) -> Result<Vec<u8>, AskError> {
    let answer = node.get(path, accept, largest).await;
    succeeded(node, url, answer)
}

/// The body of a success.
fn succeeded(
    node: &Conversation<'_>,
    url: &Address,
    answer: Result<client::Answer, GetError>,
) -> Result<Vec<u8>, AskError> {
    let answer = answer.map_err(|error| failed(url, error))?;
    if answer.status.is_success() {
        return Ok(answer.body);
    }
    let message = serde_json::from_slice::<Answer<Clock>>(&answer.body).ok();
    let message = message.and_then(|answer| answer.error);
    if answer.status == StatusCode::UNAUTHORIZED && node.has_login() {
        // Without users it says what else it accepts.
        let also = if message.is_some() { "; this node has no users" } else { "" };
        return Err(AskError::LoginRefused(url.clone(), also));
    }
    let strangers = match answer.status {
        StatusCode::UNAUTHORIZED => node.strangers(),
        _ => Vec::new(),
    };
    if !strangers.is_empty() {
        let strangers: Vec<_> = strangers.iter().map(ToString::to_string).collect();
        return Err(AskError::Withheld(url.clone(), strangers.join(", ")));
    }
    // A message of the node says which credentials it expects.
    if answer.status == StatusCode::UNAUTHORIZED && message.is_none() {
        return Err(AskError::Unauthorized(url.clone()));
    }
    let shown = |text: &str| text.chars().take(MAX_REASON).collect();
    let (url, status) = (url.clone(), answer.status.as_u16());
    Err(match message {
        Some(own) => {
            AskError::Refused(url, status, shown(own.split(FOR_CURL).next().unwrap_or_default()))
        }
        None => {
            let text = shown(String::from_utf8_lossy(&answer.body).trim());
            // A node with TLS answers so.
            match text.contains("https://") {
                true => AskError::Refused(url, status, text),
                false => AskError::Foreign(url, status, text),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_and_may_have_a_port() {
        for (text, shown) in [
            ("http://node:9400", "http://node:9400"),
            ("http://node:9400/", "http://node:9400"),
            ("node:9401", "http://node:9401"),
            ("node", "http://node:9400"),
            ("http://[::1]:9400", "http://[::1]:9400"),
            ("https://me@node", "https://node:9400"),
        ] {
            assert_eq!(text.parse::<NodeUrl>().map(|url| url.to_string()), Ok(shown.into()));
        }
        for text in ["", "http://", "ftp://node", "http://node/metrics", "a b", "http://node?x"] {
            let error = text.parse::<NodeUrl>().unwrap_err().to_string();
            assert!(error.contains("such as http://localhost:9400"), "{text}: {error}");
        }
        let error = "https://me:secret@node".parse::<NodeUrl>().unwrap_err().to_string();
        assert!(error.contains("--password-file") && !error.contains("secret"), "{error}");
    }
}
