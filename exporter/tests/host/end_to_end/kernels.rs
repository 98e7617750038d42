//! Launches and their times by the names of kernels.

use gpucause_fixture::exporter::Exporter;
use gpucause_fixture::poll::until;
use gpucause_fixture::samples::Samples;
use gpucause_fixture::workload::{Workload, libraries};
use serde_json::Value;
use std::collections::BTreeMap;

const LAUNCHES: &str = "gpucause_kernel_launches_total";
const COUNT: &str = "gpucause_kernel_launch_duration_seconds_count";
/// Named series of a process, with those of all others and of kernels without a name.
const MOST_SERIES: usize = 10 + 2;
/// First symbols of the workload, with their names.
const NAMES: [(&str, &str); 8] = [
    ("_Z9attentionPKfS0_S0_Pfi", "attention"),
    ("_Z10gemm_f16_tPKtS0_Ptiii", "gemm_f16_t"),
    ("_Z7softmaxPfi", "softmax"),
    ("_Z9layernormPKfPfi", "layernorm"),
    ("_Z8rms_normPKfPfi", "rms_norm"),
    ("_Z4geluPfi", "gelu"),
    ("_Z9embeddingPKiPKfPfi", "embedding"),
    ("_Z9adam_stepPfS_S_i", "adam_step"),
];

/// An exporter whose probes are on runtime and driver before anybody makes a call, and the process that keeps them there.
/// All launches are seen, however slow the CPU is.
fn attached() -> (Exporter, Workload) {
    attached_with("--probe.counting-limit=50%")
}

fn attached_with(option: &str) -> (Exporter, Workload) {
    let exporter = Exporter::start(&[option]);
    let mix = "--mix=cudaLaunchKernel=1,cuLaunchKernel=1";
    let keeper = Workload::start(&["calls", "--calls=1", mix]);
    for library in ["libcudart.so.12", "libcuda.so.1"] {
        exporter.until_attached(&libraries().join(library));
    }
    (exporter, keeper)
}

/// Launches by the name on the page, as the workload tells them by symbol. What has no symbol is `unknown`.
fn truth(result: &Value, keys: &[&str]) -> BTreeMap<String, u64> {
    let mut launches = BTreeMap::new();
    for (symbol, count) in keys.iter().flat_map(|key| result[key].as_object().unwrap()) {
        let name = NAMES.iter().find(|(known, _)| known == symbol).map_or("unknown", |n| n.1);
        *launches.entry(name.to_owned()).or_default() += count.as_u64().unwrap();
    }
    launches
}

fn exported_launches(samples: &Samples, pid: &str) -> BTreeMap<String, u64> {
    let launches = samples.of(LAUNCHES, &[("pid", pid)]);
    let by_kernel = launches.iter().map(|sample| {
        (sample.label("kernel").to_owned(), sample.value.to_string().parse::<u64>().unwrap())
    });
    by_kernel.collect()
}

#[test]
fn launches_by_runtime_and_driver_are_exported_by_kernel_name() {
    // Over the budget, the names of some handles are not read.
    let (exporter, _keeper) = attached_with("--probe.budget=off");
    for handles in ["module", "library", "kernel", "symbol"] {
        let mut workload = Workload::start(&[
            "calls",
            "--threads=2",
            "--calls=8000",
            "--kernels=8",
            "--handles",
            handles,
            "--mix=cudaLaunchKernel=3,cuLaunchKernel=2",
        ]);
        let result = workload.work();
        let expected = truth(&result, &["kernels", "driver_kernels"]);
        assert_eq!(expected.values().sum::<u64>(), 16_000);
        assert_eq!(exported_launches(&exporter.samples(), &workload.pid()), expected, "{handles}");
        workload.end();
    }
}

#[test]
fn a_process_with_thousands_of_kernels_has_few_series_and_loses_no_launch() {
    let (exporter, _keeper) = attached();
    for (mix, key) in [("cudaLaunchKernel", "kernels"), ("cuLaunchKernel", "driver_kernels")] {
        let mut workload = Workload::start(&[
            "rate",
            "--per-second=10000",
            "--seconds=3",
            "--kernels=5000",
            "--mix",
            mix,
        ]);
        let result = workload.work();
        let launches = exported_launches(&exporter.samples(), &workload.pid());
        let made: u64 =
            result[key].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
        assert!(made > 10_000, "{made}");
        assert!(launches.len() <= MOST_SERIES, "{launches:?}");
        assert_eq!(launches.values().sum::<u64>(), made, "{launches:?}");
        assert!(launches["other"] > 0, "{launches:?}");
        workload.end();
    }
}

#[test]
fn launches_of_the_hottest_kernels_are_timed() {
    let (exporter, _keeper) = attached();
    let mut workload = Workload::start(&[
        "rate",
        "--per-second=2000",
        "--seconds=4",
        "--kernels=4",
        "--script=cudaLaunchKernel:spin=20us",
    ]);
    let pid = workload.pid();
    workload.go();
    let count =
        |samples: &Samples, name: &str| samples.count(COUNT, &[("pid", &pid), ("kernel", name)]);
    let early = until("times of every kernel", || {
        let samples = exporter.samples();
        NAMES[..4].iter().all(|(_, name)| count(&samples, name) > 0).then_some(samples)
    });
    let next = exporter.samples();
    let result = workload.truth();
    let late = exporter.samples();
    for (name, made) in truth(&result, &["kernels"]) {
        // A page has the launches made before its times, and the next page those made after: the truth lies between, give
        // or take one launch on its way.
        let [least, most] = [&next, &early].map(|page| made - exported_launches(page, &pid)[&name]);
        let [timed_before, timed] = [&early, &late].map(|samples| count(samples, &name));
        assert!(timed <= made, "{name}: {timed} timed of {made}");
        let since = timed - timed_before;
        assert!(
            (least.saturating_sub(1)..=most + 1).contains(&since),
            "{name}: {since} of {least} to {most} timed"
        );
        let sum = "gpucause_kernel_launch_duration_seconds_sum";
        let seconds = late.sum(sum, &[("pid", &pid), ("kernel", &name)]);
        assert!(seconds >= 20e-6 * timed as f64, "{name}: {seconds} s in {timed} launches");
    }
    assert_eq!(late.count("gpucause_map_full_total", &[("map", "kernel_hists")]), 0);
    workload.end();
}

#[test]
fn a_process_that_ended_before_anybody_scraped_has_named_its_kernels() {
    let (exporter, _keeper) = attached();
    let mut workload =
        Workload::start(&["rate", "--per-second=1000", "--seconds=3", "--kernels=8"]);
    let result = workload.work();
    let pid = workload.pid();
    workload.end();
    let samples = exporter.samples();
    assert_eq!(exported_launches(&samples, &pid), truth(&result, &["kernels"]));
    let timed = samples.count(COUNT, &[("pid", &pid)]);
    assert!(timed > 0, "those that were timed while it lived stay");
}
