//! Processes that have ended: kept for a time, then gone; and folded into one when there are too many.

use super::python::Python;
use gpucause_fixture::exporter::Exporter;
use gpucause_fixture::poll::until;
use gpucause_fixture::workload::{Workload, libraries};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const COUNT: &str = "gpucause_cuda_call_duration_seconds_count";
/// Ended processes that are tracked individually, at most.
const MAX_TRACKED: u64 = 48;

#[test]
fn the_series_and_map_entries_of_an_ended_process_go_after_the_retention_time() {
    let exporter = Exporter::start(&["--retention=2s"]);
    let mut workload = Workload::start(&[
        "calls",
        "--calls=2000",
        "--threads=2",
        "--kernels=3",
        "--mix=cudaLaunchKernel=2,cudaMemcpyAsync=1,cudaLibraryGetKernel=1",
        "--script=cudaMemcpyAsync:ret=2@7",
    ]);
    exporter.until_attached(&libraries().join("libcudart.so.12"));
    let entries = |map| exporter.samples().count("gpucause_map_entries", &[("map", map)]);
    let maps = ["procs", "hists", "stalls", "errors", "kernels", "kernel_names", "kernel_hists"];
    let baseline = maps.map(entries);
    workload.work();
    let pid = workload.pid();
    assert_eq!(exporter.samples().count(COUNT, &[("pid", &pid)]), 4000);
    let full = maps.map(entries);
    for map in [0, 1, 3, 4] {
        assert!(full[map] > baseline[map], "{}: {full:?}, before {baseline:?}", maps[map]);
    }
    workload.end();
    // Its final numbers can still be had.
    assert_eq!(exporter.samples().count(COUNT, &[("pid", &pid)]), 4000);
    until("the end of its series", || {
        let samples = exporter.samples();
        let there = samples.series().iter().any(|(_, labels)| labels.get("pid") == Some(&pid));
        (!there).then_some(())
    });
    until("the end of its map entries", || {
        let now = maps.map(entries);
        now.iter().zip(baseline).all(|(now, before)| *now <= before).then_some(())
    });
}

#[test]
fn short_lived_processes_beyond_the_bound_are_added_up() {
    const PROCESSES: u64 = 300;
    const CALLS: u64 = 20;
    let exporter = Exporter::start(&[]);
    // Keeps the probes attached while processes come and go.
    let _holder = Workload::start(&["idle"]);
    exporter.until_attached(&libraries().join("libcudart.so.12"));
    // An op that no other process of this host is likely to call: the folded series has all.
    let op = [("op", "cudaStreamWaitEvent")];
    let mut workload = Workload::start(&[
        "spawn",
        "--processes=300",
        "--calls=20",
        "--parallel=4",
        "--op=cudaStreamWaitEvent",
    ]);
    workload.go();
    assert_eq!(workload.truth()["calls"]["cudaStreamWaitEvent"], PROCESSES * CALLS);
    let other = [&op[..], &[("pid", "other"), ("comm", "other")]].concat();
    // The first page since then: processes that were dropped before any scrape are in the sum.
    let page = exporter.samples();
    assert_eq!(page.count(COUNT, &op), PROCESSES * CALLS);
    let folded = page.count("gpucause_processes_folded_total", &[]);
    assert!(folded >= PROCESSES - MAX_TRACKED, "{folded}");
    let others = page.count(COUNT, &other);
    assert!((1..=folded * CALLS).contains(&others), "{others} calls of {folded} processes");
    assert!(page.of(COUNT, &op).len() as u64 <= MAX_TRACKED + 1);
    // Calls that were exported under their own pid are not added to `other` on the next page.
    assert_eq!(exporter.samples().count(COUNT, &other), others);
}

/// Makes 1000 calls, executes itself again under the same name, makes 10 more, and stays.
const EXECUTES_ITSELF: &str = r#"
import ctypes, os, sys
library = ctypes.CDLL(sys.argv[1])
for _ in range(int(sys.argv[2])):
    library.cudaStreamWaitEvent()
if sys.argv[2] == "1000":
    os.execv(sys.executable, [sys.executable, "-c", os.environ["PROGRAM"], sys.argv[1], "10"])
sys.stdin.read()
"#;

#[test]
fn counters_of_a_process_that_executes_itself_do_not_decrease() {
    let exporter = Exporter::start(&["--retention=1s"]);
    let _holder = Workload::start(&["idle"]);
    let library = libraries().join("libcudart.so.12");
    exporter.until_attached(&library);
    let python = Command::new("python3")
        .args(["-c", EXECUTES_ITSELF])
        .arg(&library)
        .arg("1000")
        .env("PROGRAM", EXECUTES_ITSELF)
        .stdin(Stdio::piped())
        .spawn();
    let python = Python(python.expect("python3 is installed"));
    let pid = python.0.id().to_string();
    let calls = || exporter.samples().count(COUNT, &[("pid", &pid)]);
    until("the calls of both images", || (calls() == 1010).then_some(()));
    let after = Instant::now() + Duration::from_secs(3);
    until("the retention time of the old image to be over", || {
        assert_eq!(calls(), 1010);
        (Instant::now() >= after).then_some(())
    });
}

/// Makes 10 calls and executes itself, so many times, and stays.
const EXECUTES_ITSELF_OFTEN: &str = r#"
import ctypes, os, sys
library = ctypes.CDLL(sys.argv[1])
for _ in range(10):
    library.cudaStreamWaitEvent()
left = int(sys.argv[2]) - 1
if left:
    os.execv(sys.executable, [sys.executable, "-c", os.environ["PROGRAM"], sys.argv[1], str(left)])
sys.stdin.read()
"#;

#[test]
fn no_call_is_lost_of_a_process_that_executes_itself_more_often_than_ended_processes_are_kept() {
    const IMAGES: u64 = MAX_TRACKED + 22;
    let exporter = Exporter::start(&[]);
    let _holder = Workload::start(&["idle"]);
    let library = libraries().join("libcudart.so.12");
    exporter.until_attached(&library);
    let python = Command::new("python3")
        .args(["-c", EXECUTES_ITSELF_OFTEN])
        .arg(&library)
        .arg(IMAGES.to_string())
        .env("PROGRAM", EXECUTES_ITSELF_OFTEN)
        .stdin(Stdio::piped())
        .spawn();
    let python = Python(python.expect("python3 is installed"));
    let pid = python.0.id().to_string();
    let mut last = 0;
    until("the calls of all images", || {
        let calls = exporter.samples().count(COUNT, &[("pid", &pid)]);
        assert!(calls >= last, "{calls} calls after {last}");
        last = calls;
        (calls == IMAGES * 10).then_some(())
    });
    assert_eq!(exporter.samples().count("gpucause_processes_folded_total", &[]), 0);
}
