//! A recording of `gpucause record` has what a workload says of itself, and is replayed as the node was.

use gpucause_fixture::exporter::{Exporter, gpucause};
use gpucause_fixture::poll::until;
use gpucause_fixture::workload::{Workload, libraries};
use gpucause_investigations::any_format;
use gpucause_trace::recording::{self, Call, Filter, Kind, Recording};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Child, Stdio};

/// Starts to record, and waits until it does, with probes on the stand-ins.
pub(crate) fn record(db: &Path, log: &Path, arguments: &[&str]) -> Child {
    let mut command = gpucause(&["record", "--node=gpu-1", "--db"]);
    command.arg(db).args(arguments).stderr(File::create(log).unwrap());
    let mut child = command.spawn().unwrap();
    let library = libraries().join("libcudart.so.12");
    until("probes", || {
        let text = fs::read_to_string(log).unwrap();
        assert!(child.try_wait().unwrap().is_none(), "{text}");
        let attached =
            |line: &str| line.contains("msg=attached") && line.contains(library.to_str().unwrap());
        let is_recording = text.lines().any(|line| line.ends_with(": recording: Ctrl-C ends it"));
        (is_recording && text.lines().any(attached)).then_some(())
    });
    child
}

pub(crate) fn end(mut child: Child, log: &Path) {
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(0), "{}", fs::read_to_string(log).unwrap());
}

/// Calls of a process by op: how many, and in how long.
fn calls(recording: &dyn Recording, pid: u32) -> BTreeMap<String, (u64, u64)> {
    let mut calls: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let each = &mut |event: &recording::Event| {
        let process = &recording.processes()[event.process.0 as usize];
        if let Kind::Call(Call { op, .. }) = &event.kind
            && process.pid == pid
        {
            let (count, sum) = calls.entry(op.to_string()).or_default();
            *count += 1;
            *sum += event.duration_ns;
        }
        ControlFlow::Continue(())
    };
    recording.events(&Filter::default(), each).unwrap();
    calls
}

#[test]
fn every_call_is_in_the_file_once_beside_the_accounts_and_is_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let (db, log) = (dir.path().join("trace.db"), dir.path().join("log"));
    let mix = "--mix=cudaLaunchKernel=8,cudaMemcpyAsync=1,cudaStreamSynchronize=1";
    let mut workload = Workload::start(&["calls", "--calls=5000", "--threads=2", mix]);
    let recorder = record(&db, &log, &["--calls-from=0", "--off-cpu-from=0"]);
    let truth = workload.work();
    let pid = workload.pid();
    end(recorder, &log);
    workload.end();

    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "one file, and the log");
    let trace = any_format::open(&db).unwrap();
    assert_eq!(trace.nodes()[0].name, "gpu-1");
    assert_eq!(trace.sessions()[0].lost_events, Some(0));
    let recorded = calls(&*trace, pid.parse().unwrap());
    for (op, count) in truth["calls"].as_object().unwrap() {
        assert_eq!(recorded.get(op).map(|own| own.0), count.as_u64(), "{op} in {recorded:?}");
    }
    // The accounts of the last look agree with the events.
    for calls in trace.calls().unwrap() {
        let process = &trace.processes()[calls.process.0 as usize];
        if process.pid.to_string() == pid && calls.cold != Some(true) && recorded.len() == 3 {
            let (count, sum) = recorded[&*calls.op];
            assert!(calls.durations.count <= count, "{calls:?}, {count} events");
            assert!(calls.durations.sum_ns <= sum, "{calls:?}, {sum} ns");
        }
    }

    let replay = Exporter::of(
        gpucause(&["replay", "--web.listen-address=127.0.0.1:0", "--speed=100", "--db"]).arg(&db),
    );
    let launches = truth["calls"]["cudaLaunchKernel"].as_u64().unwrap();
    until("all launches on the page", || {
        let labels = [("pid", &*pid), ("op", "cudaLaunchKernel")];
        let count = "gpucause_cuda_call_duration_seconds_count";
        (replay.samples().count(count, &labels) == launches).then_some(())
    });
    replay.chains();
}

#[test]
fn only_slow_calls_of_one_process_are_recorded_where_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let (db, log) = (dir.path().join("trace.db"), dir.path().join("log"));
    let mix = "--mix=cudaLaunchKernel=9,cudaMemcpyAsync=1";
    let slow = ["calls", "--calls=400", mix, "--script=cudaMemcpyAsync:sleep=3ms"];
    let mut workloads = [Workload::start(&slow), Workload::start(&slow)];
    let pids = [workloads[0].pid(), workloads[1].pid()];
    let recorder = record(&db, &log, &["--calls-from=2ms", "--pid", &pids[0]]);
    let truths: Vec<_> = workloads.iter_mut().map(Workload::work).collect();
    end(recorder, &log);
    workloads.into_iter().for_each(Workload::end);
    let trace = any_format::open(&db).unwrap();
    let of = |pid: &str| calls(&*trace, pid.parse().unwrap());
    let (count, sum) = of(&pids[0])["cudaMemcpyAsync"];
    assert_eq!(Some(count), truths[0]["calls"]["cudaMemcpyAsync"].as_u64());
    assert!(sum >= count * 3_000_000, "{sum} ns in {count} calls");
    assert_eq!(of(&pids[1]), BTreeMap::new());
    // The accounts are of everybody.
    assert!(
        trace.calls().unwrap().iter().any(|calls| {
            trace.processes()[calls.process.0 as usize].pid.to_string() == pids[1]
        })
    );
}

#[test]
fn a_file_that_cannot_be_created_is_reported_before_anything_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let there = dir.path().join("trace.db");
    fs::write(&there, "mine").unwrap();
    for db in [there.as_path(), Path::new("/nonexistent/trace.db")] {
        let output = gpucause(&["record", "--duration=1s", "--db"]).arg(db).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(db.to_str().unwrap()), "{stderr}");
    }
    assert_eq!(fs::read_to_string(&there).unwrap(), "mine");
}

#[test]
fn a_recording_of_a_process_without_cuda_leaves_nothing_to_explain() {
    let dir = tempfile::tempdir().unwrap();
    let own = std::process::id().to_string();
    let db = dir.path().join("trace.db");
    let mut command = gpucause(&["record", "--duration=100ms", "--pid", &own, "--db"]);
    let output = command.arg(&db).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let (_, rest) = said.split_once("no process of --pid has made a CUDA call in ").expect(&said);
    let seconds: f64 = rest.split(' ').next().unwrap().parse().unwrap();
    // A busy host ends it late.
    assert!((0.1..1.0).contains(&seconds), "{said}");
    assert!(!said.contains("next: ") && !db.exists(), "{said}");
}

#[test]
fn a_recording_begins_once_the_libraries_in_use_have_probes() {
    let dir = tempfile::tempdir().unwrap();
    let mut workload = Workload::start(&["rate", "--per-second=100", "--seconds=60"]);
    workload.go();
    let pid = workload.pid().to_string();
    let mut command = gpucause(&["record", "--duration=1s", "--pid", &pid, "--db"]);
    let output = command.arg(dir.path().join("trace.db")).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let library = libraries().join("libcudart.so.12");
    let is_attached =
        |line: &str| line.contains("msg=attached") && line.contains(library.to_str().unwrap());
    let begun = said.lines().position(|line| line.ends_with("trace.db: recording for 1s"));
    let attached = said.lines().position(is_attached);
    assert!(attached.unwrap() < begun.unwrap(), "{said}");
}

#[test]
fn a_recording_of_one_process_ends_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let (db, log) = (dir.path().join("trace.db"), dir.path().join("log"));
    let mut workload = Workload::start(&["calls", "--calls=1000"]);
    let mut recorder = record(&db, &log, &["--calls-from=0", "--pid", &workload.pid()]);
    let (truth, pid) = (workload.work(), workload.pid().parse().unwrap());
    workload.end();
    let status = until("its end", || recorder.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
    let said = fs::read_to_string(log).unwrap();
    assert!(said.contains("trace.db: every process of --pid has ended\n"), "{said}");
    let trace = any_format::open(&db).unwrap();
    let (count, _) = calls(&*trace, pid)["cudaLaunchKernel"];
    assert_eq!(Some(count), truth["calls"]["cudaLaunchKernel"].as_u64());
}

#[test]
fn an_interrupt_before_probes_are_attached_says_so_and_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("trace.db");
    let mut command = gpucause(&["record", "--db"]);
    let mut child = command.arg(&db).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.ends_with("trace.db: attaching probes")));
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    let rest: Vec<_> = lines.collect();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{rest:?}");
    let said = "interrupted before probes were attached";
    assert!(rest.last().is_some_and(|line| line.contains(said)), "{rest:?}");
    assert!(!db.exists());
}
