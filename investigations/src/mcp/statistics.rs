//! Statistics of calls and waits, from those of a recording or a node's metrics, never from events.

use std::collections::HashSet;

use gpucause_http::client::Address;
use serde_json::{Map, Value, json};

use super::ToolError;
use super::answer::{self, micros, object, seconds};
use super::arguments::Rows;
use super::observed;
use super::source::{Answered, Source, failures, pages};
use crate::page::{Histogram, histograms, samples};
use gpucause_trace::recording::{
    CallStatistics, Completeness, Durations, Process, Recording, RecordingError, WaitStatistics,
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
    /// Both percentiles are above these, where they are upper edges of buckets.
    above_ns: [Option<u64>; 2],
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
        ("p50_above_us", row.above_ns[0].map(micros)),
        ("p99_above_us", row.above_ns[1].map(micros)),
        ("max_us", row.max_ns.map(micros)),
        ("off_cpu_s", row.off_cpu_ns.map(seconds)),
        ("percentiles_of_sample", row.sample_of.map(Value::from)),
    ];
    out.extend(more.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
    out.into()
}

pub(super) async fn find(source: &Source) -> Result<Found, ToolError> {
    match source {
        Source::File(file) => file.read(of_recording).await,
        Source::Nodes(clients) => {
            let mut left = MAX_ROWS;
            let of = |page: &str| {
                let mut found = Found::default();
                of_page(page, &mut found);
                let rows = found.calls.len() + found.waits.len();
                left = left.checked_sub(rows).ok_or("all nodes have too many rows; ask fewer")?;
                Ok((observed::of_page(page), found))
            };
            let (pages, failed) = pages(clients, of).await;
            if pages.is_empty() {
                let why = failed.first().map(ToString::to_string).unwrap_or_default();
                return Err(ToolError(format!("no node answered: {why}")));
            }
            let mut found = of_nodes(pages);
            found.nodes = clients.len();
            if !failed.is_empty() {
                found.head.insert("failures".into(), failures(failed));
            }
            Ok(found)
        }
    }
}

fn of_nodes(pages: Vec<Answered<(Value, Found)>>) -> Found {
    let own = || pages.iter().filter_map(|own| own.own.as_ref());
    let are_all = own().count() == pages.len();
    let has_pids = are_all && own().all(|own| own.processes.is_some());
    let has_names = are_all && observed::names(own()).is_some();
    let if_unknown = [
        if has_pids { PID_UNOBSERVED } else { UNEXPORTED },
        if has_names { NAME_UNOBSERVED } else { UNEXPORTED },
    ];
    let observed = (
        own().filter_map(|own| own.processes.as_ref()).flatten().copied().collect(),
        own().flat_map(|own| own.names.values().cloned()).collect(),
    );
    let observation = pages.iter().map(|own| (&*own.node, &own.of_page.0));
    let head = object(json!({
        "source": "live counters since each process was first seen",
        "percentiles": "upper edges of histogram buckets; the true values are above p50_above_us and p99_above_us, or 0",
        "observation": observed::of_pages(observation),
    }));
    let mut found = Found { head, if_unknown, observed, ..Found::default() };
    for Answered { node, url, of_page: (_, own), .. } in pages {
        let named = |row| Row { node: node.clone(), ..row };
        found.calls.extend(own.calls.into_iter().map(named));
        found.waits.extend(own.waits.into_iter().map(named));
        found.pids.extend(own.pids);
        found.names.extend(own.names);
        found.answered.push((node, url));
    }
    found
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
        above_ns: [None; 2],
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

/// Rows of a page, without the node.
fn of_page(page: &str, found: &mut Found) {
    for process in samples(page, "gpucause_process_info{") {
        found.pids.extend(process.label("pid").parse::<u32>());
        found.names.insert(process.label("comm").to_owned());
    }
    let calls = "gpucause_cuda_call_duration_seconds";
    for (key, histogram) in histograms(page, calls, ["pid", "comm", "op", "api", "cold"]) {
        let [pid, comm, op, api, cold] = key;
        let row = of_histogram((&pid, comm, op), &histogram);
        found.calls.push(Row { api: Some(api), cold: cold.parse().ok(), ..row });
    }
    for sample in samples(page, "gpucause_cuda_call_offcpu_seconds_total") {
        // Summed over reasons.
        let row = found.calls.iter_mut().rev().find(|row| {
            row.cold != Some(true)
                && row.what == sample.label("op")
                && row.api.as_deref() == Some(sample.label("api"))
                && sample.label("pid").parse() == Ok(row.pid)
        });
        if let Some(row) = row {
            row.off_cpu_ns = Some(row.off_cpu_ns.unwrap_or(0) + nanos(sample.value));
        }
    }
    let waits = "gpucause_offcpu_duration_seconds";
    for ([pid, comm, role, reason], histogram) in
        histograms(page, waits, ["pid", "comm", "role", "reason"])
    {
        // The sum of the other reasons.
        if reason == "all" {
            continue;
        }
        let what = format!("{reason} ({role})");
        found.waits.push(of_histogram((&pid, comm, what), &histogram));
    }
    for row in found.calls.iter().chain(&found.waits) {
        found.pids.insert(row.pid);
        found.names.insert(row.comm.clone());
    }
}

fn of_histogram((pid, comm, what): (&str, String, String), own: &Histogram) -> Row {
    let quantiles = [0.5, 0.99].map(|share| own.quantile(share));
    let upper = quantiles.map(|edges| edges.map(|(_, upper)| upper).filter(|own| own.is_finite()));
    let [p50_ns, p99_ns] = upper.map(|edge| edge.map(nanos));
    let lower = quantiles.map(|edges| edges.map(|(lower, _)| lower).filter(|own| *own > 0.0));
    Row {
        node: String::new(),
        pid: pid.parse().unwrap_or(0),
        comm,
        what,
        api: None,
        cold: None,
        count: own.count as u64,
        sum_ns: nanos(own.sum),
        p50_ns,
        p99_ns,
        above_ns: lower.map(|edge| edge.map(nanos)),
        max_ns: None,
        off_cpu_ns: None,
        sample_of: None,
    }
}

fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_of_buckets_has_both_edges_where_they_are_known() {
        let labels =
            "pid=\"7\",comm=\"t\",api=\"runtime\",op=\"cudaStreamSynchronize\",cold=\"false\"";
        let mut page = String::new();
        for (edge, below) in [("0.002", 1), ("0.004", 90), ("+Inf", 100)] {
            page += &format!(
                "gpucause_cuda_call_duration_seconds_bucket{{{labels},le=\"{edge}\"}} {below}\n"
            );
        }
        page += &format!("gpucause_cuda_call_duration_seconds_count{{{labels}}} 100\n");
        let mut found = Found::default();
        of_page(&page, &mut found);
        let row = json_row(&found.calls[0], "op", false);
        assert_eq!((&row["p50_above_us"], &row["p50_us"]), (&json!(2000.0), &json!(4000.0)));
        assert_eq!((&row["p99_above_us"], &row["p99_us"]), (&json!(4000.0), &Value::Null));
    }

    #[test]
    fn the_sum_of_all_reasons_is_no_reason_of_a_node() {
        let mut page = String::new();
        for reason in ["all", "futex"] {
            let labels = format!("pid=\"7\",comm=\"t\",role=\"dispatcher\",reason=\"{reason}\"");
            for (suffix, more, value) in
                [("bucket", ",le=\"+Inf\"", "5"), ("sum", "", "0.5"), ("count", "", "5")]
            {
                page += &format!(
                    "gpucause_offcpu_duration_seconds_{suffix}{{{labels}{more}}} {value}\n"
                );
            }
        }
        let mut found = Found::default();
        of_page(&page, &mut found);
        let waits: Vec<_> = found.waits.iter().map(|row| (&*row.what, row.count)).collect();
        assert_eq!(waits, [("futex (dispatcher)", 5)]);
    }
}
