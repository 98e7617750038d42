//! The flight recorder: a file about what goes wrong, and when somebody asks for one.

use gpucause_fixture::exporter::{Exporter, gpucause};
use gpucause_fixture::poll::{until, within};
use gpucause_fixture::workload::{Workload, libraries};
use gpucause_investigations::any_format;
use gpucause_investigations::explain::Report;
use gpucause_trace::recording::{self, Filter, Kind, Recording};
use nix::sys::signal::Signal;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

const CULPRIT: &str = "cpu-hog";
const RECORDS: &str = "gpucause_flight_records_total";
/// From the first launch to the chain, and what writing takes on a busy host.
const WRITTEN_WITHIN: Duration = Duration::from_secs(60);
/// How far a file of this test goes back.
const SECONDS: u32 = 5;

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Files whose names end so.
fn about(dir: &Path, what: &str) -> Option<PathBuf> {
    files(dir).into_iter().find(|path| path.to_str().unwrap().ends_with(&format!("{what}.db")))
}

/// From the end of the first event to that of the last, in seconds, and how many are calls.
fn span(recording: &dyn Recording) -> (f64, u64) {
    let (mut from, mut until, mut calls) = (i64::MAX, i64::MIN, 0);
    let each = &mut |event: &recording::Event| {
        from = from.min(event.end_ns());
        until = until.max(event.end_ns());
        calls += u64::from(matches!(event.kind, Kind::Call(_)));
        ControlFlow::Continue(())
    };
    recording.events(&Filter::default(), each).unwrap();
    ((until - from) as f64 / 1e9, calls)
}

#[test]
fn a_severe_chain_and_a_signal_each_make_a_file_and_only_so_many_stay() {
    let dir = tempfile::tempdir().unwrap();
    // An exporter that was killed while it wrote leaves this file.
    fs::write(dir.path().join(".flight-partial-wal"), "").unwrap();
    let exporter = Exporter::start(&[
        &format!("--flight-recorder.dir={}", dir.path().display()),
        &format!("--flight-recorder.seconds={SECONDS}"),
        "--flight-recorder.max-files=2",
    ]);
    let mut keeper = Workload::start(&["calls", "--calls=1"]);
    keeper.work();
    exporter.until_attached(&libraries().join("libcudart.so.12"));
    assert_eq!(files(dir.path()), Vec::<PathBuf>::new());
    let burners = ["--burners=3", "--burner-name", CULPRIT];
    let contend = [&["contend", "--seconds=60", "--spin=100us"][..], &burners].concat();
    let mut workload = Workload::start(&contend);
    workload.go();

    let path =
        within(WRITTEN_WITHIN, "a file about the chain", || about(dir.path(), "-cpu_preemption"));
    let recording = any_format::open(&path).unwrap();
    assert!(recording.sessions()[0].ended_ns.is_some(), "it is whole");
    assert!(recording.sessions()[0].lost_events.is_some(), "losses are counted");
    let (seconds, calls) = span(&*recording);
    assert!(calls > 0 && seconds > 0.0 && seconds <= f64::from(SECONDS) + 1.0, "{calls} {seconds}");
    let report = Report::of(&path, &*recording).unwrap();
    let root = report.nodes[0].incident.root_cause.as_ref().unwrap();
    assert_eq!(root.victim.pid.to_string(), workload.pid());
    assert_eq!(root.culprit.as_ref().map(|own| &*own.comm), Some(CULPRIT));
    let output = gpucause(&["explain", "--db"]).arg(&path).output().unwrap();
    let explained = String::from_utf8(output.stdout).unwrap();
    assert!(explained.contains("cpu_preemption -> ") && explained.contains(CULPRIT), "{explained}");

    let written = || exporter.samples().count(RECORDS, &[("outcome", "written")]);
    for _ in 0..3 {
        let before = written();
        exporter.signal(Signal::SIGUSR2);
        until("a file that was asked for", || (written() > before).then_some(()));
    }
    assert!(about(dir.path(), "-SIGUSR2").is_some(), "{:?}", files(dir.path()));
    assert_eq!(files(dir.path()).len(), 2, "{:?}", files(dir.path()));
    assert_eq!(exporter.samples().count(RECORDS, &[("outcome", "failed")]), 0);
    workload.kill();
}

#[test]
fn a_client_has_the_last_seconds_written_and_fetches_them_as_a_trace() {
    let dir = tempfile::tempdir().unwrap();
    let records = dir.path().join("records");
    fs::create_dir(&records).unwrap();
    let exporter = Exporter::start(&[&format!("--flight-recorder.dir={}", records.display())]);
    let output = dir.path().join("now.db");
    let url = format!("http://localhost:{}", exporter.address.port());
    let flight = gpucause(&["flight", "--url", &url, "-o"]).arg(&output).output().unwrap();
    let said = String::from_utf8([flight.stdout, flight.stderr].concat()).unwrap();
    assert_eq!(flight.status.code(), Some(0), "{said}");
    assert!(about(&records, "-request").is_some(), "it stays on the node");
    let recording = any_format::open(&output).unwrap();
    assert!(recording.sessions()[0].ended_ns.is_some() && recording.nodes().len() == 1, "{said}");
    assert_eq!(exporter.samples().count(RECORDS, &[("outcome", "written")]), 1);
}

#[test]
fn a_file_that_cannot_be_written_is_counted_and_the_exporter_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(&[&format!("--flight-recorder.dir={}", dir.path().display())]);
    drop(dir);
    exporter.signal(Signal::SIGUSR2);
    until("the failure", || {
        let failed = exporter.samples().count(RECORDS, &[("outcome", "failed")]);
        (failed == 1).then_some(())
    });
    assert!(exporter.log().contains("cannot write a flight record"), "{}", exporter.log());
}

#[test]
fn without_the_flag_nothing_is_kept_and_a_request_for_it_is_logged() {
    let exporter = Exporter::start(&[]);
    exporter.signal(Signal::SIGUSR2);
    until("the answer", || exporter.log().contains("there is no flight recorder").then_some(()));
    assert!(!exporter.scrape("").text().contains(RECORDS));
}

#[test]
fn an_unwritable_folder_is_reported_before_anything_is_loaded() {
    let output = gpucause(&[
        "exporter",
        "--web.listen-address=127.0.0.1:0",
        "--flight-recorder.dir=/nonexistent",
    ])
    .output()
    .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("--flight-recorder.dir /nonexistent"), "{stderr}");
}
