//! A real Prometheus scrapes the exporter: while a workload calls NVIDIA's real CUDA runtime, and with each kind of
//! histogram while one makes calls of known durations.

use gpucause_page::exposition::bucket_bounds::BOUNDS;
use gpucause_page::exposition::native::MAX_ERROR;

use gpucause_fixture::exporter::Exporter;
use gpucause_fixture::poll::until;
use gpucause_fixture::prometheus_server::Prometheus;
use gpucause_fixture::workload::{Workload, libraries};
use serde_json::Value;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// A Prometheus that scrapes one target every second. `features` are names of experimental features, separated by commas.
fn scraping(target: SocketAddr, features: &str) -> Prometheus {
    let config = format!(
        "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs:\n- job_name: gpucause\n  \
         static_configs: [{{targets: ['{target}']}}]\n"
    );
    Prometheus::start(&config, &[&format!("--enable-feature={features}")])
}

fn assert_that_every_scrape_succeeded(prometheus: &Prometheus) {
    assert_eq!(prometheus.query("up", "job"), [("gpucause".to_owned(), 1.0)]);
    assert_eq!(prometheus.value("min_over_time(up[1m])"), Some(1.0));
    let targets = prometheus.api("/api/v1/targets");
    let [target] = &targets["activeTargets"].as_array().unwrap()[..] else { panic!("{targets}") };
    let health = (&target["health"], &target["lastError"]);
    assert_eq!(health, (&"up".into(), &"".into()), "{target}");
    prometheus.assert_that_it_complained_of_nothing();
}

/// The first file of this name in a folder or the folders below it.
fn find(dir: &Path, name: &str) -> Option<PathBuf> {
    let entries: Vec<_> = fs::read_dir(dir).ok()?.map_while(Result::ok).collect();
    let here = entries.iter().find(|entry| entry.file_name() == name).map(fs::DirEntry::path);
    here.or_else(|| {
        let dirs = entries.iter().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        dirs.map(fs::DirEntry::path).find_map(|dir| find(&dir, name))
    })
}

/// NVIDIA's runtime library, out of its wheel.
fn real_cudart() -> PathBuf {
    let target = Path::new(env!("CARGO_BIN_EXE_gpucause")).ancestors().nth(2).unwrap();
    let dir = std::env::var_os("GPUCAUSE_REAL_CUDA")
        .map_or_else(|| target.join("real-cuda"), PathBuf::from);
    find(&dir, "libcudart.so.12").unwrap_or_else(|| {
        let dir = dir.display();
        panic!(
            "no libcudart.so.12 under {dir}; run: .ci/real-cuda {dir}, or set GPUCAUSE_REAL_CUDA"
        )
    })
}

#[test]
fn prometheus_has_the_true_counts_of_calls_to_the_real_runtime() {
    let cudart = real_cudart();
    // On a slow CPU these calls are more than the budget, and not all would be timed.
    let exporter = Exporter::start(&["--metrics.level=full", "--probe.budget=off"]);
    let prometheus = scraping(exporter.address, "");
    let mut workload = Workload::with(&[
        "rate",
        "--per-second=5000",
        "--seconds=5",
        "--threads=2",
        "--mix=cudaLaunchKernel=4,cudaMemcpyAsync=2,cudaMalloc=1,cudaFree=1,cudaStreamSynchronize=1",
        "--cudart",
        cudart.to_str().unwrap(),
    ]);
    exporter.until_attached(&cudart);
    // Prometheus takes some seconds before its first scrape.
    until("a scrape", || (!prometheus.query("up == 1", "job").is_empty()).then_some(()));
    let truth = workload.work();
    let counts: Vec<(String, f64)> = {
        let calls = truth["calls"].as_object().unwrap();
        calls.iter().map(|(op, count)| (op.clone(), count.as_f64().unwrap())).collect()
    };
    assert!(counts.len() == 5 && counts.iter().all(|(_, count)| *count > 1000.0), "{counts:?}");
    let pid = workload.pid();
    let query = format!("sum by (op) (gpucause_cuda_call_duration_seconds_count{{pid=\"{pid}\"}})");
    until("the counts of the last scrape", || {
        let mut stored = prometheus.query(&query, "op");
        stored.sort_by(|a, b| a.0.cmp(&b.0));
        (stored == counts).then_some(())
    });
    // There is no GPU driver here: every call fails, and must be counted as an error.
    let errors = truth["errors"].as_object().unwrap();
    let failed: u64 = errors
        .values()
        .flat_map(|codes| codes.as_object().unwrap().values())
        .flat_map(Value::as_u64)
        .sum();
    let query = format!("sum(gpucause_cuda_call_errors_total{{pid=\"{pid}\"}}) or vector(0)");
    assert_eq!(prometheus.query(&query, "")[0].1, failed as f64);
    let quantile = format!(
        "histogram_quantile(0.5, sum by (le) (rate(gpucause_cuda_call_duration_seconds_bucket{{pid=\"{pid}\"}}[30s])))"
    );
    let p50 = prometheus.query(&quantile, "")[0].1;
    assert!(p50 > 0.0 && p50 < 0.1, "the median call takes {p50} s");
    assert_that_every_scrape_succeeded(&prometheus);
    workload.end();
}

const CALLS: &str = "gpucause_cuda_call_duration_seconds";
/// A breakpoint and its return take this long: the workload reads its clock outside of the probed call, so that a call is that
/// much longer by its own account.
const OUTSIDE_SECONDS: f64 = 20e-6;

/// Durations of calls in seconds, ascending, as the workload took them.
fn durations(truth: &Value) -> Vec<f64> {
    let delays = truth["delays"].as_array().unwrap().iter();
    let lists = delays.flat_map(|delay| delay["list_ns"].as_array().unwrap());
    let mut durations: Vec<f64> = lists.map(|ns| ns.as_f64().unwrap() / 1e9).collect();
    durations.sort_by(f64::total_cmp);
    durations
}

/// Between which values a quantile lies when it is read from the classic bucket that counts `value`.
fn classic_bucket(value: f64) -> (f64, f64) {
    let bounds = || BOUNDS.iter().map(|bound| bound.upper.as_secs_f64());
    let lower = bounds().rfind(|&bound| bound < value).unwrap_or(0.0);
    (lower, bounds().find(|&bound| value <= bound).unwrap())
}

#[test]
fn quantiles_of_classic_and_of_native_histograms_are_those_of_the_workload() {
    let exporter = Exporter::start(&["--metrics.level=full"]);
    let classic = scraping(exporter.address, "");
    let native = scraping(exporter.address, "native-histograms,exemplar-storage");
    let arguments = ["latency", "--delays=100us,1500us,12ms", "--repeat=700,250,50", "--list"];
    let mut workload = Workload::start(&arguments);
    exporter.until_attached(&libraries().join("libcudart.so.12"));
    let durations = durations(&workload.work());
    // Its chain comes while Prometheus waits before its first scrape.
    let mut contended = Workload::start(&["contend", "--seconds=60", "--spin=200us"]);
    contended.go();
    let (count, sum) = (durations.len() as f64, durations.iter().sum::<f64>());
    let pid = workload.pid();
    let launches = format!("{{pid=\"{pid}\",op=\"cudaLaunchKernel\",cold=\"false\"}}");
    until("every call in classic buckets", || {
        (classic.value(&format!("{CALLS}_count{launches}")) == Some(count)).then_some(())
    });
    until("every call in native buckets", || {
        let stored = native.value(&format!("histogram_count({CALLS}{launches})"));
        (stored == Some(count)).then_some(())
    });
    for stored in [
        classic.value(&format!("{CALLS}_sum{launches}")),
        native.value(&format!("histogram_sum({CALLS}{launches})")),
    ] {
        assert!(
            stored.is_some_and(|own| (own / sum - 1.0).abs() < 0.02),
            "{stored:?}, not {sum} s"
        );
    }
    for (q, rank) in [(0.5, 500), (0.9, 900), (0.99, 990)] {
        let exact = durations[rank - 1];
        let least = exact - OUTSIDE_SECONDS;
        let quantile =
            |of: String| format!("histogram_quantile({q}, sum by (pid, le) ({of}{launches}))");
        let estimate = classic.value(&quantile(format!("{CALLS}_bucket"))).unwrap();
        let (lower, upper) = (classic_bucket(least).0, classic_bucket(exact).1);
        assert!(
            lower <= estimate && estimate <= upper,
            "classic p{q}: {estimate} s, {lower} to {upper} s"
        );
        let estimate = native.value(&quantile(CALLS.to_owned())).unwrap();
        let (lower, upper) = (least * (1.0 - MAX_ERROR), exact * (1.0 + MAX_ERROR));
        assert!(lower <= estimate && estimate <= upper, "native p{q}: {estimate} s, not {exact} s");
    }
    workload.end();
    exemplars_arrive(&native, &contended.pid());
    contended.kill();
    assert_that_every_scrape_succeeded(&classic);
    assert_that_every_scrape_succeeded(&native);
}

/// A chain's counter names the chain.
fn exemplars_arrive(prometheus: &Prometheus, pid: &str) {
    let exemplar = until("an exemplar", || {
        let found = prometheus.api("/api/v1/query_exemplars?query=gpucause_causal_chains_total");
        let series = found.as_array().unwrap().iter();
        let of_pid = series.filter(|series| series["seriesLabels"]["pid"] == pid);
        of_pid.flat_map(|series| series["exemplars"].as_array().unwrap().clone()).next()
    });
    let id = exemplar["labels"]["chain_id"].as_str().unwrap_or_default();
    assert!(id.contains(pid), "{exemplar}");
    assert_eq!(exemplar["value"], "1");
}
