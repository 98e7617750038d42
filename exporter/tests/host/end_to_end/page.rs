//! The page: well formed in both formats, and true.

use gpucause_fixture::exporter::Exporter;
use gpucause_fixture::poll::until;
use gpucause_fixture::samples::Samples;
use gpucause_fixture::workload::{Workload, libraries};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

const CALLS: &str = "gpucause_cuda_call_duration_seconds";
const OPENMETRICS: &str = "Accept: application/openmetrics-text; version=1.0.0\r\n";
/// Quotes, a backslash and a line feed: what would end a label or a line, and an instruction to whoever reads it.
const HOSTILE_NAME: &str = "ignore all\"\\\n{}";
const MIX: &str = "cudaLaunchKernel=4,cuLaunchKernel=2,cudaMemcpyAsync=2,cudaMalloc=1,cudaFree=1,\
                   cudaStreamSynchronize=1,cudaEventQuery=1,ncclAllReduce=1";

/// An exporter and a workload that it is attached to, whose calls are still to come.
fn attached(arguments: &[&str]) -> (Exporter, Workload) {
    attached_with(&[], arguments)
}

fn attached_with(flags: &[&str], arguments: &[&str]) -> (Exporter, Workload) {
    let exporter = Exporter::start(flags);
    let workload = Workload::start(arguments);
    exporter.until_attached(&libraries().join("libcudart.so.12"));
    (exporter, workload)
}

/// A command's output when it reads `input`.
fn fed(command: &mut Command, input: &[u8]) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}; `make test-tools` installs it"));
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(input));
        child.wait_with_output().unwrap()
    })
}

fn assert_promtool_is_silent(page: &[u8]) {
    let output = fed(Command::new("promtool").args(["check", "metrics"]), page);
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success() && said.is_empty(), "{said}");
}

/// Samples by name, as the parser of `prometheus-client` reads them.
fn parsed_by_python(page: &[u8]) -> BTreeMap<String, u64> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/host/end_to_end");
    // The folder where `.ci/test` puts what Python needs.
    let target = Path::new(env!("CARGO_BIN_EXE_gpucause")).ancestors().nth(2).unwrap();
    let mut python = Command::new("python3");
    python.arg(dir.join("parse_openmetrics.py")).env("PYTHONPATH", target.join("python"));
    let output = fed(&mut python, page);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "(`.ci/test` installs prometheus-client) {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_page_taken_in_the_midst_of_calls_satisfies_promtool_and_the_openmetrics_parser() {
    let arguments = ["rate", "--per-second=20000", "--seconds=600", "--threads=2", "--mix", MIX];
    let (exporter, mut workload) = attached(
        &[&arguments[..], &["--comm", HOSTILE_NAME, "--script=cudaMemcpyAsync:ret=700@3"]].concat(),
    );
    workload.go();
    let pid = workload.pid();
    until("calls of every kind", || {
        let samples = exporter.samples();
        let seen = |op| samples.has(&format!("{CALLS}_count"), &[("pid", &pid), ("op", op)]);
        let stalled = samples.has("gpucause_cuda_call_offcpu_seconds_total", &[("pid", &pid)]);
        (stalled && seen("ncclAllReduce") && seen("cuLaunchKernel")).then_some(())
    });
    assert_promtool_is_silent(&exporter.scrape("").body);
    let page = exporter.scrape(OPENMETRICS);
    let mut by_name = BTreeMap::new();
    for (name, _) in Samples::parse(page.text()).series() {
        *by_name.entry(name.to_owned()).or_insert(0) += 1;
    }
    assert_eq!(parsed_by_python(&page.body), by_name);
    assert!(by_name.contains_key(&format!("{CALLS}_created")));
    workload.kill();
}

#[test]
fn a_zipped_page_unzips_to_a_whole_one() {
    let (exporter, mut workload) = attached(&["calls", "--calls=100", "--mix", MIX]);
    workload.work();
    for headers in ["", OPENMETRICS] {
        let zipped = exporter.scrape(&format!("{headers}Accept-Encoding: gzip\r\n"));
        assert_eq!(zipped.header("content-encoding"), Some("gzip"));
        let mut page = String::new();
        flate2::read::GzDecoder::new(zipped.body.as_slice()).read_to_string(&mut page).unwrap();
        let samples = Samples::parse(&page);
        assert!(samples.has(&format!("{CALLS}_sum"), &[("pid", &workload.pid())]), "{page}");
        assert!(zipped.body.len() * 5 < page.len(), "{} of {}", zipped.body.len(), page.len());
    }
}

/// Whole numbers by key.
fn numbers(object: &Value) -> BTreeMap<&str, u64> {
    let members = object.as_object().unwrap();
    members.iter().map(|(key, number)| (key.as_str(), number.as_u64().unwrap())).collect()
}

/// Sums over `samples` of one name and process, by the value of one label.
fn by_label<'a>(
    samples: &'a Samples,
    name: &'a str,
    pid: &'a str,
    label: &str,
) -> BTreeMap<&'a str, u64> {
    let mut sums = BTreeMap::new();
    for sample in samples.of(name, &[("pid", pid)]) {
        let value = sample.value.to_string().parse::<u64>().unwrap();
        *sums.entry(sample.label(label)).or_default() += value;
    }
    sums
}

#[test]
fn counts_are_those_of_the_workload_by_op_exactly() {
    let arguments = ["calls", "--threads=4", "--calls=20000", "--kernels=5", "--mix", MIX];
    let (exporter, mut workload) = attached_with(&["--probe.budget=off"], &arguments);
    for library in ["libcuda.so.1", "libnccl.so.2"] {
        exporter.until_attached(&libraries().join(library));
    }
    let truth = workload.work();
    let samples = exporter.samples();
    let pid = workload.pid();
    let mut calls = numbers(&truth["calls"]);
    for (op, count) in numbers(&truth["setup_calls"]) {
        // Made before the workload was ready, so seen or not.
        assert!(samples.count(&format!("{CALLS}_count"), &[("pid", &pid), ("op", op)]) <= count);
        calls.remove(op);
    }
    let counted = by_label(&samples, "gpucause_cuda_call_duration_seconds_count", &pid, "op");
    for (op, count) in &calls {
        assert_eq!(counted.get(op), Some(count), "{op}");
    }
    let bucket = format!("{CALLS}_bucket");
    let everything = samples.count(&bucket, &[("pid", &pid), ("le", "+Inf")]);
    assert_eq!(everything, counted.values().sum::<u64>());
    let cold = [("pid", pid.as_str()), ("op", "cudaLaunchKernel"), ("cold", "true")];
    let cold = samples.count(&format!("{CALLS}_count"), &cold);
    // Each kernel's first launch, and those of the other threads that began before it ended.
    assert!((5..=5 * 4).contains(&cold), "{cold} cold launches");
    assert_eq!(samples.sum("gpucause_calls_abandoned_total", &[("pid", &pid)]), 0.0);
}

#[test]
fn calls_over_the_budget_are_timed_or_only_counted_and_none_is_missing() {
    let arguments = ["calls", "--threads=1", "--calls=20000", "--kernels=5", "--mix", MIX];
    let (exporter, mut workload) = attached(&arguments);
    for library in ["libcuda.so.1", "libnccl.so.2"] {
        exporter.until_attached(&libraries().join(library));
    }
    let truth = workload.work();
    let samples = exporter.samples();
    let pid = workload.pid();
    let timed = by_label(&samples, "gpucause_cuda_call_duration_seconds_count", &pid, "op");
    let counted = by_label(&samples, "gpucause_cuda_calls_untimed_total", &pid, "op");
    let calls = numbers(&truth["calls"]);
    for op in
        ["cudaMemcpyAsync", "cudaMalloc", "cudaFree", "cudaStreamSynchronize", "cudaEventQuery"]
    {
        let both = [&timed, &counted].map(|calls| calls.get(op).copied().unwrap_or(0));
        assert_eq!(both.iter().sum::<u64>(), calls[op], "{op}: {both:?}");
    }
    for op in ["cudaMalloc", "cudaFree", "cudaStreamSynchronize", "ncclAllReduce"] {
        assert_eq!(timed.get(op), calls.get(op), "what may wait is timed: {op}");
    }
    let launches = calls["cudaLaunchKernel"] + calls["cuLaunchKernel"];
    assert_eq!(samples.count("gpucause_launches_total", &[("pid", &pid)]), launches);
    assert!(counted.get("cudaEventQuery").is_some_and(|&calls| calls > 0), "{counted:?}");
}

#[test]
fn buckets_and_sums_are_those_of_the_calls_that_the_workload_timed() {
    let arguments =
        ["latency", "--delays=25us,300us,3ms,40ms", "--repeat=400,200,100,10", "--list"];
    let (exporter, mut workload) = attached(&arguments);
    let truth = workload.work();
    let samples = exporter.samples();
    let delays = truth["delays"].as_array().unwrap();
    let durations: Vec<u64> = delays
        .iter()
        .flat_map(|delay| delay["list_ns"].as_array().unwrap())
        .map(|ns| ns.as_u64().unwrap())
        .collect();
    let pid = workload.pid();
    let warm = [("pid", pid.as_str()), ("op", "cudaLaunchKernel"), ("cold", "false")];
    assert_eq!(samples.count(&format!("{CALLS}_count"), &warm), durations.len() as u64);
    let sum = durations.iter().sum::<u64>() as f64 / 1e9;
    let exported = samples.sum(&format!("{CALLS}_sum"), &warm);
    assert!((exported / sum - 1.0).abs() <= 0.01, "{exported} s, not {sum} s");
    // The workload reads its clock outside of the probed call: no call is shorter by its clock than by the probes'. What
    // a breakpoint and its return take lies between the two.
    const OUTSIDE_NS: u64 = 20_000;
    let mut before = 0;
    for bucket in samples.of(&format!("{CALLS}_bucket"), &warm) {
        let count = bucket.value.to_string().parse::<u64>().unwrap();
        let le = bucket.label("le").parse::<f64>().unwrap();
        let within = |slack: u64| {
            let fits = |&&ns: &&u64| ns.saturating_sub(slack) as f64 <= le * 1e9 + 0.5;
            durations.iter().filter(fits).count() as u64
        };
        // One in a hundred may have been interrupted between the clock and the probe.
        let most = within(OUTSIDE_NS) + durations.len() as u64 / 100;
        assert!((within(0)..=most).contains(&count), "{count} at most {le} s: {}", within(0));
        assert!(count >= before, "{before} and then {count} at most {le} s");
        before = count;
    }
    assert_eq!(before, durations.len() as u64, "the last bucket has all");
}

#[test]
fn a_contended_launch_shows_what_kept_it_from_running() {
    let (exporter, mut workload) =
        attached(&["contend", "--seconds=2", "--spin=200us", "--comm=trainer"]);
    let truth = workload.work();
    let samples = exporter.samples();
    let pid = workload.pid();
    let launches = [("pid", pid.as_str()), ("comm", "trainer"), ("op", "cudaLaunchKernel")];
    let calls = samples.count(&format!("{CALLS}_count"), &launches);
    assert_eq!(calls, truth["calls"]["cudaLaunchKernel"].as_u64().unwrap());
    let stalled = samples.count("gpucause_cuda_call_stalled_total", &launches);
    assert!((10..=calls).contains(&stalled), "{stalled} of {calls} calls stalled");
    let offcpu = samples.sum("gpucause_cuda_call_offcpu_seconds_total", &launches);
    let waited: f64 = ["preempted", "runqueue"]
        .iter()
        .map(|reason| {
            let labels = [&launches[..], &[("reason", *reason)]].concat();
            samples.sum("gpucause_cuda_call_offcpu_seconds_total", &labels)
        })
        .sum();
    let schedstat = truth["thread"]["schedstat"]["wait_ns"].as_f64().unwrap() / 1e9;
    assert!(waited >= 0.98 * offcpu, "{waited} of {offcpu} s");
    // Nearly all of the thread's time is inside launches, so nearly all of its wait for the CPU is.
    assert!(
        (0.9 * schedstat..=1.02 * schedstat).contains(&waited),
        "{waited} s, schedstat has {schedstat} s"
    );
    let preempted = [("pid", pid.as_str()), ("role", "dispatcher"), ("reason", "preempted")];
    let stretches = samples.count("gpucause_offcpu_duration_seconds_count", &preempted);
    let involuntary =
        [("pid", pid.as_str()), ("role", "dispatcher"), ("switch_type", "involuntary")];
    let switches = samples.count("gpucause_context_switches_total", &involuntary);
    assert!(stretches > 0 && switches >= stretches, "{stretches} stretches, {switches} switches");
    assert!(samples.has("gpucause_runqueue_latency_seconds_count", &[("pid", &pid)]));
}

#[test]
fn a_process_is_described_and_its_hostile_name_stays_a_label() {
    let (exporter, mut workload) =
        attached(&["calls", "--calls=10", "--threads=2", "--comm", HOSTILE_NAME]);
    workload.work();
    let page = exporter.scrape("");
    let label = "comm=\"ignore all\\\"\\\\?{}\"";
    assert!(page.text().contains(label), "{label} is missing in {}", page.text());
    let samples = Samples::parse(page.text());
    let pid = workload.pid();
    let info = samples.of("gpucause_process_info", &[("pid", &pid)]);
    let [info] = info[..] else { panic!("{info:?}") };
    assert_eq!(info.value, 1.0);
    assert_eq!(info.label("comm"), HOSTILE_NAME.replace('\n', "?"));
    assert!(info.label("exe").ends_with("/gpucause-workload"), "{info:?}");
    assert_eq!(info.label("user"), "root");
    assert!(info.label("cgroup").starts_with('/'), "{info:?}");
    assert_eq!(info.label("ns_pid"), pid, "it is in the PID namespace of the host");
    assert_eq!(samples.count(&format!("{CALLS}_count"), &[("pid", &pid)]), 20);
}

#[test]
fn errors_are_counted_by_name_and_not_ready_is_none() {
    let script = "--script=cudaMalloc:ret=2@5;cudaMemcpyAsync:ret=700@10;cuLaunchKernel:ret=719@4;cudaEventQuery:ret=600";
    let arguments = ["calls", "--calls=13000", "--threads=1", "--mix", MIX, script];
    // Over the budget some calls are only counted, and taken to succeed.
    let (exporter, mut workload) = attached_with(&["--probe.budget=off"], &arguments);
    exporter.until_attached(&libraries().join("libcuda.so.1"));
    let truth = workload.work();
    let samples = exporter.samples();
    let pid = workload.pid();
    for (op, code, error) in [
        ("cudaMalloc", "2", "cudaErrorMemoryAllocation"),
        ("cudaMemcpyAsync", "700", "cudaErrorIllegalAddress"),
        ("cuLaunchKernel", "719", "CUDA_ERROR_LAUNCH_FAILED"),
    ] {
        let labels = [("pid", pid.as_str()), ("op", op), ("error", error)];
        let expected = truth["errors"][op][code].as_u64().unwrap();
        assert!(expected > 0, "{op}");
        assert_eq!(samples.count("gpucause_cuda_call_errors_total", &labels), expected, "{op}");
    }
    // Each is answered by "not ready".
    let queried = truth["calls"]["cudaEventQuery"].as_u64().unwrap();
    let queries = [("pid", pid.as_str()), ("op", "cudaEventQuery")];
    assert!(queried > 0);
    assert_eq!(samples.count("gpucause_cuda_call_duration_seconds_count", &queries), queried);
    assert!(!samples.has("gpucause_cuda_call_errors_total", &queries));
}
