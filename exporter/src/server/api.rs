//! JSON answers, in the shape of Prometheus's own API.

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
    /// Whether the node observes its processes: without it, no chains mean nothing.
    observation: ObservationState,
    /// PIDs of the processes that are observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    processes: Option<Vec<u32>>,
    /// Name of the host.
    node: String,
    version: &'static str,
    /// In seconds since the Unix epoch, as all times in the chains.
    now: f64,
    /// Since when chains are detected, likewise; nothing is known about the time before.
    watched_since: f64,
    /// The worst first.
    chains: Vec<Chain>,
}

#[derive(Serialize)]
struct Failure<'a> {
    status: &'static str,
    error: &'a str,
}

/// The chains, as JSON, of a server that runs for this time.
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
    answer.unwrap_or_else(|cause| error(&cause))
}

/// An error, as JSON.
pub(super) fn error(cause: &dyn std::error::Error) -> String {
    failure(&cause.to_string())
}

/// What went wrong, as JSON.
pub(super) fn failure(text: &str) -> String {
    let answer = serde_json::to_string(&Failure { status: "error", error: text });
    answer.unwrap_or_else(|_| r#"{"status":"error"}"#.to_owned())
}

/// The name of this host; empty when it is not UTF-8.
pub(crate) fn node() -> String {
    nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default()
}
