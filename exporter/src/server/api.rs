//! JSON responses, in the format of Prometheus's API.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gpucause_engine::chain::Chain;
use gpucause_engine::observation::ObservationState;
use serde::Serialize;

use super::source::Source;

/// Where causal chains are.
pub(super) const CHAINS: &str = "/api/v1/chains";

#[derive(Serialize)]
struct Success {
    status: &'static str,
    data: Data,
}

#[derive(Serialize)]
struct Data {
    /// Whether the node observes its processes. Unless it does, the absence of chains means nothing.
    observation: ObservationState,
    /// PIDs of the processes that are observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    processes: Option<Vec<u32>>,
    /// Name of the host.
    node: String,
    version: &'static str,
    /// In seconds since the Unix epoch, as are all times in the chains.
    now: f64,
    /// Since when chains are detected.
    watched_since: f64,
    /// The worst first.
    chains: Vec<Chain>,
}

#[derive(Serialize)]
struct Failure<'a> {
    status: &'static str,
    error: &'a str,
}

/// The chains as JSON; `up` is how long the server has been running.
pub(super) fn chains(source: &dyn Source, up: Duration) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let data = Data {
        observation: source.observation(),
        processes: source.processes(),
        node: node(),
        version: crate::version::VERSION,
        now,
        watched_since: now - up.as_secs_f64(),
        chains: source.chains(),
    };
    let answer = serde_json::to_string(&Success { status: "success", data });
    answer.unwrap_or_else(|error| failure(&error.to_string()))
}

/// An error response.
pub(super) fn failure(text: &str) -> String {
    let answer = serde_json::to_string(&Failure { status: "error", error: text });
    answer.unwrap_or_else(|_| r#"{"status":"error"}"#.to_owned())
}

/// The name of this host; empty when it is not UTF-8.
pub(crate) fn node() -> String {
    nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default()
}
