//! Many processes: few are tracked individually, and the page as a whole has all their calls.

use gpucause_fixture::exporter::Exporter;
use gpucause_fixture::poll::until;
use gpucause_fixture::samples::Samples;
use gpucause_fixture::workload::{Workload, libraries};
use std::collections::BTreeSet;
use std::io::Write as _;

const COUNT: &str = "gpucause_cuda_call_duration_seconds_count";
/// An op that no other process of this host is likely to call.
const OP: &str = "cudaStreamWaitEvent";
const OTHER: [(&str, &str); 2] = [("op", OP), ("pid", "other")];

fn tracked_individually(page: &Samples) -> usize {
    let pids = page.of(COUNT, &[("op", OP)]);
    let pids: BTreeSet<_> = pids.iter().map(|sample| sample.label("pid")).collect();
    pids.len() - usize::from(pids.contains("other"))
}

#[test]
fn live_processes_beyond_the_limit_are_one_series_that_keeps_their_calls_when_they_end() {
    const PROCESSES: u64 = 60;
    const CALLS: u64 = 40;
    const LIMIT: usize = 20;
    let mut config = tempfile::NamedTempFile::new().unwrap();
    write!(config, "limits: {{live_processes: {LIMIT}}}").unwrap();
    let exporter = Exporter::start(&["--config.file", config.path().to_str().unwrap()]);
    let _holder = Workload::start(&["idle"]);
    exporter.until_attached(&libraries().join("libcudart.so.12"));
    // One of an earlier test would have a place of its own.
    until("the end of others", || {
        (exporter.samples().count("gpucause_processes_observed", &[]) == 0).then_some(())
    });
    let mut crowd = Workload::start(&["crowd", "--processes=60", "--calls=40", "--op", OP]);
    crowd.work();
    let page = exporter.samples();
    assert_eq!(page.count(COUNT, &[("op", OP)]), PROCESSES * CALLS);
    assert_eq!(tracked_individually(&page), LIMIT);
    assert_eq!(page.count(COUNT, &OTHER), (PROCESSES - LIMIT as u64) * CALLS);
    assert_eq!(page.count("gpucause_processes_folded_total", &[]), PROCESSES - LIMIT as u64);
    assert!(page.count("gpucause_processes_observed", &[]) >= PROCESSES);
    let held = page.sum("gpucause_dispatcher_seconds_total", &[("pid", "other")]);
    crowd.end();
    let gone = until("the end of the crowd", || {
        let page = exporter.samples();
        assert_eq!(page.count(COUNT, &[("op", OP)]), PROCESSES * CALLS);
        assert_eq!(page.count(COUNT, &OTHER), (PROCESSES - LIMIT as u64) * CALLS);
        (page.count("gpucause_processes_observed", &[]) == 0).then_some(page)
    });
    assert!(gone.sum("gpucause_dispatcher_seconds_total", &[("pid", "other")]) >= held);
}

#[test]
fn thousands_of_short_lived_processes_make_few_series_that_have_all_their_calls() {
    const PROCESSES: u64 = 2_000;
    const CALLS: u64 = 4;
    /// Ended processes that are tracked individually, and those that a page still finds before they are aggregated.
    const MOST: usize = 48;
    let exporter = Exporter::start(&[]);
    let _holder = Workload::start(&["idle"]);
    exporter.until_attached(&libraries().join("libcudart.so.12"));
    let mut crowd = Workload::start(&[
        "crowd",
        "--end",
        "--processes=2000",
        "--calls=4",
        "--parallel=8",
        "--op",
        OP,
    ]);
    crowd.go();
    let mut others = 0;
    // Nobody scrapes at first: a process that was on a page stays tracked individually until its retention time is over.
    crowd.truth();
    until("all calls, and few processes tracked individually", || {
        let page = exporter.samples();
        let now = page.count(COUNT, &OTHER);
        assert!(now >= others, "{now} calls after {others}");
        others = now;
        assert_eq!(page.count("gpucause_map_full_total", &[("map", "procs")]), 0);
        assert_eq!(page.count(COUNT, &[("op", OP)]), PROCESSES * CALLS);
        // An aggregated process frees its map entry once it was on a page as aggregated.
        let entries = page.count("gpucause_map_entries", &[("map", "procs")]);
        (tracked_individually(&page) <= MOST && entries <= MOST as u64).then_some(())
    });
}
