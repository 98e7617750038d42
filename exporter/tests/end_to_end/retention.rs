//! Processes that have ended: kept for a time, then gone; and folded into one when there are too many.

use crate::exporter::Exporter;
use crate::poll::until;
use crate::workload::{Workload, libraries};

const COUNT: &str = "gpucause_cuda_call_duration_seconds_count";
/// Ended processes that are told apart at most.
const TOLD_APART: u64 = 256;

#[test]
fn the_series_and_map_entries_of_an_ended_process_go_after_the_retention_time() {
    let exporter = Exporter::start(&["--retention=2s"]);
    let mut workload = Workload::start(&[
        "calls",
        "--calls=2000",
        "--threads=2",
        "--kernels=3",
        "--mix=cudaLaunchKernel=2,cudaMemcpyAsync=1",
        "--script=cudaMemcpyAsync:ret=2@7",
    ]);
    exporter.until_attached(&libraries().join("libcudart.so.12"));
    let entries = |map| exporter.samples().count("gpucause_map_entries", &[("map", map)]);
    let maps = ["procs", "hists", "stalls", "errors", "kernels"];
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
    let mut before = 0;
    let folded = until("all calls of all processes", || {
        let samples = exporter.samples();
        let all = samples.count(COUNT, &op);
        assert!((before..=PROCESSES * CALLS).contains(&all), "{before} calls, then {all}");
        before = all;
        let ended = samples.count("gpucause_processes_folded_total", &[]);
        (all == PROCESSES * CALLS && ended >= PROCESSES - TOLD_APART).then_some(samples)
    });
    assert_eq!(workload.truth()["calls"]["cudaStreamWaitEvent"], PROCESSES * CALLS);
    let other = [&op[..], &[("pid", "other"), ("comm", "other")]].concat();
    let gone = folded.count("gpucause_processes_folded_total", &[]);
    assert!(folded.count(COUNT, &other) >= (PROCESSES - TOLD_APART) * CALLS);
    assert!(folded.count(COUNT, &other) <= gone * CALLS);
    assert!(folded.of(COUNT, &op).len() as u64 <= TOLD_APART + 1);
}
