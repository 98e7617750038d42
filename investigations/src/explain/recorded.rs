//! The incident report of a trace file.

mod lines;
mod thread_time;

use std::path::Path;

use serde::Serialize;

use super::{ChainFilter, Incident, is_reportable};
use crate::observation::{Observed, Outcome};
use crate::recording::{Completeness, Durations, NodeIndex, Recording, RecordingError};
use lines::{Seen, unix_seconds};

/// The report of a trace file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The worst outcome of its nodes.
    pub outcome: Outcome,
    /// The file.
    pub file: TraceFile,
    /// Each node.
    pub nodes: Vec<NodeReport>,
}

/// The trace file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TraceFile {
    /// Its path.
    pub path: String,
    /// Format and version, such as `gpucause trace, schema 1`.
    pub format: String,
    /// Events in it.
    pub events: u64,
    /// Events dropped because a buffer was full, where they were counted.
    pub lost_events: Option<u64>,
    /// Whether some statistics cover more events than are stored: their percentiles are of a sample.
    pub is_sample: bool,
    /// The recorder's runs.
    pub sessions: Vec<SessionLine>,
}

/// One run of a recorder.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SessionLine {
    /// The node.
    pub node: String,
    /// Program and version.
    pub recorder: String,
    /// Start in seconds since the Unix epoch.
    pub from: f64,
    /// End; `None` when the recorder was killed.
    pub until: Option<f64>,
    /// Further names and values.
    pub details: Vec<(String, String)>,
}

/// A node of the file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeReport {
    /// Its incident.
    #[serde(flatten)]
    pub incident: Incident,
    /// Start of the first event, in seconds since the Unix epoch.
    pub from: Option<f64>,
    /// End of the last event.
    pub until: Option<f64>,
    /// Calls, by process and function.
    pub calls: Vec<CallLine>,
    /// Off-CPU time, by process and reason, summed over threads.
    pub waits: Vec<WaitLine>,
    /// Threads that make calls.
    pub threads: Vec<ThreadLine>,
    /// Call stacks of the stored calls, by total time, the longest first.
    pub stacks: Vec<StackLine>,
}

/// Calls of one function from one stack.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StackLine {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// The function.
    pub op: String,
    /// Number of stored calls with this stack.
    pub count: u64,
    /// Sum.
    pub sum_seconds: f64,
    /// The longest.
    pub max_seconds: f64,
    /// The innermost frame first; the native frames, then those of Python.
    pub frames: Vec<String>,
}

/// Calls of one function by one process.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CallLine {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// The function.
    pub op: String,
    /// Whether these are first launches of a kernel; `None` where they are not counted separately.
    pub cold: Option<bool>,
    /// Number of calls.
    pub count: u64,
    /// Number of stored calls, which the percentiles cover, where not all are stored.
    pub stored: Option<u64>,
    /// Sum.
    pub sum_seconds: f64,
    /// The median.
    pub p50_seconds: Option<f64>,
    /// The 99th percentile.
    pub p99_seconds: Option<f64>,
    /// The longest.
    pub max_seconds: f64,
}

/// Off-CPU time of one process for one reason.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WaitLine {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// Label of the reason, or `not recorded`.
    pub reason: &'static str,
    /// Number of waits.
    pub count: u64,
    /// Sum.
    pub seconds: f64,
    /// Share of the node's time span; above 1 where several threads waited.
    pub share_of_span: f64,
    /// The longest.
    pub max_seconds: f64,
    /// Whether some waits were counted but not stored.
    pub is_sample: bool,
}

/// The time of a thread that makes calls, by the stored events.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ThreadLine {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Its name, else that of its process.
    pub comm: String,
    /// Number of outermost calls.
    pub calls: usize,
    /// From the first call to the end of the last.
    pub span_seconds: f64,
    /// Time between calls.
    pub host_gap_seconds: f64,
    /// The longest time between two calls.
    pub longest_gap_seconds: f64,
    /// Off-CPU time between calls; `None` where the file has no waits of the thread.
    pub off_cpu_in_gaps_seconds: Option<f64>,
}

impl Report {
    /// Of a trace file.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn of(path: &Path, recording: &dyn Recording) -> Result<Self, RecordingError> {
        Self::filtered(path, recording, &ChainFilter::default())
    }

    /// Of the chains that the filter selects.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn filtered(
        path: &Path,
        recording: &dyn Recording,
        filter: &ChainFilter,
    ) -> Result<Self, RecordingError> {
        Self::read(path, recording, filter, &mut |_| {})
    }

    /// The same; `progress` is called with the number of events read.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn read(
        path: &Path,
        recording: &dyn Recording,
        filter: &ChainFilter,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, RecordingError> {
        let mut chains = recording.chains()?;
        let (calls, waits) = (recording.calls()?, recording.waits()?);
        let mut seen = Seen::read(recording, progress)?;
        let stacks = std::mem::take(&mut seen.stacks).ranked();
        let is_sample = |durations: &Durations| durations.completeness != Completeness::Exact;
        let sampled = calls.iter().map(|call| &call.durations);
        let sampled = sampled.chain(waits.iter().map(|wait| &wait.durations)).any(is_sample);
        let mut nodes = Vec::new();
        for (index, node) in (0u16..).map(NodeIndex).zip(recording.nodes()) {
            let (own, others): (Vec<_>, _) = chains.into_iter().partition(|c| c.node == index);
            chains = others;
            let own = own.into_iter().map(|chain| chain.chain).filter(is_reportable).collect();
            let span = seen.spans.remove(&index);
            let last = span.map(|(_, until)| unix_seconds(until));
            let observation =
                Observed::of_recording(recording, index, last, (filter.from, filter.until))?;
            let incident = Incident::selected(node.name.clone(), own, observation, *filter);
            let length = span.map_or(0, |(from, until)| until.abs_diff(from));
            let is_own = |process| lines::node_of(recording, process) == Some(index);
            let own_calls = calls.iter().filter(|call| is_own(call.process));
            let own_waits = waits.iter().filter(|wait| is_own(wait.process));
            nodes.push(NodeReport {
                incident,
                from: span.map(|(from, _)| unix_seconds(from)),
                until: last,
                calls: own_calls.map(|call| lines::call(recording, call)).collect(),
                waits: lines::waits(recording, own_waits, length),
                threads: lines::threads(recording, &seen.threads, index),
                stacks: lines::stacks(recording, &stacks, index)?,
            });
        }
        let lost = recording.sessions().iter().filter_map(|session| session.lost_events);
        let outcomes = nodes.iter().map(|node| node.incident.outcome);
        Ok(Self {
            outcome: outcomes.max().unwrap_or(Outcome::NotObserved),
            file: TraceFile {
                path: path.display().to_string(),
                format: recording.format(),
                events: recording.event_count()?,
                lost_events: lost.reduce(u64::saturating_add),
                is_sample: sampled,
                sessions: lines::sessions(recording),
            },
            nodes,
        })
    }
}
