//! JSON answers, in the shape of Prometheus's own API.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gpucause_engine::chain::Chain;
use gpucause_engine::observation::ObservationState;
use serde::Serialize;

/// Where causal chains are.
pub(super) const CHAINS: &str = "/api/v1/chains";

#[derive(Serialize)]
struct Success<'a> {
    status: &'static str,
    data: Data<'a>,
}

#[derive(Serialize)]
struct Data<'a> {
    /// Whether the node observes its processes: says how far that nothing was found says something.
    observation: &'a ObservationState,
    /// Name of the host.
    node: String,
    version: &'static str,
    /// In seconds since the Unix epoch, as all moments of the chains are.
    now: f64,
    /// Since when chains are looked for, likewise: of what was before nothing is known.
    watched_since: f64,
    /// The worst first.
    chains: &'a [Chain],
}

#[derive(Serialize)]
struct Failure<'a> {
    status: &'static str,
    error: &'a str,
}

/// The chains, as JSON, of a server that runs for this time.
pub(super) fn chains(observation: &ObservationState, chains: Vec<Chain>, up: Duration) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let (version, watched_since) = (crate::version::VERSION, now - up.as_secs_f64());
    let data = Data { observation, node: node(), version, now, watched_since, chains: &chains };
    let answer = serde_json::to_string(&Success { status: "success", data });
    drop(chains);
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

/// The name of this host, or nothing when it has none that is text.
pub(crate) fn node() -> String {
    nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default()
}
