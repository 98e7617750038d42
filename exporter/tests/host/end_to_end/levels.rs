//! How many series a real process has at each level.

use gpucause_fixture::exporter::{Exporter, SHARED_FOR};
use gpucause_fixture::http_client;
use gpucause_fixture::ops::TRAINING_OPS;
use gpucause_fixture::workload::{Workload, libraries};
use std::collections::{BTreeMap, BTreeSet};

/// With the most series of a process of 30 operations, and of each further one.
const LEVELS: [(&str, usize, usize); 3] =
    [("fleet", 60, 0), ("standard", 200, 2), ("full", 1_700, 56)];
const FORMATS: [&str; 2] = ["", "Accept: application/openmetrics-text; version=1.0.0\r\n"];

/// The series of the process on a page, by family.
fn by_family<'a>(page: &'a str, pid: &str) -> BTreeMap<&'a str, usize> {
    let mut families = BTreeMap::new();
    let label = format!("{{pid=\"{pid}\",");
    for line in page.lines().filter(|line| line.contains(&label)) {
        *families.entry(line.split('{').next().unwrap()).or_default() += 1;
    }
    families
}

#[test]
fn a_process_that_calls_30_operations_has_at_most_60_200_and_1700_series() {
    // All calls are seen, however slow the CPU is.
    let exporter = Exporter::start(&["--probe.budget=off"]);
    let mix = TRAINING_OPS.map(|op| format!("{op}=1")).join(",");
    let mut workload = Workload::start(&["calls", "--calls=60000", "--mix", &mix]);
    for library in ["libcudart.so.12", "libcuda.so.1", "libnccl.so.2"] {
        exporter.until_attached(&libraries().join(library));
    }
    workload.work();
    let pid = workload.pid();
    let of_pid = [("pid", &*pid)];
    let samples = exporter.samples();
    let calls = samples.of("gpucause_cuda_call_duration_seconds_count", &of_pid);
    let called: BTreeSet<&str> = calls.iter().map(|sample| sample.label("op")).collect();
    let missing: Vec<_> = TRAINING_OPS.iter().filter(|op| !called.contains(**op)).collect();
    assert!(missing.is_empty(), "{missing:?} of {called:?}");
    for (level, limit, each) in LEVELS {
        // The workload asks for handles first; each operation that does so may be on the page, too.
        let limit = limit + (called.len() - TRAINING_OPS.len()) * each;
        for accept in FORMATS {
            std::thread::sleep(SHARED_FOR);
            let path = format!("/metrics?level={level}");
            let page = http_client::request(exporter.address, "GET", &path, accept);
            assert_eq!(page.status, 200);
            let families = by_family(page.text(), &pid);
            let count: usize = families.values().sum();
            println!("a process of {} operations at {level}, {accept:?}: {count}", called.len());
            assert!(count > 0 && count <= limit, "{count} at {level}, {accept:?}: {families:#?}");
        }
    }
    workload.end();
}
