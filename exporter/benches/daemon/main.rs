//! Cost of the daemon for its host, with the bounds that it must keep: CPU time while calls are counted and nobody scrapes; time of a
//! scrape and memory with many observed processes, alone and as a container counts it; and cost of the probes for a program with and
//! without a budget. Run with `make bench`.
//!
//! The daemon is the real program in a process of its own; the calls are those of stand-in workloads.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a benchmark that cannot run says so by a panic"
)]
#![allow(clippy::print_stdout, reason = "a benchmark prints")]

mod budget;
mod container;
mod measure;

use gpucause_fixture::exporter::{Exporter, SHARED_FOR};
use gpucause_fixture::http_client;
use gpucause_fixture::ops::OPS;
use gpucause_fixture::samples::Samples;
use gpucause_fixture::workload::{Workload, libraries};
use measure::{Memory, cpu_time, memory, quantile};
use std::io::Write as _;
use std::time::{Duration, Instant};

const CALLS_PER_SECOND: u64 = 100_000;
/// Several, because the daemon also scans other programs that start on the host.
const CPU_WINDOWS: u32 = 7;
const CPU_WINDOW: Duration = Duration::from_secs(3);
/// Part of one core.
const CPU_BOUND: f64 = 0.002;

/// How many processes are observed, how many calls each makes, and what must be kept.
struct Crowd {
    processes: usize,
    calls_each: u64,
    /// The median with gzip, at the default level.
    scrape_bound: Duration,
    memory_bound_mib: f64,
    /// Scrapes before memory is measured again.
    many_scrapes: usize,
}

const CROWDS: [Crowd; 2] = [
    Crowd {
        processes: 64,
        calls_each: 10_000,
        scrape_bound: Duration::from_millis(6),
        memory_bound_mib: 40.0,
        many_scrapes: 1000,
    },
    Crowd {
        processes: 1000,
        calls_each: 1_000,
        scrape_bound: Duration::from_millis(60),
        memory_bound_mib: 80.0,
        many_scrapes: 50,
    },
];
/// Scrapes of one form that are timed.
struct Scrapes {
    name: &'static str,
    /// From one to the next.
    interval: Duration,
    /// Scrapes before them, which are not timed.
    skipped: usize,
    timed: usize,
}

impl Scrapes {
    /// Not expected: the sample is taken on request.
    const OUT_OF_TURN: Self =
        Self { name: "out of turn", interval: Duration::ZERO, skipped: 0, timed: 30 };
    /// Expected, as from Prometheus: the sample is taken before the request.
    const AT_AN_INTERVAL: Self =
        Self { name: "at an interval", interval: Duration::from_secs(1), skipped: 3, timed: 15 };
}

/// The level of a configuration that names none, `standard`.
const DEFAULT: &str = "/metrics";
const FULL: &str = "/metrics?level=full";

/// Name, and the headers that ask for it.
const FORMATS: [(&str, &str); 6] = [
    ("text", ""),
    ("text, gzip", "Accept-Encoding: gzip\r\n"),
    ("OpenMetrics", "Accept: application/openmetrics-text\r\n"),
    ("OpenMetrics, gzip", "Accept: application/openmetrics-text\r\nAccept-Encoding: gzip\r\n"),
    (
        "protobuf",
        "Accept: application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited\r\n",
    ),
    (
        "protobuf, gzip",
        "Accept: application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited\r\n\
         Accept-Encoding: gzip\r\n",
    ),
];

fn main() {
    idle();
    CROWDS.iter().for_each(scraped);
    println!();
    container::run();
    println!();
    budget::run();
}

fn idle() {
    let exporter = Exporter::start(&["--probe.budget=off"]);
    let rate = format!("--per-second={CALLS_PER_SECOND}");
    let seconds = (CPU_WINDOW * CPU_WINDOWS).as_secs_f64() + 2.0;
    let length = format!("--seconds={seconds}");
    let mut workload = Workload::start(&["rate", "--threads=2", &rate, &length]);
    exporter.until_attached(&libraries().join("libcudart.so.12"));
    workload.go();
    std::thread::sleep(Duration::from_secs(1));
    let mut shares: Vec<f64> = (0..CPU_WINDOWS)
        .map(|_| {
            let (begin, before) = (Instant::now(), cpu_time(exporter.pid()));
            std::thread::sleep(CPU_WINDOW);
            (cpu_time(exporter.pid()) - before).div_duration_f64(begin.elapsed())
        })
        .collect();
    shares.sort_by(f64::total_cmp);
    let mean = shares.iter().sum::<f64>() / shares.len() as f64;
    let truth = workload.truth();
    let calls = truth["calls"]["cudaLaunchKernel"].as_u64().unwrap();
    let pid = workload.pid();
    let labels = [("pid", pid.as_str()), ("op", "cudaLaunchKernel")];
    let counted = exporter.samples().count("gpucause_cuda_call_duration_seconds_count", &labels);
    assert_eq!(counted, calls);
    println!("nobody scrapes, {:.0} calls/s for {seconds:.0} s", calls as f64 / seconds);
    println!(
        "  CPU of the daemon  {:.3} % of a core, {:.3} % in the median of {CPU_WINDOWS} windows   (must be <= {:.1} %)",
        100.0 * mean,
        100.0 * shares[shares.len() / 2],
        100.0 * CPU_BOUND
    );
}

impl Crowd {
    /// Processes that have called every op, with durations that spread: each op takes a time of its own, and several processes
    /// fight for the CPUs.
    fn gather(&self) -> Workload {
        let mix = OPS.map(|op| format!("{op}=1")).join(",");
        let spin = |(index, op)| format!("{op}:spin={}ns", 500 * (1 + (index * 7) % 40));
        let script = OPS.iter().enumerate().map(spin).collect::<Vec<_>>().join(";");
        let (processes, calls) =
            (format!("--processes={}", self.processes), format!("--calls={}", self.calls_each));
        let crowd = ["crowd", &processes, &calls, "--mix", &mix, "--script", &script];
        let mut crowd = Workload::start(&crowd);
        crowd.work();
        crowd
    }
}

fn scraped(crowd: &Crowd) {
    // The limit admits every process of the crowds; the default limit is lower.
    let mut config = tempfile::NamedTempFile::new().unwrap();
    write!(config, "limits: {{live_processes: 1024}}").unwrap();
    let exporter = Exporter::start(&["--config.file", config.path().to_str().unwrap()]);
    let holder = Workload::start(&["calls", "--calls=1", "--mix=cuLaunchKernel,ncclAllReduce"]);
    for library in ["libcudart.so.12", "libcuda.so.1", "libnccl.so.2"] {
        exporter.until_attached(&libraries().join(library));
    }
    let start = memory(exporter.pid());
    let gathered = crowd.gather();
    let idle_share = share(&exporter);
    let (first, _) = timed(&exporter, DEFAULT, FORMATS[1].1);
    let page = http_client::request(exporter.address, "GET", DEFAULT, "");
    let samples = Samples::parse(page.text());
    let series = samples.of("gpucause_cuda_call_duration_seconds_count", &[]).len();
    let counted = samples.count("gpucause_cuda_call_duration_seconds_count", &[]);
    let chunks = samples.count("gpucause_map_entries", &[("map", "hists")]);
    println!(
        "{} processes x {} ops: {series} call histograms of {counted} calls, {chunks} chunks, {} samples",
        crowd.processes,
        OPS.len(),
        samples.series().len()
    );
    println!("  evaluates causes   {:5.2} % of a core, without scrapes", 100.0 * idle_share);
    println!("  first scrape       {:5.1} ms, {}", first.as_secs_f64() * 1e3, FORMATS[1].0);
    for (name, headers) in FORMATS {
        scrapes(&exporter, DEFAULT, name, headers, &Scrapes::OUT_OF_TURN, "");
        if name.ends_with("gzip") {
            let bound = format!("median must be <= {} ms", crowd.scrape_bound.as_millis());
            scrapes(&exporter, DEFAULT, name, headers, &Scrapes::AT_AN_INTERVAL, &bound);
        }
    }
    let report = |when: &str, Memory { resident, anonymous, peak }: Memory| {
        println!(
            "  memory {when:<18} {resident:5.1} MiB resident, {anonymous:5.1} MiB of it anonymous, {peak:5.1} MiB at most   \
             (must be <= {} MiB)",
            crowd.memory_bound_mib
        );
    };
    report("at start", start);
    report("at standard", memory(exporter.pid()));
    for number in 0..crowd.many_scrapes {
        let (_, headers) = FORMATS[number % FORMATS.len()];
        scrape(&exporter, DEFAULT, headers);
    }
    report(&format!("{} scrapes later", crowd.many_scrapes), memory(exporter.pid()));
    for (name, headers) in FORMATS.into_iter().filter(|(name, _)| name.ends_with("gzip")) {
        scrapes(&exporter, FULL, name, headers, &Scrapes::OUT_OF_TURN, "");
    }
    report("after full pages", memory(exporter.pid()));
    drop((gathered, holder));
}

/// The bytes of a page, which may show a sample that an earlier one has shown.
fn scrape(exporter: &Exporter, path: &str, headers: &str) -> usize {
    let page = http_client::request(exporter.address, "GET", path, headers);
    assert_eq!(page.status, 200);
    page.body.len()
}

/// How long a page takes, and its bytes.
fn timed(exporter: &Exporter, path: &str, headers: &str) -> (Duration, usize) {
    let begin = Instant::now();
    let bytes = scrape(exporter, path, headers);
    (begin.elapsed(), bytes)
}

/// Prints the times of many scrapes of one form.
fn scrapes(
    exporter: &Exporter,
    path: &str,
    format: &str,
    headers: &str,
    how: &Scrapes,
    bound: &str,
) {
    let level = if path == FULL { "full" } else { "standard" };
    let mut bytes = 0;
    let mut next = Instant::now();
    let all: Vec<_> = (0..how.skipped + how.timed)
        .map(|_| {
            next += how.interval;
            std::thread::sleep(next.saturating_duration_since(Instant::now()).max(SHARED_FOR));
            let (time, length) = timed(exporter, path, headers);
            bytes = length;
            time
        })
        .collect();
    let mut times = all[how.skipped..].to_vec();
    times.sort_unstable();
    let at = |q| quantile(&times, q).as_secs_f64() * 1e3;
    println!(
        "  {level}: {format:<18} {:<14} {:5.1} ms median, {:5.1} ms p99, {:5.1} ms at most   {:.2} MB   {bound}",
        how.name,
        at(0.5),
        at(0.99),
        at(1.0),
        bytes as f64 / 1e6
    );
}

/// Part of one core that the daemon takes while nobody scrapes.
fn share(exporter: &Exporter) -> f64 {
    let (begin, before) = (Instant::now(), cpu_time(exporter.pid()));
    std::thread::sleep(2 * CPU_WINDOW);
    (cpu_time(exporter.pid()) - before).div_duration_f64(begin.elapsed())
}
