//! JSON answers, in the shape of Prometheus's own API.

use gpucause_engine::chain::Chain;
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
    /// Name of the host.
    node: String,
    version: &'static str,
    /// The worst first.
    chains: &'a [Chain],
}

#[derive(Serialize)]
struct Failure<'a> {
    status: &'static str,
    error: &'a str,
}

/// The chains, as JSON.
pub(super) fn chains(chains: Vec<Chain>) -> String {
    let data = Data { node: node(), version: crate::version::VERSION, chains: &chains };
    let answer = serde_json::to_string(&Success { status: "success", data });
    drop(chains);
    answer.unwrap_or_else(|cause| error(&cause))
}

/// An error, as JSON.
pub(super) fn error(cause: &dyn std::error::Error) -> String {
    let text = cause.to_string();
    let answer = serde_json::to_string(&Failure { status: "error", error: &text });
    answer.unwrap_or_else(|_| r#"{"status":"error"}"#.to_owned())
}

/// The name of this host, or nothing when it has none that is text.
pub(super) fn node() -> String {
    nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default()
}
