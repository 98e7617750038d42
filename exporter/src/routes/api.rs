//! JSON responses, in the format of Prometheus's API.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gpucause_engine::activity::TimelinePoint;
use gpucause_engine::chain::Chain;
use gpucause_engine::observation::ObservationState;
use gpucause_http::server::reply::{JSON, Reply, reply, with_header};
use gpucause_investigations::json::VERSION;
use gpucause_investigations::node::{SNAPSHOT, TRACE_FILE};
use hyper::body::Bytes;
use hyper::{StatusCode, header};
use serde::Serialize;

use super::source::Source;
use crate::flights::FlightFile;
use crate::live_page::{FLIGHTS, Processes};

/// Where causal chains are.
pub(super) const CHAINS: &str = "/api/v1/chains";
/// Where the numbers of processes are.
pub(super) const PROCESSES: &str = "/api/v1/processes";
/// Where the timeline is.
pub(super) const TIMELINE: &str = "/api/v1/timeline";

/// Returns true if a path is answered for those who may read causal chains: in JSON, or with a trace file.
pub(super) fn is_path(path: &str) -> bool {
    matches!(path, CHAINS | PROCESSES | TIMELINE | SNAPSHOT)
}

const NO_SNAPSHOT: &str = "this is a recording itself; open its file";

#[derive(Serialize)]
struct Success<D> {
    status: &'static str,
    /// That of the form; the version of gpucause is in the data.
    version: u32,
    data: D,
}

#[derive(Serialize)]
struct ProcessData {
    /// State of the observation, as for chains.
    observation: ObservationState,
    node: String,
    version: &'static str,
    now: f64,
    #[serde(flatten)]
    processes: Processes,
}

#[derive(Serialize)]
struct TimelineData {
    /// State of the observation, as for chains.
    observation: ObservationState,
    node: String,
    now: f64,
    /// Oldest first.
    points: Vec<TimelinePoint>,
}

#[derive(Serialize)]
struct Data {
    /// State of the observation. Unless the node observes its processes, the absence of chains means nothing.
    observation: ObservationState,
    /// PIDs of the processes that are observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    processes: Option<Vec<u32>>,
    /// Names of those that have not ended, by PID.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    names: BTreeMap<u32, String>,
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
struct FlightData<'a> {
    node: String,
    version: &'static str,
    now: f64,
    name: &'a str,
    /// Where it is downloaded.
    path: String,
    bytes: u64,
    written: f64,
}

#[derive(Serialize)]
struct Failure<'a> {
    status: &'static str,
    error: &'a str,
}

/// The answer of one of the paths; `up` is how long the server has been running.
pub(super) fn answer(path: &str, source: &dyn Source, up: Duration) -> Reply {
    if path == SNAPSHOT {
        return snapshot(source);
    }
    let answer = match path {
        PROCESSES => success(ProcessData {
            observation: source.observation(),
            node: source.node(),
            version: crate::version::VERSION,
            now: now(),
            processes: source.process_rows(),
        }),
        TIMELINE => success(TimelineData {
            observation: source.observation(),
            node: source.node(),
            now: now(),
            points: source.timeline(),
        }),
        _ => chains(source, up),
    };
    reply(StatusCode::OK, JSON, answer)
}

fn snapshot(source: &dyn Source) -> Reply {
    match source.snapshot() {
        Some(Ok(file)) => {
            let file = reply(StatusCode::OK, TRACE_FILE, Bytes::from(file));
            let file = with_header(file, header::CACHE_CONTROL, "no-store");
            with_header(file, header::X_CONTENT_TYPE_OPTIONS, "nosniff")
        }
        Some(Err(error)) => {
            reply(StatusCode::INTERNAL_SERVER_ERROR, JSON, failure(&error.to_string()))
        }
        None => reply(StatusCode::NOT_FOUND, JSON, failure(NO_SNAPSHOT)),
    }
}

fn success(data: impl Serialize) -> String {
    let answer = serde_json::to_string(&Success { status: "success", version: VERSION, data });
    answer.unwrap_or_else(|error| failure(&error.to_string()))
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// The chains as JSON; `up` is how long the server has been running.
fn chains(source: &dyn Source, up: Duration) -> String {
    let now = now();
    success(Data {
        observation: source.observation(),
        processes: source.processes(),
        names: source.names(),
        node: source.node(),
        version: crate::version::VERSION,
        now,
        watched_since: now - up.as_secs_f64(),
        chains: source.chains(),
    })
}

/// A flight record that was written on request.
pub(super) fn flight(source: &dyn Source, file: &FlightFile) -> String {
    success(FlightData {
        node: source.node(),
        version: crate::version::VERSION,
        now: now(),
        name: &file.name,
        path: format!("{FLIGHTS}{}", file.name),
        bytes: file.bytes,
        written: file.written,
    })
}

/// An error response.
pub(super) fn failure(text: &str) -> String {
    let answer = serde_json::to_string(&Failure { status: "error", error: text });
    answer.unwrap_or_else(|_| r#"{"status":"error"}"#.to_owned())
}
