//! These tests cover the size of a trace file, and files that are cut short, damaged or too large.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its fixtures too")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpucause_abi::hist::{Histogram, SLOTS};
use gpucause_abi::op::{Api, OpId};
use gpucause_abi::snapshot::{CallSnapshot, Comm, ProcessSnapshot, Snapshot, Wait};
use gpucause_abi::state::{BlockOperation, Reason, Role};
use gpucause_abi::{Nanos, ProcId, Tgid};
use gpucause_engine::EngineInput;
use gpucause_engine::chain::{Cause, Chain, Course, Effect, Evidence, Severity, Victim};
use gpucause_investigations::any_format::open;
use gpucause_trace::recording::{Filter, RecordingError, Stack, StackFrame, StackId};
use gpucause_trace::trace::{
    NewCall, NewEvent, NewKind, NewOffCpu, NewTask, ProcessRef, Start, Writer,
};
use proptest::prelude::*;

const START: i64 = 1_700_000_000_000_000_000;

fn start() -> Start {
    Start { node: "gpu-1".into(), recorder: "test".into(), started_ns: START, ..Start::default() }
}

/// Makes an event like those of a busy training loop: launches, copies, waits on and off the CPU.
fn event(process: ProcessRef, number: u64, stack: StackId) -> NewEvent<'static> {
    const KERNELS: [&str; 4] = ["gemm", "softmax", "layer_norm", "adam"];
    let call = NewCall {
        api: Api::Runtime,
        op: "cudaLaunchKernel",
        cold: Some(false),
        outermost: true,
        code: 0,
        off_cpu_ns: Some(number % 70_000),
        bytes: None,
        copy: None,
        kernel: Some(KERNELS[(number % 4) as usize]),
    };
    let by = NewTask { pid: Some(4_000_000 + (number % 300) as u32), comm: "fluent-bit" };
    let kind = match number % 10 {
        0 => NewKind::BlockIo {
            operation: BlockOperation::Read,
            bytes: 1 << 17,
            device: Some("nvme0n1"),
        },
        1 => NewKind::Call(NewCall {
            op: "cudaMemcpyAsync",
            bytes: Some(number * 4096),
            copy: Some("h2d"),
            kernel: None,
            cold: None,
            ..call
        }),
        2 | 3 => NewKind::OffCpu(NewOffCpu { reason: Some(Reason::Preempted), by: Some(by) }),
        _ => NewKind::Call(call),
    };
    NewEvent {
        start_ns: START + (number * 60_000) as i64,
        duration_ns: 3_000 + number % 40_000_000,
        process,
        tid: 4_000_001 + (number % 16) as u32,
        kind,
        stack: number.is_multiple_of(5).then_some(stack),
    }
}

fn stack() -> Stack {
    let frame =
        StackFrame { address: 1 << 46, function: Some("step".into()), ..StackFrame::default() };
    Stack { frames: vec![frame; 8] }
}

fn write_events(writer: &mut Writer, numbers: std::ops::Range<u64>) {
    let process = writer.process(ProcId(1), Tgid(4_000_001), "python3").unwrap();
    let stack = writer.stack(&stack()).unwrap();
    writer.add_events(numbers.map(|number| event(process, number, stack))).unwrap();
}

/// Makes the input of one process with a dozen kinds of call.
fn input(number: u64) -> EngineInput {
    let mut process = ProcessSnapshot::new(ProcId(1), Tgid(4_000_001), Comm([b'p'; 16]));
    let histogram = |seed: u64| {
        let slots = (0..SLOTS as u64).map(|slot| {
            if (slot + seed).is_multiple_of(11) { (slot * 7919 + number * seed) % 900 } else { 0 }
        });
        Histogram::from_slots(Nanos(number * 123_456_789), Nanos(98_765_432), slots)
    };
    for op in 0..12 {
        let cold = op == 3;
        process.calls.push(CallSnapshot {
            op: OpId(op),
            cold,
            nested: false,
            durations: histogram(op.into()),
            stalled: histogram(u64::from(op) + 5),
        });
    }
    process.kernels = (0..64).map(|at| (0x7f00_1234_0000 + at * 0x510, number * at)).collect();
    process.launch_times =
        process.kernels.iter().map(|kernel| (kernel.0, histogram(kernel.0))).collect();
    process.offcpu = Role::ALL
        .iter()
        .flat_map(|&role| Reason::ALL.iter().map(move |&reason| (role, reason)))
        .map(|(role, reason)| (role, reason, histogram(reason as u64)))
        .collect();
    process.waits = (0u8..40)
        .map(|name| {
            Wait::host(Reason::Preempted, Comm([b'a' + name % 26; 16]), Nanos(number * 999))
        })
        .collect();
    let snapshot = Snapshot {
        taken_at: Nanos(number * 1_500_000_000),
        processes: vec![process],
        ..Snapshot::default()
    };
    EngineInput::new(Arc::new(snapshot), 1.7e9 + number as f64 * 1.5)
}

fn chain() -> Chain {
    Chain {
        id: "a".into(),
        cause: Cause::BlockIo,
        effect: Effect::LaunchGap,
        severity: Severity::High,
        victim: Victim { pid: 1, tid: 2, comm: "python3".into(), ..Victim::default() },
        culprit: None,
        explained: 1.0,
        lost_seconds: 2.0,
        evidence: Evidence::default(),
        path: Vec::new(),
        sentence: "it waited".into(),
        fix: "wait less".into(),
        first_seen: 1.0,
        last_seen: 2.0,
        losses: Vec::new(),
        ongoing: None,
        code: Vec::new(),
        course: Course::default(),
    }
}

fn small_file(path: &Path) {
    let reported = Start { details: vec![("kernel".into(), "6.18".into())], ..start() };
    let mut writer = Writer::create(path, &reported).unwrap();
    write_events(&mut writer, 0..50);
    let process = writer.process(ProcId(1), Tgid(4_000_001), "python3").unwrap();
    writer.name_thread(process, 4_000_001, "engine").unwrap();
    writer.name_kernel(process, 1, "gemm").unwrap();
    writer.describe_process(process, &[("container_id".into(), "c0ffee".into())]).unwrap();
    writer.add_snapshot(&input(1), &[chain()]).unwrap();
    writer.finish().unwrap();
}

/// Calls everything; tells of the first failure.
fn read_all(path: &Path) -> Result<u64, RecordingError> {
    let recording = open(path)?;
    let mut stacks = Vec::new();
    recording.events(&Filter::default(), &mut |event| {
        stacks.extend(event.stack);
        let _ = (event.end_ns(), recording.thread_name(event.process, event.tid));
        ControlFlow::Continue(())
    })?;
    recording.chains()?;
    recording.calls()?;
    recording.waits()?;
    recording.kernel_names()?;
    stacks.iter().try_for_each(|&stack| recording.stack(stack).map(|_| ()))?;
    recording.snapshots(&mut |_| ControlFlow::Continue(()))?;
    recording.event_count()
}

#[test]
fn an_event_takes_no_more_than_80_bytes_of_the_file_with_its_index() {
    const EVENTS: u64 = 200_000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let mut writer = Writer::create(&path, &start()).unwrap();
    for batch in 0..EVENTS / 1000 {
        write_events(&mut writer, batch * 1000..(batch + 1) * 1000);
        writer.commit_if_due().unwrap();
    }
    writer.finish().unwrap();
    let bytes = std::fs::metadata(&path).unwrap().len();
    println!("{} bytes an event", bytes as f64 / EVENTS as f64);
    assert!(bytes <= 80 * EVENTS, "{} bytes an event", bytes as f64 / EVENTS as f64);
}

#[test]
fn sixteen_seconds_of_a_process_stay_far_under_200_kib() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let mut writer = Writer::create(&path, &start()).unwrap();
    for number in 1..=11 {
        writer.add_snapshot(&input(number), &[chain()]).unwrap();
    }
    writer.finish().unwrap();
    let bytes = std::fs::metadata(&path).unwrap().len();
    println!("{bytes} bytes for 11 snapshots");
    assert!(bytes <= 150 << 10, "{bytes} bytes");
}

#[test]
fn beyond_the_limit_the_oldest_events_go_and_the_session_says_how_many() {
    const LIMIT: u64 = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let reported = Start { size_limit: Some(LIMIT), ..start() };
    let mut writer = Writer::create(&path, &reported).unwrap();
    for batch in 0..100 {
        write_events(&mut writer, batch * 500..(batch + 1) * 500);
        writer.commit().unwrap();
    }
    let finished = writer.finish().unwrap();
    assert_eq!(finished.events + finished.pruned_events, 50_000);
    let bytes = std::fs::metadata(&path).unwrap().len();
    assert!((LIMIT / 2..=LIMIT * 11 / 10).contains(&bytes), "{bytes} bytes");
    let trace = open(&path).unwrap();
    assert_eq!(trace.event_count().unwrap(), finished.events);
    let mut oldest = None;
    trace
        .events(&Filter::default(), &mut |event| {
            oldest = Some(event.id.sequence);
            ControlFlow::Break(())
        })
        .unwrap();
    assert_eq!(oldest, Some(finished.pruned_events + 1));
    let said = ("pruned_events".to_owned(), finished.pruned_events.to_string());
    assert_eq!(trace.sessions()[0].details, [said]);
}

/// The recorder that is killed; run as a program of its own.
#[test]
#[ignore = "never ends: a_killed_recorder_leaves_everything_up_to_the_last_second runs it"]
fn writes_until_it_is_killed() {
    let path = std::env::var_os("GPUCAUSE_TEST_TRACE").unwrap();
    let mut writer = Writer::create(Path::new(&path), &start()).unwrap();
    for batch in 0u64.. {
        write_events(&mut writer, batch * 10..(batch + 1) * 10);
        writer.commit_if_due().unwrap();
        println!("\nwrote {}", (batch + 1) * 10);
        std::io::stdout().flush().unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_killed_recorder_leaves_everything_up_to_the_last_second() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..4 {
        let path = folder.path().join(format!("{round}.db"));
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "writes_until_it_is_killed", "--nocapture"])
            .env("GPUCAUSE_TEST_TRACE", &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut reported: Vec<(Instant, u64)> = Vec::new();
        let noise = std::time::SystemTime::now().elapsed().map_or(0, |it| it.subsec_nanos());
        let life = Duration::from_millis(1200 + u64::from(noise.wrapping_mul(7919) % 1500));
        let killed = loop {
            let line = lines.next().unwrap().unwrap();
            if let Some(count) = line.strip_prefix("wrote ") {
                reported.push((Instant::now(), count.parse().unwrap()));
            }
            if reported.first().is_some_and(|first| first.0.elapsed() > life) {
                break Instant::now();
            }
        };
        child.kill().unwrap();
        child.wait().unwrap();
        let a_second_before = reported
            .iter()
            .rev()
            .find(|reported| killed - reported.0 >= Duration::from_secs(1))
            .unwrap()
            .1;
        let kept = read_all(&path).unwrap();
        assert!(kept >= a_second_before, "{kept} of {a_second_before}");
        assert_eq!(open(&path).unwrap().sessions()[0].ended_ns, None);
    }
}

#[test]
fn a_file_that_is_being_written_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let mut writer = Writer::create(&path, &start()).unwrap();
    write_events(&mut writer, 0..100);
    writer.commit().unwrap();
    assert_eq!(read_all(&path).unwrap(), 100);
    let opened_early = open(&path).unwrap();
    let other = writer.process(ProcId(2), Tgid(7), "later").unwrap();
    let id = writer.stack(&stack()).unwrap();
    writer.add_events((0..5).map(|number| event(other, number, id))).unwrap();
    writer.add_snapshot(&input(1), &[]).unwrap();
    writer.commit().unwrap();
    assert_eq!(opened_early.event_count().unwrap(), 100, "it is as it was when it was opened");
    opened_early.events(&Filter::default(), &mut |_| ControlFlow::Continue(())).unwrap();
    drop(opened_early);
    assert_eq!(read_all(&path).unwrap(), 105);
    writer.finish().unwrap();
}

#[test]
fn a_file_without_the_folder_for_what_was_written_last_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let mut writer = Writer::create(&path, &start()).unwrap();
    write_events(&mut writer, 0..100);
    writer.commit().unwrap();
    let copy = folder.path().join("b.db");
    std::fs::copy(&path, &copy).unwrap();
    std::fs::copy(folder.path().join("a.db-wal"), folder.path().join("b.db-wal")).unwrap();
    // Where its shared memory goes nothing can be written, whoever asks.
    std::os::unix::fs::symlink("nowhere", folder.path().join("b.db-shm")).unwrap();
    let refused = open(&copy).unwrap_err();
    assert!(matches!(refused, RecordingError::LeftOpen(..)), "{refused:?}");
    assert!(refused.to_string().contains("b.db-wal"), "{refused}");
}

#[test]
fn whatever_is_in_any_column_of_any_table_it_ends_in_an_answer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    small_file(&path);
    let whole = std::fs::read(&path).unwrap();
    let columns: Vec<(String, String)> = {
        let connection = rusqlite::Connection::open(&path).unwrap();
        let sql = "SELECT t.name, c.name FROM sqlite_schema t, pragma_table_info(t.name) c \
                   WHERE t.type = 'table'";
        let mut statement = connection.prepare(sql).unwrap();
        let columns = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        columns.map(Result::unwrap).collect()
    };
    assert!(columns.len() > 100, "{columns:?}");
    let mut errors = 0;
    for (table, column) in &columns {
        for value in ["'text'", "-1", "9223372036854775807", "NULL", "x'ff00'"] {
            std::fs::write(&path, &whole).unwrap();
            let connection = rusqlite::Connection::open(&path).unwrap();
            connection.pragma_update(None, "synchronous", "OFF").unwrap();
            connection.pragma_update(None, "foreign_keys", "OFF").unwrap();
            let update = format!("UPDATE OR IGNORE {table} SET {column} = {value}");
            // A value that the schema refuses cannot be in a file, unless its bytes were changed.
            let refused = connection.execute(&update, []).is_err();
            drop(connection);
            let answer = read_all(&path);
            errors += usize::from(!refused && answer.is_err());
        }
    }
    assert!(errors > 100, "only {errors} of all this was noticed");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_file_with_flipped_bytes_ends_in_an_answer(
        flips in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..12),
        cut in proptest::option::weighted(0.1, any::<usize>()),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let mut bytes = WHOLE.with(Clone::clone);
        for (at, byte) in flips {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut % bytes.len());
        }
        std::fs::write(&path, bytes).unwrap();
        let _ = read_all(&path);
    }
}

thread_local! {
    static WHOLE: Vec<u8> = {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        small_file(&path);
        std::fs::read(&path).unwrap()
    };
}

#[test]
fn every_table_and_column_is_in_the_page_for_users() {
    let page = include_str!("../trace-file.md");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    small_file(&path);
    let connection = rusqlite::Connection::open(&path).unwrap();
    let sql = "SELECT t.name, c.name FROM sqlite_schema t, pragma_table_info(t.name) c \
               WHERE t.type IN ('table', 'view')";
    let mut statement = connection.prepare(sql).unwrap();
    let columns = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    for column in columns {
        let (table, column): (String, String) = column.unwrap();
        for name in [&table, &column] {
            assert!(page.contains(&format!("`{name}`")), "{table}.{column} is not described");
        }
    }
}

#[test]
fn the_queries_of_the_pages_for_users_run() {
    let pages = [include_str!("../trace-file.md"), include_str!("../slow-training.md")].concat();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    small_file(&path);
    let connection = rusqlite::Connection::open(&path).unwrap();
    let queries = pages.split("```sql\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let ours: Vec<_> = queries.filter(|query| !query.contains("ATTACH")).collect();
    assert!(ours.len() >= 5);
    for query in ours {
        let mut statement = connection.prepare(query).unwrap();
        let mut rows = statement.query([]).unwrap();
        while rows.next().unwrap().is_some() {}
    }
}

#[test]
fn a_file_that_is_read_as_its_recording_ends_is_completed_once_the_reader_is_done() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let mut writer = Writer::create(&path, &start()).unwrap();
    writer.add_snapshot(&input(1), &[chain()]).unwrap();
    let reader = rusqlite::Connection::open(&path).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM sessions").unwrap();
    let (wal, finished) = (folder.path().join("a.db-wal"), std::thread::spawn(|| writer.finish()));
    let until = Instant::now() + Duration::from_millis(300);
    while Instant::now() < until {
        assert!(wal.exists() && !finished.is_finished(), "it waits for the reader");
        std::thread::yield_now();
    }
    drop(reader);
    finished.join().unwrap().unwrap();
    assert!(!wal.exists());
}

#[test]
fn a_name_that_no_program_has_is_not_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let mut writer = Writer::create(&path, &start()).unwrap();
    writer.process(ProcId(1), Tgid(42), "one").unwrap();
    writer.finish().unwrap();
    let set = |bytes: u32| {
        let database = rusqlite::Connection::open(&path).unwrap();
        let name = "UPDATE processes SET comm = replace(hex(zeroblob(?)), '00', 'xx')";
        database.execute(name, [bytes / 2]).unwrap();
    };
    set(4 << 10);
    assert_eq!(open(&path).unwrap().processes()[0].comm.len(), 4 << 10);
    set(8 << 20);
    let error = open(&path).unwrap_err().to_string();
    assert!(error.contains("too big"), "{error}");
}

#[test]
fn a_file_of_something_else_is_distinguished_from_one_of_a_newer_gpucause() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let refusal = || open(&path).unwrap_err();
    assert!(matches!(refusal(), RecordingError::Open(..)));
    for other in [&b""[..], b"x", &[b'x'; 5000]] {
        std::fs::write(&path, other).unwrap();
        assert!(matches!(refusal(), RecordingError::NotATrace(..)), "{}", refusal());
    }
    std::fs::remove_file(&path).unwrap();
    Writer::create(&path, &start()).unwrap().finish().unwrap();
    let newer = rusqlite::Connection::open(&path).unwrap();
    newer.pragma_update(None, "user_version", 2).unwrap();
    drop(newer);
    let refused = refusal();
    assert!(matches!(refused, RecordingError::TooNew { found: 2, known: 1, .. }), "{refused}");
}
