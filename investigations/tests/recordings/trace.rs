//! Reading a trace file returns what was written to it.

use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpucause_abi::hist::{Histogram, slot_of};
use gpucause_abi::op::{Api, OpId, op_of_symbol};
use gpucause_abi::snapshot::{
    CallSnapshot, Comm, DispatcherSnapshot, ProcessSnapshot, Snapshot, StallSnapshot, TimeAccount,
    Wait,
};
use gpucause_abi::state::{BlockOperation, Phase, Reason, Role, State};
use gpucause_abi::{Nanos, ProcId, Tgid, Tid};
use gpucause_engine::EngineInput;
use gpucause_engine::chain::{
    Cause, Chain, Course, Culprit, Effect, Evidence, Severity, Step, Victim,
};
use gpucause_investigations::any_format::open;
use gpucause_trace::merge::{Input, merge};
use gpucause_trace::recording::{
    Call, Completeness, Event, EventId, Filter, Kind, NodeIndex, OffCpu, ProcessIndex,
    RecordedSnapshot, Recording, Stack, StackFrame, StackId, Task,
};
use gpucause_trace::trace::{
    Finished, NewCall, NewEvent, NewKind, NewOffCpu, NewTask, ProcessRef, Start, Trace, WriteError,
    Writer,
};

const SECOND: i64 = 1_000_000_000;
const START: i64 = 1_700_000_000 * SECOND;

fn start() -> Start {
    Start {
        node: "gpu-1".into(),
        recorder: "gpucause 0.1.0".into(),
        started_ns: START,
        details: vec![("kernel".into(), "6.18.0".into()), ("slower_than_ns".into(), "1000".into())],
        ..Start::default()
    }
}

fn comm(name: &str) -> Comm {
    let mut bytes = [0; 16];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    Comm(bytes)
}

fn op(name: &str) -> OpId {
    op_of_symbol(name).unwrap()
}

fn histogram(values: &[u64]) -> Histogram {
    let mut slots = vec![0u64; gpucause_abi::hist::SLOTS];
    values.iter().for_each(|&value| slots[slot_of(Nanos(value))] += 1);
    let max = values.iter().copied().max().unwrap_or(0);
    Histogram::from_slots(Nanos(values.iter().sum()), Nanos(max), slots)
}

fn process(id: u32, pid: u32) -> ProcessSnapshot {
    let mut process = ProcessSnapshot::new(ProcId(id), Tgid(pid), comm("python3"));
    let launch = op("cudaLaunchKernel");
    process.dispatches = true;
    process.rank = Some((3, 8));
    process.calls = vec![
        CallSnapshot::unstalled(launch, true, histogram(&[25_000_000])),
        CallSnapshot {
            op: launch,
            cold: false,
            nested: false,
            durations: histogram(&[5_000; 99]),
            stalled: histogram(&[5_000]),
        },
    ];
    let mut offcpu = [Nanos(0); Reason::COUNT];
    offcpu[Reason::Preempted as usize] = Nanos(4_000);
    process.stalls =
        vec![StallSnapshot { op: launch, cold: false, nested: false, calls: 1, offcpu }];
    process.offcpu = vec![
        (Role::Dispatcher, Reason::Preempted, histogram(&[4_000, 9_000_000])),
        (Role::Helper, Reason::Futex, histogram(&[1_000_000_000])),
    ];
    process.waits = vec![Wait::host(Reason::Preempted, comm("fluent-bit"), Nanos(9_004_000))];
    let mut time = TimeAccount::default();
    time.0[Phase::Launch as usize][State::Running.index()] = Nanos(7);
    process.dispatcher_time = time;
    process.dispatchers =
        vec![DispatcherSnapshot { tid: Tid(pid), wall: Nanos(7), time, inflight: None }];
    process
}

fn input(seconds: i64, processes: Vec<ProcessSnapshot>) -> EngineInput {
    let taken_at = Nanos(seconds.unsigned_abs() * 1_000_000_000);
    let snapshot = Snapshot { taken_at, processes, ..Snapshot::default() };
    EngineInput::new(Arc::new(snapshot), (START / SECOND + seconds) as f64)
}

fn chain(id: &str, severity: Severity, lost_seconds: f64) -> Chain {
    Chain {
        id: id.into(),
        cause: Cause::CpuPreemption,
        effect: Effect::LaunchTail,
        severity,
        victim: Victim { pid: 42, tid: 43, comm: "python3".into(), ..Victim::default() },
        culprit: Some(Culprit { pid: 7, comm: "fluent-bit".into(), ..Culprit::default() }),
        explained: 0.9,
        lost_seconds,
        evidence: Evidence::default()
            .with("preemptions", 428.0)
            .with(Chain::ATTRIBUTED, lost_seconds),
        path: vec![Step {
            from: "fluent-bit".into(),
            to: "python3".into(),
            mechanism: "preemption".into(),
            seconds: 8.9,
        }],
        sentence: "fluent-bit took the CPU 428 times".into(),
        fix: "pin it".into(),
        first_seen: 1_700_000_001.5,
        last_seen: 1_700_000_009.25,
        losses: Vec::new(),
        ongoing: None,
        code: Vec::new(),
        course: Course::default(),
    }
}

fn plain_call(process: ProcessRef, at: i64) -> NewEvent<'static> {
    NewEvent {
        start_ns: START + at,
        duration_ns: 10,
        process,
        tid: 43,
        kind: NewKind::Call(NewCall {
            api: Api::Runtime,
            op: "cudaLaunchKernel",
            cold: Some(false),
            outermost: true,
            code: 0,
            off_cpu_ns: Some(0),
            bytes: None,
            copy: None,
            kernel: Some("gemm"),
        }),
        stack: None,
    }
}

fn events(recording: &dyn Recording, filter: &Filter) -> Vec<Event> {
    let mut all = Vec::new();
    let take = &mut |event: &Event| {
        all.push(event.clone());
        ControlFlow::Continue(())
    };
    recording.events(filter, take).unwrap();
    all
}

fn snapshots(recording: &dyn Recording) -> Vec<RecordedSnapshot> {
    let mut all = Vec::new();
    let take = &mut |recorded| {
        all.push(recorded);
        ControlFlow::Continue(())
    };
    recording.snapshots(take).unwrap();
    all
}

fn names_in(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// One of every kind.
fn kinds() -> [NewKind<'static>; 12] {
    let full = NewCall {
        api: Api::Nccl,
        op: "ncclAllReduce",
        cold: None,
        outermost: false,
        code: -3,
        off_cpu_ns: Some(77),
        bytes: Some(1 << 40),
        copy: Some("h2d"),
        kernel: None,
    };
    let by = NewTask { pid: Some(7), comm: "fluent-bit" };
    [
        NewKind::Call(full),
        NewKind::OffCpu(NewOffCpu { reason: Some(Reason::Preempted), by: Some(by) }),
        NewKind::OffCpu(NewOffCpu { reason: None, by: None }),
        NewKind::OffCpu(NewOffCpu {
            reason: Some(Reason::Sleep),
            by: Some(NewTask { pid: None, comm: "kernel" }),
        }),
        NewKind::BlockIo { operation: BlockOperation::Write, bytes: 512, device: Some("nvme0n1") },
        NewKind::BlockIo { operation: BlockOperation::Other, bytes: 0, device: None },
        NewKind::PageAllocation { bytes: 4096 },
        NewKind::TcpRetransmit,
        NewKind::OomKill,
        NewKind::Start,
        NewKind::Exit,
        NewKind::Other("pod_restart"),
    ]
}

/// Returns all `kinds` as they are read.
fn kinds_read() -> [Kind; 12] {
    let call = Call {
        api: Api::Nccl,
        op: "ncclAllReduce".into(),
        cold: None,
        outermost: false,
        code: -3,
        off_cpu_ns: Some(77),
        bytes: Some(1 << 40),
        copy: Some("h2d"),
        kernel: None,
    };
    let party = |pid, comm: &str| Some(Task { pid, comm: comm.into() });
    let off = |reason, by| Kind::OffCpu(OffCpu { reason, by });
    let block = |operation, bytes, device| Kind::BlockIo { operation, bytes, device };
    [
        Kind::Call(call),
        off(Some(Reason::Preempted), party(Some(7), "fluent-bit")),
        off(None, None),
        off(Some(Reason::Sleep), party(None, "kernel")),
        block(BlockOperation::Write, 512, Some("nvme0n1".into())),
        block(BlockOperation::Other, 0, None),
        Kind::PageAllocation { bytes: 4096 },
        Kind::TcpRetransmit,
        Kind::OomKill,
        Kind::Start,
        Kind::Exit,
        Kind::Other("pod_restart".into()),
    ]
}

#[test]
fn every_kind_of_event_is_read_as_it_was_written_in_the_order_of_starts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let mut writer = Writer::create(&path, &start()).unwrap();
    let process = writer.process(ProcId(1), Tgid(42), "python3").unwrap();
    writer.name_thread(process, 43, "engine").unwrap();
    let frames = vec![
        StackFrame {
            address: u64::MAX - 1,
            function: Some("step \"quoted\" \n".into()),
            file: Some("train.py".into()),
            line: Some(17),
            is_python: true,
            ..StackFrame::default()
        },
        StackFrame {
            address: 4096,
            module: Some("/usr/lib/libc.so.6".into()),
            module_address: Some(u64::MAX),
            ..StackFrame::default()
        },
    ];
    let stack = Stack { frames };
    let stacks = (writer.stack(&stack).unwrap(), writer.stack(&stack).unwrap());
    assert_eq!(stacks.0, stacks.1, "a stack is written once");
    let kinds = kinds();
    // Reported in the order of their ends, not of their starts.
    let reported = kinds.iter().zip(0i64..).map(|(&kind, at)| NewEvent {
        kind,
        start_ns: START - at,
        duration_ns: 2 * at.unsigned_abs(),
        stack: (at == 0).then_some(stacks.0),
        ..plain_call(process, 0)
    });
    writer.add_events(reported).unwrap();
    let finished = writer.finish().unwrap();
    assert_eq!((finished.events, finished.pruned_events), (12, 0));
    assert_eq!(names_in(folder.path()), ["a.db"], "one file, with none beside it");

    let trace = open(&path).unwrap();
    assert_eq!(trace.format(), "gpucause trace, schema 1");
    assert_eq!(trace.nodes()[0].name, "gpu-1");
    assert_eq!(trace.thread_name(ProcessIndex(0), 43), Some("engine"));
    assert_eq!(trace.event_count().unwrap(), 12);
    let read = events(&*trace, &Filter::default());
    let expected = (0..12u64).rev().zip(kinds_read().into_iter().rev()).map(|(at, kind)| Event {
        id: EventId { node: NodeIndex(0), sequence: at + 1 },
        start_ns: START - at as i64,
        duration_ns: 2 * at,
        process: ProcessIndex(0),
        tid: 43,
        kind,
        stack: (at == 0).then_some(stacks.0),
    });
    assert_eq!(read, expected.collect::<Vec<_>>());
    assert_eq!(trace.stack(stacks.0).unwrap(), Some(stack));
    assert_eq!(trace.stack(StackId(99)).unwrap(), None);
}

#[test]
fn a_stack_that_is_named_later_is_still_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let mut writer = Writer::create(&path, &start()).unwrap();
    let frame = StackFrame { address: 7, module_address: Some(3), ..StackFrame::default() };
    let reported = Stack { frames: vec![frame.clone()] };
    let named = Stack { frames: vec![StackFrame { function: Some("step".into()), ..frame }] };
    let id = writer.stack(&reported).unwrap();
    writer.name_stack(id, &named).unwrap();
    assert_eq!(writer.stack(&reported).unwrap(), id);
    writer.finish().unwrap();
    assert_eq!(open(&path).unwrap().stack(id).unwrap(), Some(named));
}

#[test]
fn a_filter_leaves_out_what_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let mut writer = Writer::create(&path, &start()).unwrap();
    let one = writer.process(ProcId(1), Tgid(42), "one").unwrap();
    let other = writer.process(ProcId(2), Tgid(43), "other").unwrap();
    let reported = (0..10).map(|at| NewEvent {
        duration_ns: u64::try_from(at).unwrap(),
        ..plain_call(if at % 2 == 0 { one } else { other }, at * 100)
    });
    writer.add_events(reported).unwrap();
    writer.finish().unwrap();
    let trace = Trace::open(&path).unwrap();
    let sequences = |filter: &Filter| {
        events(&trace, filter).iter().map(|event| event.id.sequence).collect::<Vec<_>>()
    };
    let all = Filter::default();
    assert_eq!(sequences(&Filter { from_ns: Some(START + 707), ..all }), [8, 9, 10]);
    assert_eq!(sequences(&Filter { until_ns: Some(START + 200), ..all }), [1, 2]);
    assert_eq!(sequences(&Filter { process: Some(ProcessIndex(1)), ..all }), [2, 4, 6, 8, 10]);
    assert_eq!(sequences(&Filter { at_least_ns: 8, ..all }), [9, 10]);
    let none = Filter { process: Some(ProcessIndex(9)), ..all };
    assert_eq!(sequences(&none), [0u64; 0]);
}

#[test]
fn an_event_at_the_end_of_time_is_read_unless_a_time_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let mut writer = Writer::create(&path, &start()).unwrap();
    let process = writer.process(ProcId(1), Tgid(42), "one").unwrap();
    let times = [0, i64::MAX - START];
    writer.add_events(times.into_iter().map(|at| plain_call(process, at))).unwrap();
    writer.finish().unwrap();
    let trace = Trace::open(&path).unwrap();
    let count = |filter: &Filter| events(&trace, filter).len();
    let all = Filter::default();
    assert_eq!(count(&all), 2);
    assert_eq!(count(&Filter { until_ns: Some(i64::MAX), ..all }), 1);
}

#[test]
fn snapshots_are_read_as_they_were_written_and_their_totals_are_those_of_the_last() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let mut writer = Writer::create(&path, &start()).unwrap();
    let first = input(1, vec![ProcessSnapshot::new(ProcId(5), Tgid(42), comm("sh"))]);
    let mut second = input(2, vec![process(5, 42)]);
    second.throttled_gpus.insert("GPU-1".into(), 0.25);
    second.throttled_cgroups.insert(ProcId(5), Nanos(11));
    writer.add_snapshot(&first, &[chain("a", Severity::Low, 1.0)]).unwrap();
    writer.set_lost_events(17);
    let chains = [chain("b", Severity::High, 0.5), chain("a", Severity::Low, 2.0)];
    writer.add_snapshot(&second, &chains).unwrap();
    let row = writer.process(ProcId(5), Tgid(42), "python3").unwrap();
    writer.name_kernel(row, u64::MAX, "gemm").unwrap();
    writer.describe_process(row, &[("container_id".into(), "c0ffee".into())]).unwrap();
    writer.finish().unwrap();

    let trace = Trace::open(&path).unwrap();
    let session = &trace.sessions()[0];
    assert_eq!((session.lost_events, session.started_ns), (Some(17), START));
    assert_eq!(session.details, start().details);
    assert!(session.ended_ns.is_some());
    let reported = &trace.processes()[0];
    assert_eq!((reported.pid, reported.comm.as_str(), reported.rank), (42, "python3", Some(3)));
    assert_eq!(reported.details, [("container_id".to_owned(), "c0ffee".to_owned())]);
    let kernel = &trace.kernel_names().unwrap()[0];
    assert_eq!((kernel.handle, kernel.name.as_str()), (u64::MAX, "gemm"));

    let read = snapshots(&trace);
    for (read, written) in read.iter().zip([&first, &second]) {
        assert_eq!(read.input.snapshot, written.snapshot);
        assert_eq!(read.input.unix_seconds.to_bits(), written.unix_seconds.to_bits());
        assert_eq!(read.input.throttled_gpus, written.throttled_gpus);
        assert_eq!(read.input.throttled_cgroups, written.throttled_cgroups);
        assert_eq!(read.processes[&ProcId(5)], ProcessIndex(0));
    }
    assert_eq!(read.len(), 2);

    let chains: Vec<_> = trace.chains().unwrap().into_iter().map(|chain| chain.chain).collect();
    assert_eq!(chains, [chain("a", Severity::Low, 2.0), chain("b", Severity::High, 0.5)]);
    let taken: f64 = rusqlite::Connection::open(&path)
        .unwrap()
        .query_row("SELECT sum(taken_seconds) FROM chains", [], |row| row.get(0))
        .unwrap();
    assert!((taken - 2.5).abs() < 1e-9, "the causes took {taken} s");
    let calls = trace.calls().unwrap();
    assert_eq!(calls.iter().map(|call| call.durations.count).collect::<Vec<_>>(), [1, 99]);
    assert_eq!(calls[1].durations.sum_ns, 99 * 5_000);
    assert_eq!(calls[1].durations.p99_ns, Some(5_000));
    assert_eq!(calls[1].durations.completeness, Completeness::Exact);
    assert_eq!(
        (calls[1].cold, calls[1].stalled, calls[1].off_cpu_ns),
        (Some(false), Some(1), Some(4_000))
    );
    let waits = trace.waits().unwrap();
    assert_eq!((waits[0].role, waits[0].reason), (Some(Role::Dispatcher), Some(Reason::Preempted)));
    assert_eq!((waits[0].durations.count, waits[0].durations.max_ns), (2, 9_000_000));
    assert_eq!(waits[1].role, Some(Role::Helper));
}

#[test]
fn a_file_that_is_there_is_overwritten_only_when_that_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    std::fs::write(&path, "precious").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let refused = Writer::create(&path, &start()).unwrap_err();
    assert!(matches!(refused, WriteError::Exists(..)), "{refused}");
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    let reported = Start { overwrite: true, ..start() };
    Writer::create(&path, &reported).unwrap().finish().unwrap();
    assert_eq!(Trace::open(&path).unwrap().event_count().unwrap(), 0);
    assert_eq!(mode(&path), 0o640, "who may read it is not changed");
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_file_and_what_is_beside_it_are_readable_by_their_owner_only_from_the_beginning() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let mut writer = Writer::create(&path, &start()).unwrap();
    writer.process(ProcId(1), Tgid(42), "train").unwrap();
    writer.commit().unwrap();
    let files = std::fs::read_dir(folder.path()).unwrap();
    let files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    assert!(files.len() > 1, "SQLite has a journal beside it: {files:?}");
    for file in &files {
        assert_eq!(mode(file), 0o600, "{}", file.display());
    }
    writer.finish().unwrap();
    assert_eq!(mode(&path), 0o600);
    let merged = folder.path().join("merged.db");
    let input = Input::of(path.clone(), open(&path).unwrap());
    merge(&[input], &merged, false, &mut |_| {}).unwrap();
    assert_eq!(mode(&merged), 0o600);
}

/// A file of a finished run that a reader opened before; `until` says for how long, by what it reads there.
fn finished_beside_reader(path: &Path, until: impl Fn(&rusqlite::Connection) -> bool) -> Finished {
    let mut writer = Writer::create(path, &start()).unwrap();
    writer.commit().unwrap();
    let reader = rusqlite::Connection::open(path).unwrap();
    // One that has read nothing is not noticed.
    let sessions = "SELECT count(*) FROM sessions";
    assert_eq!(reader.query_row(sessions, [], |row| row.get::<_, u32>(0)).unwrap(), 1);
    let finishing = std::thread::spawn(move || writer.finish().unwrap());
    let deadline = Instant::now() + Duration::from_secs(60);
    while !until(&reader) && !finishing.is_finished() {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    drop(reader);
    finishing.join().unwrap()
}

#[test]
fn a_file_that_is_read_while_it_is_finished_waits_for_its_reader_and_is_complete_with_its_wal() {
    let folder = tempfile::tempdir().unwrap();
    let files = |name: &str| ["", "-wal"].map(|end| folder.path().join(format!("{name}{end}")));
    let [brief, wal] = files("brief.db");
    let has_ended = |reader: &rusqlite::Connection| {
        let sql = "SELECT count(ended_ns) FROM sessions";
        reader.query_row(sql, [], |row| row.get::<_, u32>(0)).unwrap() == 1
    };
    assert!(!finished_beside_reader(&brief, has_ended).needs_wal);
    assert!(!wal.exists() && open(&brief).unwrap().sessions()[0].ended_ns.is_some());
    let [long, _] = files("long.db");
    assert!(finished_beside_reader(&long, |_| false).needs_wal);
    assert!(open(&long).unwrap().sessions()[0].ended_ns.is_some());
}
