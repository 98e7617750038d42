//! Statistics of calls and waits, from those of a recording or of nodes' snapshots, never from events.

use std::collections::HashSet;

use gpucause_http::client::Address;
use serde_json::{Map, Value, json};

use super::ToolError;
use super::answer::{self, micros, object, seconds};
use super::arguments::Rows;
use super::chains::head_of_nodes;
use super::observed;
use super::source::{Source, snapshots};
use crate::fleet::FleetAnswer;
use gpucause_trace::recording::{
    CallStatistics, Completeness, Durations, NodeIndex, Process, Recording, RecordingError,
    WaitStatistics,
};

/// The note about a PID that no process of a recording has.
pub(super) const NOT_IN_FILE: &str = "no process with this PID is in the file";
/// The note about a name that no process of a recording has.
pub(super) const NAME_NOT_IN_FILE: &str = "no process of this name is in the file";
/// The note about a name that no process of the nodes has.
pub(super) const NAME_UNOBSERVED: &str = "not observed: no node that answered observes a process of this name; whether it was starved is unknown";
/// The note about a PID that no process of the nodes has.
const PID_UNOBSERVED: &str = "not observed: no node that answered observes a process with this PID";
/// The note about a PID or name that no node exports, where some do not report what they observe.
const UNEXPORTED: &str = "no node that answered exports calls or waits of such a process: it is not observed, or it is a worker, such as one of a data loader: ask for the process that feeds the GPU";
/// The note about a process that is observed, and has no series.
const WORKER: &str = "observed, without rows of its own: nodes export the waits of a worker, such as one of a data loader, in the rows (worker) of the process that feeds the GPU, so ask for that one; get_causal_chains says whom it delays";

/// Rows of all nodes together: some 100 MiB.
const MAX_ROWS: usize = 500_000;

/// Durations of one kind of calls or waits of one process.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) node: String,
    pub(super) pid: u32,
    pub(super) comm: String,
    /// The op, or the reason.
    pub(super) what: String,
    api: Option<String>,
    cold: Option<bool>,
    pub(super) count: u64,
    pub(super) sum_ns: u64,
    p50_ns: Option<u64>,
    p99_ns: Option<u64>,
    max_ns: Option<u64>,
    off_cpu_ns: Option<u64>,
    /// Number of durations that the percentiles cover, where not all.
    sample_of: Option<u64>,
}

/// Calls and waits, and the head of the answer.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) head: Map<String, Value>,
    pub(super) calls: Vec<Row>,
    pub(super) waits: Vec<Row>,
    pub(super) nodes: usize,
    /// Names and addresses of the live nodes that answered.
    pub(super) answered: Vec<(String, Address)>,
    /// PIDs of the processes of the source.
    pids: HashSet<u32>,
    /// Their names.
    names: HashSet<String>,
    /// PIDs and names of processes that live nodes observe, also of those without series.
    observed: (HashSet<u32>, HashSet<String>),
    /// The notes about a PID and a name of none of all these.
    if_unknown: [&'static str; 2],
}

impl Found {
    /// The note of an answer about a process that the source does not have.
    pub(super) fn unknown(&self, asked: &Rows) -> Option<&'static str> {
        let ((pids, names), [if_no_pid, if_no_name]) = (&self.observed, self.if_unknown);
        let note = |is_observed, unknown| if is_observed { WORKER } else { unknown };
        let pid = asked.pid.filter(|pid| !self.pids.contains(pid));
        let name = asked.comm.as_ref().filter(|comm| !self.names.contains(*comm));
        let of_name = || name.map(|comm| note(names.contains(comm), if_no_name));
        pid.map(|pid| note(pids.contains(&pid), if_no_pid)).or_else(of_name)
    }
}

/// A row of an answer.
pub(super) fn json_row(row: &Row, what: &str, several: bool) -> Value {
    let mut out = object(json!({
        "pid": row.pid,
        "comm": answer::name(&row.comm),
        what: answer::name(&row.what),
        "count": row.count,
        "total_s": seconds(row.sum_ns),
        "p50_us": row.p50_ns.map(micros),
        "p99_us": row.p99_ns.map(micros),
    }));
    let more = [
        ("node", several.then(|| answer::name(&row.node))),
        ("api", row.api.as_deref().map(answer::name)),
        ("cold", row.cold.filter(|cold| *cold).map(Value::from)),
        ("max_us", row.max_ns.map(micros)),
        ("off_cpu_s", row.off_cpu_ns.map(seconds)),
        ("percentiles_of_sample", row.sample_of.map(Value::from)),
    ];
    out.extend(more.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
    out.into()
}

pub(super) async fn find(source: &Source) -> Result<Found, ToolError> {
    let clients = match source {
        Source::File(file) => return file.read(of_recording).await,
        Source::Nodes(clients) => clients,
    };
    let mut left = MAX_ROWS;
    let of = |recording: &dyn Recording| {
        let source = || recording.node_name(NodeIndex(0)).into();
        let found = of_recording(recording).map_err(|error| error.to_string());
        let rows = |own: &Found| own.calls.len() + own.waits.len();
        let full = "all nodes have too many rows; ask fewer".to_owned();
        let found = found.and_then(|own| {
            left = left.checked_sub(rows(&own)).ok_or(full)?;
            Ok(own)
        });
        found.map_err(|why| RecordingError::Damaged(source(), why))
    };
    let (answer, found) = snapshots(clients, of).await;
    let (head, observed) = head_of_nodes(&answer)?;
    Ok(of_nodes(&answer, found, (head, observed.observation)))
}

/// Rows of the nodes that answered, under their names in the answer.
fn of_nodes(
    answer: &FleetAnswer,
    found: Vec<Found>,
    (mut head, observation): (Map<String, Value>, Value),
) -> Found {
    let own = || answer.answers.iter().map(|own| &own.chains);
    let has_pids = own().all(|own| own.processes.is_some());
    let has_names = observed::names(own()).is_some();
    let if_unknown = [
        if has_pids { PID_UNOBSERVED } else { UNEXPORTED },
        if has_names { NAME_UNOBSERVED } else { UNEXPORTED },
    ];
    let observed = (
        own().filter_map(|own| own.processes.as_ref()).flatten().copied().collect(),
        own().flat_map(|own| own.names.values().cloned()).collect(),
    );
    head.insert("source".into(), "live counters since each process was first seen".into());
    head.insert("observation".into(), observation);
    let nodes = answer.answers.len() + answer.failures.len();
    let mut all = Found { head, nodes, if_unknown, observed, ..Found::default() };
    for (node, own) in answer.answers.iter().zip(found) {
        let name = &node.chains.node;
        let named = |row| Row { node: name.clone(), ..row };
        all.calls.extend(own.calls.into_iter().map(named));
        all.waits.extend(own.waits.into_iter().map(named));
        all.pids.extend(own.pids);
        all.names.extend(own.names);
        all.answered.push((name.clone(), node.url.clone()));
    }
    all
}

fn of_recording(recording: &dyn Recording) -> Result<Found, RecordingError> {
    let mut head = object(json!({
        "observation": observed::Coverage::of_recording(recording)?.observation,
        "source": answer::text(&recording.format(), 100),
        "percentiles": "nearest rank",
    }));
    let calls: Vec<_> = recording.calls()?.iter().map(|own| of_calls(recording, own)).collect();
    let waits: Vec<_> = recording.waits()?.iter().map(|own| of_waits(recording, own)).collect();
    if calls.iter().chain(&waits).any(|row| row.sample_of.is_some()) {
        let note = "count and total_s cover all calls; with percentiles_of_sample, p50 and p99 cover only that many stored ones, a biased sample";
        head.insert("note".into(), note.into());
    }
    let processes = recording.processes().iter();
    let (pids, names) = processes.map(|own| (own.pid, own.comm.clone())).unzip();
    let (nodes, if_unknown) = (recording.nodes().len(), [NOT_IN_FILE, NAME_NOT_IN_FILE]);
    Ok(Found { head, calls, waits, nodes, pids, names, if_unknown, ..Found::default() })
}

fn of_durations(
    recording: &dyn Recording,
    process: Option<&Process>,
    what: String,
    own: &Durations,
) -> Row {
    Row {
        node: process.map(|own| recording.node_name(own.node).to_owned()).unwrap_or_default(),
        pid: process.map_or(0, |own| own.pid),
        comm: process.map(|own| own.comm.clone()).unwrap_or_default(),
        what,
        api: None,
        cold: None,
        count: own.count,
        sum_ns: own.sum_ns,
        p50_ns: own.p50_ns,
        p99_ns: own.p99_ns,
        max_ns: Some(own.max_ns),
        off_cpu_ns: None,
        sample_of: match own.completeness {
            Completeness::Exact => None,
            Completeness::Sample { stored } => Some(stored),
        },
    }
}

fn of_calls(recording: &dyn Recording, own: &CallStatistics) -> Row {
    let process = recording.process_at(own.process);
    Row {
        api: Some(own.api.label().to_owned()),
        cold: own.cold,
        off_cpu_ns: own.off_cpu_ns,
        ..of_durations(recording, process, own.op.to_string(), &own.durations)
    }
}

fn of_waits(recording: &dyn Recording, own: &WaitStatistics) -> Row {
    let process = recording.process_at(own.process);
    let reason = own.reason.map_or("unknown", |reason| reason.label());
    // Helper threads sleep most of their time, which delays nothing.
    let what = match own.role {
        Some(role) => format!("{reason} ({})", role.label()),
        None => reason.to_owned(),
    };
    of_durations(recording, process, what, &own.durations)
}
