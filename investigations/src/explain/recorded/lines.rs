//! The rows of the report's tables.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;

use gpucause_abi::Nanos;
use gpucause_abi::state::{Phase, Reason, Role, State};

use super::processes::{Processes, Span};
use super::thread_time::ThreadTime;
use crate::explain::report::{BetweenLine, CallLine, SessionLine, StackLine, ThreadLine, WaitLine};
use crate::stack_costs::{Cost, Origin, StackCosts};
use gpucause_trace::recording::{
    CallStatistics, Completeness, Filter, Kind, NodeIndex, ProcessIndex, Recording, RecordingError,
    Session, WaitStatistics,
};

/// Stacks listed of a node.
const MOST_STACKS: usize = 20;
/// Stacks read of a node, the costliest: most read like others.
const MOST_STACKS_READ: usize = 2_000;
/// Events between two reports of progress.
const PROGRESS_STEP: u64 = 4096;
/// Frames listed of a stack.
const MOST_FRAMES: usize = 32;

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

pub(super) fn unix_seconds(ns: i64) -> f64 {
    ns as f64 / 1e9
}

pub(super) fn node_of(recording: &dyn Recording, process: ProcessIndex) -> Option<NodeIndex> {
    recording.process_at(process).map(|process| process.node)
}

/// PID and name.
fn named(recording: &dyn Recording, process: ProcessIndex) -> (u32, String) {
    let process = recording.process_at(process);
    process.map_or((0, "unknown".into()), |process| (process.pid, process.comm.clone()))
}

pub(super) fn sessions(recording: &dyn Recording) -> Vec<SessionLine> {
    let line = |session: &Session| SessionLine {
        node: recording.node_name(session.node).to_owned(),
        recorder: session.recorder.clone(),
        from: unix_seconds(session.started_ns),
        until: session.ended_ns.map(unix_seconds),
        details: session.details.clone(),
    };
    recording.sessions().iter().map(line).collect()
}

pub(super) fn call(recording: &dyn Recording, call: &CallStatistics, events: u64) -> CallLine {
    let (pid, comm) = named(recording, call.process);
    let durations = &call.durations;
    CallLine {
        pid,
        comm,
        op: call.op.to_string(),
        cold: call.cold,
        count: durations.count,
        events,
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

/// By process and reason, the longest first. Without helper threads, which sleep all the time, where the recording knows roles.
pub(super) fn waits<'a>(
    recording: &dyn Recording,
    waits: impl Iterator<Item = &'a WaitStatistics>,
    recorded: impl Fn(ProcessIndex) -> f64,
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
                share_of_recorded: 0.0,
                max_seconds: 0.0,
                is_sample: false,
            }
        });
        line.count = line.count.saturating_add(wait.durations.count);
        line.seconds += seconds(wait.durations.sum_ns);
        line.max_seconds = line.max_seconds.max(seconds(wait.durations.max_ns));
        line.is_sample |= wait.durations.completeness != Completeness::Exact;
    }
    for ((process, _), line) in &mut lines {
        let recorded = recorded(*process);
        line.share_of_recorded = if recorded > 0.0 { line.seconds / recorded } else { 0.0 };
    }
    let mut lines: Vec<_> = lines.into_values().collect();
    lines.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    lines
}

type Threads = BTreeMap<(ProcessIndex, u32), ThreadTime>;

/// Data collected from the events.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Start of the first event and end of the last, by process.
    pub(super) spans: BTreeMap<ProcessIndex, Span>,
    pub(super) threads: Threads,
    pub(super) stacks: StackCosts,
    /// Number of calls by process, function, and whether they are first launches of a kernel.
    calls: BTreeMap<(ProcessIndex, Arc<str>, bool), u64>,
}

fn extend<K: Ord>(spans: &mut BTreeMap<K, Span>, key: K, (start, end): Span) {
    let span = spans.entry(key).or_insert((start, end));
    *span = (span.0.min(start), span.1.max(end));
}

impl Seen {
    /// Start of the first event and end of the last, by node.
    pub(super) fn spans_of_nodes(&self, recording: &dyn Recording) -> BTreeMap<NodeIndex, Span> {
        let mut nodes = BTreeMap::new();
        for (process, span) in &self.spans {
            if let Some(node) = node_of(recording, *process) {
                extend(&mut nodes, node, *span);
            }
        }
        nodes
    }

    pub(super) fn read(
        recording: &dyn Recording,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, RecordingError> {
        let mut seen = Self::default();
        let mut events = 0_u64;
        let Self { spans, threads, stacks, calls } = &mut seen;
        recording.events(&Filter::default(), &mut |event| {
            events += 1;
            if events.is_multiple_of(PROGRESS_STEP) {
                progress(events);
            }
            let (start, end) = (event.start_ns, event.end_ns());
            extend(spans, event.process, (start, end));
            stacks.add(event);
            let thread = (event.process, event.tid);
            if let Kind::Call(call) = &event.kind {
                let key = (event.process, Arc::clone(&call.op), call.cold == Some(true));
                *calls.entry(key).or_default() += 1;
            }
            match &event.kind {
                Kind::Call(call) if call.outermost => {
                    threads.entry(thread).or_default().call(start, end);
                }
                Kind::OffCpu(_) => threads.entry(thread).or_default().wait(start, end),
                _ => {}
            }
            ControlFlow::Continue(())
        })?;
        Ok(seen)
    }

    /// Number of calls that are events of the file.
    pub(super) fn calls(&self, processes: &Processes, of: &CallStatistics) -> u64 {
        let is_own = |(process, op, cold): &(ProcessIndex, Arc<str>, bool)| {
            processes.counted_as(*process) == Some(of.process)
                && *op == of.op
                && of.cold.is_none_or(|own| own == *cold)
        };
        self.calls.iter().filter(|(key, _)| is_own(key)).map(|(_, count)| count).sum()
    }
}

/// Returns how dispatcher threads spent the time between calls, the longest first.
pub(super) fn between_calls(
    recording: &dyn Recording,
    processes: &Processes,
    is_shown: impl Fn(ProcessIndex) -> bool,
) -> Vec<BetweenLine> {
    let own = processes
        .dispatcher_time()
        .into_iter()
        .filter(|(process, time)| is_shown(*process) && time.total() > Nanos(0));
    let mut lines: Vec<_> = own
        .map(|(process, time)| {
            let (pid, comm) = named(recording, process);
            let all = State::all().map(|state| time.at(Phase::Host, state).as_secs_f64()).sum();
            let running = time.at(Phase::Host, State::Running).as_secs_f64();
            BetweenLine {
                pid,
                comm,
                dispatcher_seconds: time.total().as_secs_f64(),
                between_seconds: all,
                off_cpu_seconds: all - running,
            }
        })
        .collect();
    lines.sort_by(|a, b| b.between_seconds.total_cmp(&a.between_seconds));
    lines
}

pub(super) fn stacks(
    recording: &dyn Recording,
    stacks: &[(Origin, Cost)],
    is_shown: impl Fn(ProcessIndex) -> bool,
) -> Result<Vec<StackLine>, RecordingError> {
    let own = stacks.iter().filter(|((_, process, _), _)| is_shown(*process));
    // Stacks that differ only in addresses read alike.
    let mut lines: HashMap<(ProcessIndex, &str, Vec<String>), Cost> = HashMap::new();
    for ((stack, process, op), cost) in own.take(MOST_STACKS_READ) {
        let frames = recording.stack(*stack)?.unwrap_or_default().lines(MOST_FRAMES);
        lines.entry((*process, op, frames)).or_default().merge(cost);
    }
    let line = |((process, op, frames), cost): ((_, &str, _), Cost)| {
        let (pid, comm) = named(recording, process);
        StackLine {
            pid,
            comm,
            op: op.to_owned(),
            count: cost.count,
            sum_seconds: seconds(cost.sum_ns),
            max_seconds: seconds(cost.max_ns),
            frames,
        }
    };
    let mut lines: Vec<_> = lines.into_iter().map(line).collect();
    lines.sort_by(|a, b| {
        let longest = b.sum_seconds.total_cmp(&a.sum_seconds);
        longest.then_with(|| (a.pid, &a.op, &a.frames).cmp(&(b.pid, &b.op, &b.frames)))
    });
    lines.truncate(MOST_STACKS);
    Ok(lines)
}

/// Threads with at least two calls, by the time between them, the longest first.
pub(super) fn threads(
    recording: &dyn Recording,
    threads: &Threads,
    processes: &Processes,
    is_shown: impl Fn(ProcessIndex) -> bool,
) -> Vec<ThreadLine> {
    let mut all: HashMap<(ProcessIndex, u32), ThreadLine> = HashMap::new();
    for (&(process, tid), thread) in threads {
        let Some(same) = processes.counted_as(process) else { continue };
        if thread.calls() < 2 || !is_shown(same) {
            continue;
        }
        let (pid, comm) = named(recording, same);
        let line = all.entry((same, tid)).or_insert_with(|| ThreadLine {
            pid,
            tid,
            comm: recording.thread_name(process, tid).map_or(comm, str::to_owned),
            calls: 0,
            span_seconds: 0.0,
            host_gap_seconds: 0.0,
            longest_gap_seconds: 0.0,
            off_cpu_in_gaps_seconds: None,
        });
        // The time between two runs of a recorder is in none of them.
        line.calls += thread.calls();
        line.span_seconds += seconds(thread.span_ns());
        line.host_gap_seconds += seconds(thread.gaps_ns());
        line.longest_gap_seconds = line.longest_gap_seconds.max(seconds(thread.longest_gap_ns()));
        if let Some(off_cpu) = thread.off_cpu_in_gaps_ns() {
            *line.off_cpu_in_gaps_seconds.get_or_insert(0.0) += seconds(off_cpu);
        }
    }
    let mut lines: Vec<_> = all.into_values().collect();
    lines.sort_by(|a, b| {
        let longest = b.host_gap_seconds.total_cmp(&a.host_gap_seconds);
        longest.then_with(|| (a.pid, a.tid).cmp(&(b.pid, b.tid)))
    });
    lines
}
