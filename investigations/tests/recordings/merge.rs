//! Several files become one, and nothing in it is confused.

use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use gpucause_abi::op::Api;
use gpucause_abi::snapshot::{Comm, ProcessSnapshot, Snapshot};
use gpucause_abi::{Nanos, ProcId, Tgid};
use gpucause_engine::EngineInput;
use gpucause_investigations::any_format::open;
use gpucause_trace::merge::{Input, MergeError, Merged, Progress, Warning, merge};
use gpucause_trace::recording::{Event, Filter, Kind, Recording, Stack, StackFrame};
use gpucause_trace::trace::{CLOCK_ERROR, NewCall, NewEvent, NewKind, Start, Writer};

const START: i64 = 1_700_000_000_000_000_000;

/// A recording of a node, from that second on: ten events of one process, whose name tells the recording.
fn record(folder: &Path, node: &str, second: i64) -> PathBuf {
    let path = folder.join(format!("{node}-{second}.db"));
    let start = Start {
        node: node.into(),
        recorder: "test".into(),
        started_ns: START + second * 1_000_000_000,
        ..Start::default()
    };
    let mut writer = Writer::create(&path, &start).unwrap();
    let comm = format!("{node}-{second}");
    let process = writer.process(ProcId(1), Tgid(42), &comm).unwrap();
    writer.name_thread(process, 43, "engine").unwrap();
    writer.name_kernel(process, 7, "gemm").unwrap();
    let frame = StackFrame { address: 7, function: Some("step".into()), ..StackFrame::default() };
    let stack = writer.stack(&Stack { frames: vec![frame] }).unwrap();
    let events = (0..10).map(|at| NewEvent {
        start_ns: start.started_ns + at,
        duration_ns: 1,
        process,
        tid: 43,
        kind: NewKind::Other(&comm),
        stack: Some(stack),
    });
    writer.add_events(events).unwrap();
    let mut name = [0; 16];
    name[..comm.len()].copy_from_slice(comm.as_bytes());
    let mut process = ProcessSnapshot::new(ProcId(1), Tgid(42), Comm(name));
    process.measures.abandoned_calls = second.unsigned_abs();
    let taken_at = Nanos(second.unsigned_abs() + 1);
    let snapshot = Snapshot { taken_at, processes: vec![process], ..Snapshot::default() };
    writer.add_snapshot(&EngineInput::new(Arc::new(snapshot), 1.7e9 + second as f64), &[]).unwrap();
    writer.finish().unwrap();
    path
}

fn merged(paths: &[&Path], output: &Path) -> Result<Merged, MergeError> {
    let input = |path: &&Path| Input::of(path.to_path_buf(), open(path).unwrap());
    let inputs: Vec<_> = paths.iter().map(input).collect();
    let mut last = None;
    let merged = merge(&inputs, output, false, &mut |progress| last = Some(progress));
    if merged.is_ok() {
        let of = inputs.last().unwrap().recording.event_count().unwrap();
        assert_eq!(last, Some(Progress { input: inputs.len() - 1, events: of, of }));
    }
    merged
}

fn events(recording: &dyn Recording) -> Vec<Event> {
    let mut all = Vec::new();
    let take = &mut |event: &Event| {
        all.push(event.clone());
        ControlFlow::Continue(())
    };
    recording.events(&Filter::default(), take).unwrap();
    all
}

#[test]
fn events_of_several_nodes_and_sessions_keep_who_they_are_of() {
    let folder = tempfile::tempdir().unwrap();
    let files = [("a", 0), ("b", 1), ("a", 2)].map(|(node, at)| record(folder.path(), node, at));
    let output = folder.path().join("merged.db");
    let reported = merged(&files.each_ref().map(PathBuf::as_path), &output).unwrap();
    assert_eq!(reported.events, 30);
    let unknown = Warning::UnknownSkew { node: "b".into(), reference: "a".into() };
    assert_eq!(reported.warnings, [unknown]);

    let trace = open(&output).unwrap();
    let nodes: Vec<_> = trace.nodes().iter().map(|node| node.name.as_str()).collect();
    assert_eq!(nodes, ["a", "b"], "the same node is one node");
    assert_eq!(trace.sessions().len(), 3);
    let read = events(&*trace);
    let ids: Vec<_> = read.iter().map(|event| (event.id.node.0, event.id.sequence)).collect();
    let expected = (1..=10).map(|at| (0, at)).chain((1..=10).map(|at| (1, at)));
    assert_eq!(ids, expected.chain((11..=20).map(|at| (0, at))).collect::<Vec<_>>());
    for event in &read {
        let process = &trace.processes()[event.process.0 as usize];
        assert_eq!(event.kind, Kind::Other(process.comm.as_str().into()));
        assert_eq!(process.node, event.id.node);
        assert_eq!(trace.thread_name(event.process, 43), Some("engine"));
        let stack = trace.stack(event.stack.unwrap()).unwrap().unwrap();
        assert_eq!(stack.frames[0].function.as_deref(), Some("step"));
    }
    assert_eq!(trace.kernel_names().unwrap().len(), 3);
    let mut count = 0;
    trace
        .snapshots(&mut |recorded| {
            let process = &recorded.input.snapshot.processes[0];
            let known = &trace.processes()[recorded.processes[&process.id].0 as usize];
            assert_eq!(known.comm, process.comm.to_text());
            let node = &trace.nodes()[recorded.node.0 as usize].name;
            assert_eq!(known.comm, format!("{node}-{}", process.measures.abandoned_calls));
            count += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(count, 3);
}

#[test]
fn a_file_that_has_no_end_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (record(folder.path(), "a", 0), record(folder.path(), "a", 1));
    let file = rusqlite::Connection::open(&other).unwrap();
    file.execute("UPDATE sessions SET ended_ns = NULL", []).unwrap();
    drop(file);
    let reported = merged(&[&one, &other], &folder.path().join("merged.db")).unwrap();
    assert_eq!(reported.warnings, [Warning::NoEnd(other)]);
}

#[test]
fn the_same_session_is_taken_once_and_that_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (record(folder.path(), "a", 0), record(folder.path(), "b", 0));
    let output = folder.path().join("merged.db");
    let reported = merged(&[&one, &other, &one], &output).unwrap();
    assert_eq!(reported.events, 20);
    let duplicate = Warning::Duplicate { path: one.clone(), node: "a".into() };
    assert_eq!(reported.warnings[0], duplicate);
    assert_eq!(open(&output).unwrap().processes().len(), 2);

    let later = record(folder.path(), "a", 5);
    let both = folder.path().join("both.db");
    merged(&[&one, &later], &both).unwrap();
    let refused = folder.path().join("refused.db");
    let refusal = merged(&[&one, &both], &refused).unwrap_err();
    assert!(matches!(refusal, MergeError::Overlap(..)), "{refusal}");
    assert!(!refused.exists(), "nothing is left of a merge that failed");
}

#[test]
fn what_is_there_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (record(folder.path(), "a", 0), record(folder.path(), "b", 0));
    let before = std::fs::read(&other).unwrap();
    let refusal = merged(&[&one], &other).unwrap_err();
    assert!(matches!(refusal, MergeError::Write(_)), "{refusal}");
    assert_eq!(std::fs::read(&other).unwrap(), before);
}

#[test]
fn a_file_is_overwritten_only_by_a_whole_one_and_never_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let [one, other] = [0, 1].map(|at| record(folder.path(), "a", at));
    let output = folder.path().join("merged.db");
    merged(&[&one, &other], &output).unwrap();
    let whole = std::fs::read(&output).unwrap();
    let force = |paths: &[&Path], output: &Path| {
        let input = |path: &&Path| Input::of(path.to_path_buf(), open(path).unwrap());
        merge(&paths.iter().map(input).collect::<Vec<_>>(), output, true, &mut |_| {})
    };
    // The third overlaps the first, which is found only when that has been copied.
    let overlap = folder.path().join("overlap.db");
    merged(&[&one, &record(folder.path(), "a", 2)], &overlap).unwrap();
    let refused = force(&[&one, &overlap], &output);
    assert!(matches!(refused, Err(MergeError::Overlap(..))), "{refused:?}");
    assert_eq!(std::fs::read(&output).unwrap(), whole);
    let before = std::fs::read(&one).unwrap();
    let link = folder.path().join("link.db");
    std::fs::hard_link(&one, &link).unwrap();
    for same in [&one, &link] {
        let refused = force(&[&one, &other], same);
        assert!(matches!(refused, Err(MergeError::Source(_))), "{refused:?}");
    }
    assert_eq!(std::fs::read(&one).unwrap(), before);
    force(&[&one], &output).unwrap();
    assert_eq!(open(&output).unwrap().event_count().unwrap(), 10);
    let files = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(files, 6, "nothing is left beside them");
}

#[test]
fn clocks_that_nobody_compared_are_as_far_apart_as_their_errors_allow() {
    let folder = tempfile::tempdir().unwrap();
    let record = |node: &str, second: i64, error_ns: Option<u64>| {
        let path = folder.path().join(format!("{node}-{second}.db"));
        let error = error_ns.map(|error| (CLOCK_ERROR.to_owned(), error.to_string()));
        let start = Start {
            node: node.into(),
            recorder: "test".into(),
            started_ns: START + second,
            details: error.into_iter().collect(),
            ..Start::default()
        };
        Writer::create(&path, &start).unwrap().finish().unwrap();
        path
    };
    let good = record("good", 0, Some(4_000_000));
    let near = record("near", 0, Some(5_000_000));
    let far = record("far", 0, Some(20_000_000));
    let later = record("near", 1, Some(30_000_000));
    let unkept = record("unkept", 0, None);
    let unkept_later = record("near", 2, None);
    let said = |paths: &[&Path]| {
        let output = folder.path().join(format!("{}.merged.db", name_of(paths)));
        merged(paths, &output).unwrap().warnings
    };
    let bounded = |node: &str, within_ns| {
        vec![Warning::BoundedSkew { node: node.into(), reference: "good".into(), within_ns }]
    };
    let unknown =
        |node: &str| vec![Warning::UnknownSkew { node: node.into(), reference: "good".into() }];
    assert_eq!(said(&[&good, &near]), []);
    assert_eq!(said(&[&good, &far]), bounded("far", 24_000_000));
    assert_eq!(said(&[&good, &near, &later]), bounded("near", 34_000_000), "the worst counts");
    assert_eq!(said(&[&good, &unkept]), unknown("unkept"));
    assert_eq!(said(&[&good, &near, &unkept_later]), unknown("near"));
}

#[test]
fn duckdb_compares_the_nodes_of_a_merged_file_by_the_query_of_its_page() {
    let folder = tempfile::tempdir().unwrap();
    let record = |node: &str, duration_ns: u64| {
        let path = folder.path().join(format!("{node}.db"));
        let start = Start { node: node.into(), recorder: "test".into(), ..Start::default() };
        let mut writer = Writer::create(&path, &start).unwrap();
        let process = writer.process(ProcId(1), Tgid(42), "train").unwrap();
        let call = NewCall {
            api: Api::Runtime,
            op: "cudaLaunchKernel",
            cold: Some(false),
            outermost: true,
            code: 0,
            off_cpu_ns: None,
            bytes: None,
            copy: None,
            kernel: None,
        };
        let event = |at| NewEvent {
            start_ns: START + at,
            duration_ns,
            process,
            tid: 43,
            kind: NewKind::Call(call),
            stack: None,
        };
        writer.add_events((0..10).map(event)).unwrap();
        writer.finish().unwrap();
        path
    };
    let (fast, slow) = (record("fast", 5_000), record("slow", 90_000));
    merged(&[&fast, &slow], &folder.path().join("merged.db")).unwrap();
    let page = include_str!("../../trace-file.md");
    let (_, sql) = page.split_once("```sql\nATTACH").unwrap();
    let sql = format!("ATTACH{}", sql.split_once("```").unwrap().0);
    let program = std::env::current_exe().unwrap();
    // The folder where `.ci/test` puts what Python needs; this is in `debug/deps` beside it.
    let python = program.ancestors().nth(3).unwrap().join("python");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings/in_duckdb.py");
    let mut duckdb = Command::new("python3")
        .arg(script)
        .env("PYTHONPATH", python)
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("python3 runs; `make test-tools` installs it");
    duckdb.stdin.take().unwrap().write_all(sql.as_bytes()).unwrap();
    let output = duckdb.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "(`.ci/test` installs the packages) {said}");
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let expected = serde_json::json!([
        ["slow", "cudaLaunchKernel", 10, 90.0],
        ["fast", "cudaLaunchKernel", 10, 5.0]
    ]);
    assert_eq!(rows, expected);
}

/// Another for each choice of files.
fn name_of(paths: &[&Path]) -> String {
    paths.iter().map(|path| path.file_stem().unwrap().to_string_lossy()).collect()
}
