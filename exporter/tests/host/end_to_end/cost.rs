//! Cost of the probes, their budget, and how they are switched off.

use std::time::{Duration, Instant};

use gpucause_fixture::exporter::Exporter;
use gpucause_fixture::http_client;
use gpucause_fixture::poll::until;
use gpucause_fixture::samples::Samples;
use gpucause_fixture::workload::{Workload, libraries};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::kernel_objects::KernelObjects;

const CALLS: &str = "gpucause_cuda_call_duration_seconds_count";
const DUTY: &str = "gpucause_probe_duty_ratio";
const LAUNCHES: &str = "gpucause_launches_total";
const TIMED: &str = "gpucause_launches_timed_total";
const OBSERVED: &str = "gpucause_calls_observed_seconds_total";
const UNOBSERVED: &str = "gpucause_calls_unobserved_seconds_total";
const SAMPLING: &str = "gpucause_launch_sampling_ratio";
const HIT_COST: &str = "gpucause_probe_hit_cost_seconds";
const COST: &str = "gpucause_probe_cost_seconds_total";
const HITS: &str = "gpucause_probe_hits_total";
const CALL: [(&str, &str); 1] = [("probe", "call")];

/// All runs of all programs.
fn hits(samples: &Samples) -> u64 {
    samples.count(HITS, &[])
}

fn chains_of(exporter: &Exporter, pid: &str) -> Vec<Value> {
    let response = exporter.chains();
    let answer: Value = serde_json::from_slice(&response.body).unwrap();
    let chains = answer["data"]["chains"].as_array().unwrap().clone();
    let own = |chain: &Value| chain["victim"]["pid"].as_u64() == pid.parse().ok();
    chains.into_iter().filter(own).collect()
}

fn until_disabled(exporter: &Exporter, verdict: &[(&str, &str)]) {
    until("the probes to go", || {
        exporter.samples().has("gpucause_probe_status", verdict).then_some(())
    });
}

#[test]
fn over_the_counting_limit_calls_are_seen_part_of_the_time_and_their_rate_stays_right() {
    const SECONDS: Duration = Duration::from_secs(13);
    let exporter = Exporter::start(&["--probe.budget=1%", "--probe.counting-limit=1%"]);
    let mut workload = Workload::start(&[
        "rate",
        "--per-second=50000",
        &format!("--seconds={}", SECONDS.as_secs()),
    ]);
    exporter.until_attached(&libraries().join("libcudart.so.12"));
    let pid = workload.pid();
    let own = [("pid", pid.as_str())];
    workload.go();
    let started = Instant::now();
    let part_time = [own[0], ("step", "part_time")];
    until("launches observed in part", || {
        exporter.samples().has(SAMPLING, &part_time).then_some(())
    });
    let (before, began) = (exporter.samples(), Instant::now());
    std::thread::sleep(Duration::from_secs(6));
    // Pauses are longer where probes take long to attach.
    let (after, wall) = until("half a second of slices", || {
        let (after, wall) = (exporter.samples(), began.elapsed().as_secs_f64());
        let observed = after.sum(OBSERVED, &own) - before.sum(OBSERVED, &own);
        (observed > 0.5).then_some((after, wall))
    });
    assert!(started.elapsed() < SECONDS, "it ended before it was measured");
    let truth = workload.truth();
    let more = |name, labels: &[(&str, &str)]| after.sum(name, labels) - before.sum(name, labels);
    assert!(after.sum(LAUNCHES, &own) < truth["calls"]["cudaLaunchKernel"].as_f64().unwrap());
    let (observed, unobserved) = (more(OBSERVED, &own), more(UNOBSERVED, &own));
    assert!(
        (observed + unobserved - wall).abs() < 0.2,
        "{observed} s and {unobserved} s of {wall} s"
    );
    let rate = more(LAUNCHES, &own) / observed;
    let true_rate = truth["calls"]["cudaLaunchKernel"].as_f64().unwrap() / SECONDS.as_secs_f64();
    assert!(
        (rate / true_rate - 1.0).abs() < 0.03,
        "{rate} launches/s, where there are {true_rate}"
    );
    assert!(more(TIMED, &own) < 0.1 * more(LAUNCHES, &own), "{} were timed", more(TIMED, &own));
    assert!(after.sum(DUTY, &[]) < 0.9, "{}", after.sum(DUTY, &[]));
    assert!(after.sum(COST, &[("probe", "switch")]) > 0.0);
    let (each, entry) =
        (after.sum(HIT_COST, &CALL), after.sum(HIT_COST, &[("probe", "call_entry")]));
    let (hits, cost) = (after.sum(HITS, &CALL), after.sum(COST, &CALL));
    // They are measured alike on a CPU that others use meanwhile; the program's caches may be warmer, and a little colder.
    assert!(entry <= each * (1.0 + 1e-9), "{entry} s and {each} s");
    let is_between = hits * entry / 4.0 <= cost && cost <= hits * each * 1.25;
    assert!(is_between, "{cost} s for {hits} hits");
    let chains = chains_of(&exporter, &pid);
    let false_effects = ["launch_rate_drop", "hang", "sync_storm"];
    assert!(
        chains.iter().all(|c| !false_effects.contains(&c["effect"].as_str().unwrap())),
        "{chains:?}"
    );
    let in_flight = exporter.samples().sum("gpucause_inflight_call_age_seconds", &own);
    assert_eq!(in_flight, 0.0);
    workload.end();
}

/// How often the thread that changes probes has begun to wait.
fn waits_to_change_probes(exporter: &Exporter) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", exporter.pid())).unwrap();
    let statuses = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("status")));
    // Threads end meanwhile.
    let own = statuses.filter_map(Result::ok).find(|status| status.contains("gpucause-find"));
    let own = own.expect("no thread gpucause-find");
    let switches = own.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    switches.unwrap().trim().parse().unwrap()
}

#[test]
fn without_a_budget_the_thread_that_changes_probes_waits_for_something_to_do() {
    let exporter = Exporter::start(&["--probe.budget=off"]);
    let (before, began) = (waits_to_change_probes(&exporter), Instant::now());
    std::thread::sleep(Duration::from_secs(2));
    let waits = (waits_to_change_probes(&exporter) - before) as f64;
    let per_second = waits / began.elapsed().as_secs_f64();
    // Some are for programs that others start.
    assert!(per_second < 200.0, "{per_second} waits a second");
}

#[test]
fn a_signal_takes_every_probe_away_and_brings_them_back() {
    let exporter = Exporter::start(&[]);
    let mut workload = Workload::start(&["rate", "--per-second=2000", "--seconds=12"]);
    let runtime = libraries().join("libcudart.so.12");
    exporter.until_attached(&runtime);
    let pid = workload.pid();
    let own = [("pid", pid.as_str()), ("op", "cudaLaunchKernel")];
    workload.go();
    until("some of its calls", || (exporter.samples().count(CALLS, &own) > 500).then_some(()));
    exporter.signal(Signal::SIGUSR1);
    until_disabled(&exporter, &[("probe", "call"), ("verdict", "disabled")]);
    let left = KernelObjects::of_process(exporter.pid());
    assert!(left.links.is_empty(), "{left:?}");
    let off = exporter.samples();
    assert!(
        off.has("gpucause_probe_status", &[("probe", "sched_switch"), ("verdict", "disabled")])
    );
    assert!(!off.has("gpucause_probe_status", &[("verdict", "attached")]));
    assert!(!off.has("gpucause_probe_status", &[("verdict", "broken")]));
    assert_eq!(off.sum(DUTY, &[]), 0.0);
    let ready = http_client::get(exporter.address, "/-/ready");
    assert_eq!(ready.status, 200);
    assert!(ready.text().contains("disabled"), "{}", ready.text());
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(hits(&exporter.samples()), hits(&off));

    exporter.signal(Signal::SIGUSR1);
    exporter.until_attached(&runtime);
    let before = off.count(CALLS, &own);
    until("its calls again", || {
        (exporter.samples().count(CALLS, &own) > before + 500).then_some(())
    });
    assert_eq!(exporter.samples().sum(DUTY, &[]), 1.0);
    assert!(!exporter.samples().has("gpucause_probe_status", &[("verdict", "disabled")]));
    workload.truth();
    let chains = chains_of(&exporter, &pid);
    assert!(chains.iter().all(|chain| chain["effect"] != "hang"), "{chains:?}");
    workload.end();
}

#[test]
fn the_configuration_switches_probes_off_and_a_reload_undoes_the_signal() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.yaml");
    std::fs::write(&file, "probe: {enabled: false}\n").unwrap();
    let flag = format!("--config.file={}", file.display());
    let _holder = Workload::start(&["idle"]);
    let exporter = Exporter::start(&[&flag]);
    let disabled = [("probe", "call"), ("verdict", "disabled")];
    until_disabled(&exporter, &disabled);
    assert!(!exporter.log().contains("msg=attached"), "{}", exporter.log());
    let attached = [("probe", "sched_switch"), ("verdict", "attached")];
    let until_attached = || {
        until("the probes to come", || {
            exporter.samples().has("gpucause_probe_status", &attached).then_some(())
        });
    };
    std::fs::write(&file, "probe: {enabled: true, budget: off}\n").unwrap();
    until_attached();
    exporter.signal(Signal::SIGUSR1);
    until_disabled(&exporter, &disabled);
    exporter.signal(Signal::SIGHUP);
    until_attached();
    exporter.until_attached(&libraries().join("libcudart.so.12"));
}
