//! The incident report of a trace file: what it is, what it holds, and what happened on each of its nodes.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use gpucause_abi::state::{Reason, Role};
use serde::Serialize;

use super::{Incident, Wanted, says_something};
use crate::observation::{Observed, Outcome};
use crate::recording::{
    CallStatistics, Completeness, Durations, Filter, Kind, NodeIndex, ProcessIndex, Recording,
    RecordingError, WaitStatistics,
};
use crate::stack_costs::{Cost, Origin, StackCosts};

/// What is told of a trace file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// What holds of all nodes.
    pub outcome: Outcome,
    /// The file.
    pub file: TraceFile,
    /// Each node.
    pub nodes: Vec<NodeReport>,
}

/// What the file is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TraceFile {
    /// Where it is.
    pub path: String,
    /// What it is, such as `gpucause trace, schema 1`.
    pub format: String,
    /// Events that it holds.
    pub events: u64,
    /// Events that were lost for want of room, where they were counted.
    pub lost_events: Option<u64>,
    /// Whether some numbers are of more events than the file holds: their percentiles are those of a sample.
    pub is_sample: bool,
    /// The recorder's runs.
    pub sessions: Vec<SessionLine>,
}

/// One run of a recorder.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SessionLine {
    /// The node.
    pub node: String,
    /// What recorded.
    pub recorder: String,
    /// Since when, in seconds since the Unix epoch.
    pub from: f64,
    /// Until when; `None` when it was killed.
    pub until: Option<f64>,
    /// What else is known of it.
    pub details: Vec<(String, String)>,
}

/// What happened on a node of the file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeReport {
    /// The chains and what came of them.
    #[serde(flatten)]
    pub incident: Incident,
    /// The first event, in seconds since the Unix epoch.
    pub from: Option<f64>,
    /// The end of the last.
    pub until: Option<f64>,
    /// Calls, by process and function.
    pub calls: Vec<CallLine>,
    /// Time off the CPU, by process and reason; that of its threads together.
    pub waits: Vec<WaitLine>,
    /// Threads that make calls.
    pub threads: Vec<ThreadLine>,
    /// From where calls were made that have their stack in the file, those first that took most time.
    pub stacks: Vec<StackLine>,
}

/// Calls of one function from one place.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StackLine {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// The function.
    pub op: String,
    /// How many calls of it are in the file with this stack.
    pub count: u64,
    /// All together.
    pub sum_seconds: f64,
    /// The longest.
    pub max_seconds: f64,
    /// From where, the innermost frame first; the native frames, then those of Python.
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
    /// Whether these are first launches of a kernel, where that is told apart.
    pub cold: Option<bool>,
    /// How many there were.
    pub count: u64,
    /// How many of them are in the file, where not all are: percentiles are of these.
    pub stored: Option<u64>,
    /// All together.
    pub sum_seconds: f64,
    /// The median.
    pub p50_seconds: Option<f64>,
    /// 99 in 100 were no longer.
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
    /// Why; `not recorded` where the file does not tell.
    pub reason: &'static str,
    /// How many waits.
    pub count: u64,
    /// All together.
    pub seconds: f64,
    /// Share of the node's span; more than 1 where several threads waited.
    pub share_of_span: f64,
    /// The longest.
    pub max_seconds: f64,
    /// Whether some were counted and are not in the file.
    pub is_sample: bool,
}

/// What a thread that makes calls did with its time, by the events that are in the file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ThreadLine {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Its name, or that of its process.
    pub comm: String,
    /// Outermost calls.
    pub calls: usize,
    /// From the first to the end of the last.
    pub span_seconds: f64,
    /// Time between them.
    pub host_gap_seconds: f64,
    /// The longest stretch of it.
    pub longest_gap_seconds: f64,
    /// How much of that time it was off the CPU; `None` where the file has no waits of it.
    pub off_cpu_in_gaps_seconds: Option<f64>,
}

/// Stacks that are told of a node.
const MOST_STACKS: usize = 20;
/// Frames that are told of each.
const MOST_FRAMES: usize = 32;

/// What was seen of a thread.
#[derive(Debug, Default)]
struct Thread {
    calls: Vec<(i64, i64)>,
    off: Vec<(i64, i64)>,
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn moment(ns: i64) -> f64 {
    ns as f64 / 1e9
}

impl Report {
    /// Of a trace file.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn of(path: &Path, recording: &dyn Recording) -> Result<Self, RecordingError> {
        Self::of_wanted(path, recording, &Wanted::default())
    }

    /// Tells of the chains in a recording that are asked for.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn of_wanted(
        path: &Path,
        recording: &dyn Recording,
        wanted: &Wanted,
    ) -> Result<Self, RecordingError> {
        let mut chains = recording.chains()?;
        let (calls, waits) = (recording.calls()?, recording.waits()?);
        let Seen { mut spans, threads, stacks } = observe(recording)?;
        let stacks = stacks.ranked();
        let is_sample = |durations: &Durations| durations.completeness != Completeness::Exact;
        let sampled = calls.iter().map(|call| &call.durations);
        let sampled = sampled.chain(waits.iter().map(|wait| &wait.durations)).any(is_sample);
        let mut nodes = Vec::new();
        for (index, node) in (0u16..).map(NodeIndex).zip(recording.nodes()) {
            let (own, others): (Vec<_>, _) = chains.into_iter().partition(|c| c.node == index);
            chains = others;
            let own = own.into_iter().map(|chain| chain.chain).filter(says_something).collect();
            let (own, left_out) = wanted.of(own);
            let span = spans.remove(&index);
            let last = span.map(|(_, until)| moment(until));
            let observation = Observed::of_recording(recording, index, last)?;
            let incident =
                Incident { left_out, ..Incident::of(node.name.clone(), own, observation) };
            let length = span.map_or(0, |(from, until)| until.abs_diff(from));
            let is_own = |process| node_of(recording, process) == Some(index);
            nodes.push(NodeReport {
                incident,
                from: span.map(|(from, _)| moment(from)),
                until: span.map(|(_, until)| moment(until)),
                calls: calls
                    .iter()
                    .filter(|c| is_own(c.process))
                    .map(|c| call_line(recording, c))
                    .collect(),
                waits: wait_lines(recording, waits.iter().filter(|w| is_own(w.process)), length),
                threads: thread_lines(recording, &threads, index),
                stacks: stack_lines(recording, &stacks, index)?,
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
                sessions: session_lines(recording),
            },
            nodes,
        })
    }
}

fn node_of(recording: &dyn Recording, process: ProcessIndex) -> Option<NodeIndex> {
    let at = usize::try_from(process.0).ok()?;
    recording.processes().get(at).map(|process| process.node)
}

/// PID and name.
fn named(recording: &dyn Recording, process: ProcessIndex) -> (u32, String) {
    let at = usize::try_from(process.0).ok();
    let process = at.and_then(|at| recording.processes().get(at));
    process.map_or((0, "unknown".into()), |process| (process.pid, process.comm.clone()))
}

fn session_lines(recording: &dyn Recording) -> Vec<SessionLine> {
    let line = |session: &crate::recording::Session| SessionLine {
        node: recording
            .nodes()
            .get(usize::from(session.node.0))
            .map(|node| node.name.clone())
            .unwrap_or_default(),
        recorder: session.recorder.clone(),
        from: moment(session.started_ns),
        until: session.ended_ns.map(moment),
        details: session.details.clone(),
    };
    recording.sessions().iter().map(line).collect()
}

fn call_line(recording: &dyn Recording, call: &CallStatistics) -> CallLine {
    let (pid, comm) = named(recording, call.process);
    let durations = &call.durations;
    CallLine {
        pid,
        comm,
        op: call.op.to_string(),
        cold: call.cold,
        count: durations.count,
        stored: match durations.completeness {
            Completeness::Exact => None,
            Completeness::Sample { stored } => Some(stored),
        },
        sum_seconds: seconds(durations.sum_ns),
        p50_seconds: durations.p50_ns.map(seconds),
        p99_seconds: durations.p99_ns.map(seconds),
        max_seconds: seconds(durations.max_ns),
    }
}

/// Of each process and reason, the longest first. Where threads are told apart, of those that make calls, or are workers: others
/// sleep all the time.
fn wait_lines<'a>(
    recording: &dyn Recording,
    waits: impl Iterator<Item = &'a WaitStatistics>,
    span_ns: u64,
) -> Vec<WaitLine> {
    let mut lines: BTreeMap<_, WaitLine> = BTreeMap::new();
    for wait in waits.filter(|wait| wait.role != Some(Role::Helper)) {
        let line = lines.entry((wait.process, wait.reason)).or_insert_with(|| {
            let (pid, comm) = named(recording, wait.process);
            WaitLine {
                pid,
                comm,
                reason: wait.reason.map_or("not recorded", Reason::label),
                count: 0,
                seconds: 0.0,
                share_of_span: 0.0,
                max_seconds: 0.0,
                is_sample: false,
            }
        });
        line.count = line.count.saturating_add(wait.durations.count);
        line.seconds += seconds(wait.durations.sum_ns);
        line.max_seconds = line.max_seconds.max(seconds(wait.durations.max_ns));
        line.is_sample |= wait.durations.completeness != Completeness::Exact;
    }
    let mut lines: Vec<_> = lines.into_values().collect();
    for line in &mut lines {
        line.share_of_span = if span_ns == 0 { 0.0 } else { line.seconds / seconds(span_ns) };
    }
    lines.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    lines
}

/// Begin of the first event and end of the last.
type Spans = BTreeMap<NodeIndex, (i64, i64)>;
type Threads = BTreeMap<(ProcessIndex, u32), Thread>;

/// What all events tell.
#[derive(Debug, Default)]
struct Seen {
    spans: Spans,
    threads: Threads,
    stacks: StackCosts,
}

/// Looks at every event once.
fn observe(recording: &dyn Recording) -> Result<Seen, RecordingError> {
    let mut seen = Seen::default();
    let Seen { spans, threads, stacks } = &mut seen;
    recording.events(&Filter::default(), &mut |event| {
        let span = spans.entry(event.id.node).or_insert((event.start_ns, event.end_ns()));
        *span = (span.0.min(event.start_ns), span.1.max(event.end_ns()));
        let stretch = (event.start_ns, event.end_ns());
        stacks.add(event);
        match &event.kind {
            Kind::Call(call) if call.outermost => {
                threads.entry((event.process, event.tid)).or_default().calls.push(stretch);
            }
            Kind::OffCpu(_) => {
                threads.entry((event.process, event.tid)).or_default().off.push(stretch);
            }
            _ => {}
        }
        ControlFlow::Continue(())
    })?;
    Ok(seen)
}

fn stack_lines(
    recording: &dyn Recording,
    stacks: &[(Origin, Cost)],
    node: NodeIndex,
) -> Result<Vec<StackLine>, RecordingError> {
    let own =
        stacks.iter().filter(|((_, process, _), _)| node_of(recording, *process) == Some(node));
    let line = |((stack, process, op), cost): &(Origin, Cost)| {
        let (pid, comm) = named(recording, *process);
        let stack = recording.stack(*stack)?.unwrap_or_default();
        Ok(StackLine {
            pid,
            comm,
            op: op.to_string(),
            count: cost.count,
            sum_seconds: seconds(cost.sum_ns),
            max_seconds: seconds(cost.max_ns),
            frames: stack.lines(MOST_FRAMES),
        })
    };
    own.take(MOST_STACKS).map(line).collect()
}

/// Threads that made at least two calls, that with the largest gaps first.
fn thread_lines(recording: &dyn Recording, threads: &Threads, node: NodeIndex) -> Vec<ThreadLine> {
    let mut lines = Vec::new();
    for (&(process, tid), thread) in threads {
        let [first, .., last] = &thread.calls[..] else { continue };
        if node_of(recording, process) != Some(node) {
            continue;
        }
        let (pid, comm) = named(recording, process);
        let (mut gaps, mut longest, mut off) = (0u64, 0u64, 0u64);
        let mut at = 0;
        for pair in thread.calls.windows(2) {
            let (from, to) = (pair[0].1, pair[1].0);
            let Ok(length) = u64::try_from(to.saturating_sub(from)) else { continue };
            gaps = gaps.saturating_add(length);
            longest = longest.max(length);
            while thread.off.get(at).is_some_and(|wait| wait.1 <= from) {
                at += 1;
            }
            let waits = thread.off[at..].iter().take_while(|wait| wait.0 < to);
            let time =
                |wait: &(i64, i64)| u64::try_from(wait.1.min(to) - wait.0.max(from)).unwrap_or(0);
            off = waits.map(time).fold(off, u64::saturating_add);
        }
        lines.push(ThreadLine {
            pid,
            tid,
            comm: recording.thread_name(process, tid).map_or(comm, str::to_owned),
            calls: thread.calls.len(),
            span_seconds: seconds(last.1.abs_diff(first.0)),
            host_gap_seconds: seconds(gaps),
            longest_gap_seconds: seconds(longest),
            off_cpu_in_gaps_seconds: (!thread.off.is_empty()).then(|| seconds(off.min(gaps))),
        });
    }
    lines.sort_by(|a, b| b.host_gap_seconds.total_cmp(&a.host_gap_seconds));
    lines
}
