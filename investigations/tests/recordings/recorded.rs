//! Reports of trace files: the processes and the time that their chains and rows are of.

mod merged;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpucause_abi::hist::{Histogram, SLOTS, slot_of};
use gpucause_abi::op::{Api, OpId};
use gpucause_abi::snapshot::{CallSnapshot, Comm, ProcessSnapshot, Snapshot};
use gpucause_abi::state::{Phase, Reason, Role, State};
use gpucause_abi::{Nanos, ProcId, Tgid};
use gpucause_engine::EngineInput;
use gpucause_engine::chain::{
    Cause, Chain, Course, Culprit, Effect, Evidence, Loss, Severity, Victim,
};
use gpucause_investigations::any_format::open;
use gpucause_investigations::chain_filter::ChainFilter;
use gpucause_investigations::explain::{Report, html, markdown, render_report};
use gpucause_trace::recording::{PIDS, Stack, StackFrame};
use gpucause_trace::trace::{NewCall, NewEvent, NewKind, Start, Writer};

const SECOND: u64 = 1_000_000_000;
const BEGIN: i64 = 1_700_000_000_000_000_000;

/// So many of this duration.
fn durations(count: u64, each: u64) -> Histogram {
    let slot = slot_of(Nanos(each));
    let slots = (0..SLOTS).map(|own| if own == slot { count } else { 0 });
    Histogram::from_slots(Nanos(count * each), Nanos(each), slots)
}

fn call(op: &'static str, cold: Option<bool>) -> NewCall<'static> {
    NewCall {
        api: Api::Runtime,
        op,
        cold,
        outermost: true,
        code: 0,
        off_cpu_ns: None,
        bytes: None,
        copy: None,
        kernel: None,
    }
}

/// A process with calls of a duration, and one wait for a lock.
#[derive(Clone, Copy)]
struct Process {
    id: u32,
    pid: u32,
    comm: &'static str,
    started: u64,
    calls: (u64, u64),
    waited: u64,
    /// When it was first seen and when it ended, in seconds after the run began.
    life: (u64, Option<u64>),
}

const TRAINER: Process = Process {
    id: 1,
    pid: 42,
    comm: "trainer",
    started: 7,
    calls: (10, 1_000),
    waited: SECOND,
    life: (0, None),
};

impl Process {
    fn snapshot(&self) -> ProcessSnapshot {
        let mut name = [0; 16];
        name[..self.comm.len()].copy_from_slice(self.comm.as_bytes());
        let mut own = ProcessSnapshot::new(ProcId(self.id), Tgid(self.pid), Comm(name));
        own.started_boottime = Nanos(self.started);
        own.first_seen = Nanos(self.life.0 * SECOND);
        own.ended = self.life.1.map(|seconds| Nanos(seconds * SECOND));
        let (count, each) = self.calls;
        own.calls = vec![CallSnapshot::unstalled(OpId(0), false, durations(count, each))];
        own.offcpu = vec![(Role::Dispatcher, Reason::Futex, durations(1, self.waited))];
        let time = &mut own.dispatcher_time.0;
        time[Phase::Host as usize][State::Running.index()] = Nanos(3 * SECOND);
        time[Phase::Host as usize][State::Off(Reason::Futex).index()] = Nanos(SECOND);
        time[Phase::Launch as usize][State::Running.index()] = Nanos(4 * SECOND);
        own
    }
}

/// A run of ten seconds that begins that long after the first: its processes, each with two calls of 1 ms a second apart.
fn record(
    path: &Path,
    after_seconds: i64,
    pids: &str,
    processes: &[Process],
    chains: &[Chain],
) -> PathBuf {
    let second = SECOND as i64;
    let started_ns = BEGIN + after_seconds * second;
    let start = Start {
        node: "gpu-1".into(),
        recorder: "test".into(),
        started_ns,
        details: vec![(PIDS.into(), pids.into())],
        ..Start::default()
    };
    let mut writer = Writer::create(path, &start).unwrap();
    for own in processes {
        let process = writer.process(ProcId(own.id), Tgid(own.pid), own.comm).unwrap();
        let call = call("cudaLaunchKernel", Some(false));
        let event = |at: i64| NewEvent {
            start_ns: started_ns + at * second,
            duration_ns: 1_000_000,
            process,
            tid: own.pid,
            kind: NewKind::Call(call),
            stack: None,
        };
        writer.add_events([event(3), event(4)]).unwrap();
    }
    let processes = processes.iter().map(Process::snapshot).collect();
    let taken_at = Nanos(10 * SECOND);
    let snapshot = Snapshot { taken_at, processes, ..Snapshot::default() };
    let at = (started_ns / second + 10) as f64;
    writer.add_snapshot(&EngineInput::new(Arc::new(snapshot), at), chains).unwrap();
    writer.finish().unwrap();
    let file = rusqlite::Connection::open(path).unwrap();
    let ended = "UPDATE sessions SET ended_ns = started_ns + 10000000000";
    file.execute(ended, []).unwrap();
    path.to_owned()
}

fn chain(victim: (u32, &str), culprit: (u32, &str), seconds: f64) -> Chain {
    let at = BEGIN as f64 / 1e9;
    Chain {
        id: format!("{}-{}", victim.0, culprit.0),
        cause: Cause::CpuPreemption,
        effect: Effect::LaunchTail,
        severity: Severity::High,
        victim: Victim { pid: victim.0, tid: victim.0, comm: victim.1.into(), ..Victim::default() },
        culprit: Some(Culprit { pid: culprit.0, comm: culprit.1.into(), ..Culprit::default() }),
        explained: 1.0,
        lost_seconds: seconds,
        evidence: Evidence::default().with("calls", 1.0),
        path: Vec::new(),
        sentence: "It waited.".into(),
        fix: "Pin it.".into(),
        first_seen: at + 1.0,
        last_seen: at + 9.0,
        losses: Vec::new(),
        ongoing: None,
        code: Vec::new(),
        course: Course::default(),
    }
}

/// Three jobs and one that takes the CPU of two of them.
fn shared_host(path: &Path, pids: &str) -> PathBuf {
    let job = |id, pid, comm| Process { id, pid, comm, started: pid.into(), ..TRAINER };
    let all =
        [job(1, 42, "trainer"), job(2, 50, "neighbour"), job(3, 60, "idler"), job(4, 9, "hog")];
    let chains = [
        chain((50, "neighbour"), (9, "hog"), 5.0),
        chain((42, "trainer"), (9, "hog"), 3.0),
        chain((50, "neighbour"), (42, "trainer"), 1.0),
    ];
    record(path, 0, pids, &all, &chains)
}

fn report(path: &Path, pids: &[u32]) -> Report {
    let filter = ChainFilter { pids: pids.to_vec(), ..ChainFilter::default() };
    Report::filtered(path, &*open(path).unwrap(), &filter).unwrap()
}

/// PIDs in the tables of calls, waits and time between calls.
fn pids(report: &Report) -> [Vec<u32>; 3] {
    let recorded = report.nodes[0].recorded.as_ref().unwrap();
    let calls = recorded.calls.iter().map(|own| own.pid).collect();
    let waits = recorded.waits.iter().map(|own| own.pid).collect();
    let between = recorded.between_calls.iter().map(|own| own.pid).collect();
    [calls, waits, between].map(|mut own: Vec<_>| {
        own.sort_unstable();
        own
    })
}

#[test]
fn of_one_process_there_are_its_chains_and_rows_and_those_of_its_culprits() {
    let folder = tempfile::tempdir().unwrap();
    let whole = shared_host(&folder.path().join("whole.db"), "");
    let own = shared_host(&folder.path().join("own.db"), "42");
    assert_eq!(pids(&report(&whole, &[])), [const { &[9, 42, 50, 60] }; 3].map(Vec::from));
    for (report, not_shown) in [
        (report(&whole, &[42]), "causal chains excluded by the filter: 1\n"),
        (report(&own, &[]), "causal chains of processes that are not of record --pid: 1\n"),
    ] {
        assert_eq!(pids(&report), [const { &[9, 42] }; 3].map(Vec::from));
        let text = render_report(&report, true);
        assert!(text.contains(&format!("NOT SHOWN  {not_shown}")), "{text}");
        assert!(
            text.contains("ROOT CAUSE\n  cpu_preemption -> launch_tail  [high]  trainer (pid 42")
        );
        let (before, delays) = text.split_once("\nIT DELAYS OTHERS\n").unwrap();
        assert!(delays.contains("neighbour (pid 50") && !before.contains("neighbour"), "{text}");
        for text in [text, markdown::of(&report), html::of(&report)] {
            assert!(!text.contains("50-9") && !text.contains("idler"), "{text}");
            assert!(text.contains(not_shown.trim_end()), "{text}");
        }
    }
    let other = report(&own, &[50]);
    assert_eq!(pids(&other), [const { &[9, 42, 50] }; 3].map(Vec::from), "another is asked for");
    assert_eq!(other.nodes[0].incident.left_out, 1);
}

#[test]
fn chains_that_the_filter_excludes_are_not_said_to_be_of_processes_that_were_not_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let own = shared_host(&folder.path().join("own.db"), "42");
    let after = Some(BEGIN as f64 / 1e9 + 9.5);
    for filter in [
        ChainFilter { severity: Some(Severity::Critical), ..ChainFilter::default() },
        ChainFilter { from: after, ..ChainFilter::default() },
    ] {
        let report = Report::filtered(&own, &*open(&own).unwrap(), &filter).unwrap();
        assert_eq!(pids(&report), [const { &[42] }; 3].map(Vec::from), "still of the recorded one");
        for text in [render_report(&report, true), markdown::of(&report), html::of(&report)] {
            let text = text.to_lowercase();
            assert!(text.contains("causal chains excluded by the filter: 3"), "{text}");
            assert!(!text.contains("record --pid") && !text.contains("was recorded."), "{text}");
        }
    }
}

#[test]
fn time_between_calls_is_of_the_accounts_and_of_single_threads_only_where_every_call_is_stored() {
    let folder = tempfile::tempdir().unwrap();
    let whole =
        Process { id: 2, pid: 50, comm: "whole", started: 8, calls: (2, 1_000_000), ..TRAINER };
    let path = record(&folder.path().join("1.db"), 0, "", &[TRAINER, whole], &[]);
    let report = report(&path, &[]);
    let node = report.nodes[0].recorded.as_ref().unwrap();
    let between: Vec<_> = node
        .between_calls
        .iter()
        .map(|own| (own.dispatcher_seconds, own.between_seconds, own.off_cpu_seconds))
        .collect();
    assert_eq!(between, [(8.0, 4.0, 1.0); 2]);
    let threads: Vec<_> = node.threads.iter().map(|own| (&*own.comm, own.calls)).collect();
    assert_eq!(threads, [("whole", 2)], "10 calls of the trainer are counted, 2 are stored");
    let events: Vec<_> = node.calls.iter().map(|own| (own.count, own.events)).collect();
    assert_eq!(events, [(10, 2), (2, 2)]);
    let text = render_report(&report, false);
    assert!(text.contains("4.00 s (50.0 %)      1.00 s (25.0 %)\n"), "{text}");
    assert!(text.contains("percentiles are of all calls\n"), "{text}");
    for text in [markdown::of(&report), html::of(&report)] {
        for part in ["Between calls, of dispatcher threads", "4.00 s (50.0 %)", "by thread, of the"]
        {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
    }
}

#[test]
fn more_events_than_counted_calls_are_explained_below_their_table() {
    let folder = tempfile::tempdir().unwrap();
    let explained = |counted: u64| {
        let path = folder.path().join(format!("{counted}.db"));
        let own = Process { calls: (counted, 1_000_000), ..TRAINER };
        let text = render_report(&report(&record(&path, 0, "", &[own], &[]), &[]), false);
        text.contains("counts are of its last snapshot")
    };
    assert!(explained(1) && !explained(2));
}

#[test]
fn waits_are_shares_of_the_time_in_which_their_process_was_observed() {
    let folder = tempfile::tempdir().unwrap();
    let ended = Process { id: 2, pid: 50, started: 8, life: (3, Some(5)), ..TRAINER };
    let path = record(&folder.path().join("1.db"), 0, "", &[TRAINER, ended], &[]);
    let report = report(&path, &[]);
    let waits = report.nodes[0].recorded.as_ref().unwrap().waits.iter();
    let mut shares: Vec<_> = waits.map(|own| (own.pid, own.share_of_recorded)).collect();
    shares.sort_by_key(|own| own.0);
    assert_eq!(shares, [(42, 0.1), (50, 0.5)]);
}

#[test]
fn rows_of_the_asked_process_come_first_and_those_of_its_culprits_are_marked() {
    let folder = tempfile::tempdir().unwrap();
    let job =
        |id, pid, comm, waited| Process { id, pid, comm, started: pid.into(), waited, ..TRAINER };
    let hog = job(1, 9, "hog", 9 * SECOND);
    let equal = job(2, 10, "equal", 8 * SECOND);
    let small = job(3, 11, "small", 7 * SECOND);
    let mut own = chain((42, "trainer"), (9, "hog"), 5.0);
    let loss = |pid, comm: &str, seconds| Loss { pid: Some(pid), comm: comm.into(), seconds };
    own.losses = vec![loss(9, "hog", 2.4), loss(10, "equal", 2.4), loss(11, "small", 0.2)];
    let all = [hog, equal, small, job(4, 42, "trainer", SECOND)];
    let path = record(&folder.path().join("1.db"), 0, "", &all, &[own]);
    let trainer = report(&path, &[42]);
    let waits = &trainer.nodes[0].recorded.as_ref().unwrap().waits;
    let pids: Vec<_> = waits.iter().map(|own| own.pid).collect();
    assert_eq!(pids, [42, 9, 10], "the third has less than a tenth of the loss");
    let text = render_report(&trainer, false);
    let marked = text.lines().filter(|line| line.ends_with("  culprit")).count();
    assert_eq!(marked, 6, "in three tables: {text}");
    assert_eq!(render_report(&report(&path, &[]), false).matches("  culprit\n").count(), 0);
    let equal = render_report(&report(&path, &[10]), false);
    assert!(equal.contains("\nIT DELAYS OTHERS\n"), "{equal}");
    assert_eq!(report(&path, &[11]).nodes[0].incident.root_cause, None);
}

#[test]
fn stacks_that_read_alike_are_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("1.db");
    let start = Start { node: "gpu-1".into(), started_ns: BEGIN, ..Start::default() };
    let mut writer = Writer::create(&path, &start).unwrap();
    let process = writer.process(ProcId(1), Tgid(42), "trainer").unwrap();
    let call = call("cudaMemcpy", None);
    for address in [0x10, 0x20] {
        let function = Some("train_step".to_owned());
        let frame = StackFrame { address, function, ..StackFrame::default() };
        let stack = writer.stack(&Stack { frames: vec![frame] }).unwrap();
        let event = NewEvent {
            start_ns: BEGIN + address as i64,
            duration_ns: SECOND,
            process,
            tid: 42,
            kind: NewKind::Call(call),
            stack: Some(stack),
        };
        writer.add_events([event]).unwrap();
    }
    writer.finish().unwrap();
    let report = report(&path, &[]);
    let stacks = &report.nodes[0].recorded.as_ref().unwrap().stacks;
    let [stack] = &stacks[..] else { panic!("{stacks:?}") };
    assert_eq!((stack.count, stack.sum_seconds), (2, 2.0));
}
