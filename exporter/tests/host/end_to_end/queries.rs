//! The queries of launches, as the documents and the rules have them, at each step that keeps to the probe budget: a real Prometheus
//! evaluates them, and what the programs did is the truth.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpucause_fixture::exporter::Exporter;
use gpucause_fixture::poll::{until, within};
use gpucause_fixture::prometheus_server::Prometheus;
use gpucause_fixture::workload::{Workload, libraries};
use tempfile::{NamedTempFile, TempDir};

const BUDGET: f64 = 0.003;
/// Until the programs end, unless they were asked about before.
const SECONDS: u64 = 150;
/// Seconds that each launch takes in the driver.
const SPIN: f64 = 20e-6;
/// Queries and rules look back on this instead of a minute.
const RANGE: &str = "[25s]";
/// Until all of that is of one step of the budget.
const SETTLES: Duration = Duration::from_secs(30);
/// How far a rate may be from the truth.
const TOLERANCE: f64 = 0.03;
/// The name of each program that is asked about. The exporter exports no others, as other tests may run.
const COMM: &str = "asked-about";

fn shipped(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(path)
}

/// Lines of code in documents that ask for launches.
fn queries_of_the_documents() -> Vec<String> {
    let read = |path| std::fs::read_to_string(shipped(path)).unwrap();
    let readme = ["README.md", "probes/README.md"].map(read).concat().replace("[1m]", RANGE);
    let code = readme.split("```").skip(1).step_by(2);
    let lines = code.flat_map(str::lines).map(|line| line.split('#').next().unwrap_or_default());
    let asks = |line: &&str| line.contains("(gpucause_launch") && !line.contains("curl");
    lines.map(str::trim).filter(asks).map(str::to_owned).collect()
}

/// The rules as they are, but over less time and each evaluated every second: a value of before all of that time was of these steps says
/// nothing.
fn rules() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(shipped("rules")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let text = std::fs::read_to_string(&path).unwrap().replace("[1m]", RANGE);
            let lines = text.lines().filter(|line| !line.trim_start().starts_with("interval:"));
            let text: String = lines.flat_map(|line| [line, "\n"]).collect();
            std::fs::write(dir.path().join(path.file_name().unwrap()), text).unwrap();
        }
    }
    dir
}

/// Exports the programs that are asked about.
fn exporter() -> (Exporter, NamedTempFile) {
    let config = NamedTempFile::with_suffix(".yaml").unwrap();
    let include = format!("processes: {{include: [{{comm: {COMM}}}]}}\n");
    std::fs::write(config.path(), include).unwrap();
    let file = config.path().to_str().unwrap();
    let exporter = Exporter::start(&[
        "--config.file",
        file,
        "--probe.budget",
        &BUDGET.to_string(),
        "--probe.counting-limit",
        &BUDGET.to_string(),
        // Measured costs follow the caches, and a program would change its step with them.
        "--probe.hit-costs=1300,800",
    ]);
    (exporter, config)
}

/// Launches a second that have a process observed at each step, by what hits are taken to cost.
fn rates(exporter: &Exporter) -> [(&'static str, f64); 4] {
    let samples = exporter.samples();
    let cost = |probe| samples.sum("gpucause_probe_hit_cost_seconds", &[("probe", probe)]);
    let (timed, entry) = (cost("call"), cost("call_entry"));
    [
        ("full", BUDGET / (2.5 * (timed + entry))),
        ("driver_only", BUDGET / (1.4 * timed)),
        ("sampled", BUDGET / (1.5 * entry)),
        ("part_time", BUDGET / (0.6 * entry)),
    ]
}

#[test]
fn queries_of_the_documents_and_rules_are_right_at_each_step_of_the_budget() {
    let (exporter, _config) = exporter();
    let rules = rules();
    let prometheus = Prometheus::start(
        &format!(
            "global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}\n\
             rule_files: ['{}/*.yaml']\nscrape_configs:\n- job_name: gpucause\n  \
             static_configs: [{{targets: ['{}']}}]\n",
            rules.path().display(),
            exporter.address
        ),
        &[],
    );
    let mut programs: Vec<_> = rates(&exporter)
        .into_iter()
        .map(|(step, rate)| {
            let (rate, seconds) = (rate.round().to_string(), SECONDS.to_string());
            let script = format!("cuLaunchKernel:spin={}us;nest=1", SPIN * 1e6);
            let pace = ["rate", "--stoppable", "--per-second", &rate, "--seconds", &seconds];
            let arguments = [&pace[..], &["--script", &script, "--comm", COMM]].concat();
            (step, Workload::start(&arguments))
        })
        .collect();
    exporter.until_attached(&libraries().join("libcuda.so.1"));
    let began = Instant::now();
    programs.iter_mut().for_each(|(_, program)| program.go());
    for (step, program) in &programs {
        let of_step = [("pid", program.pid()), ("step", (*step).to_owned())];
        let labels = of_step.each_ref().map(|(name, value)| (*name, value.as_str()));
        let name = "gpucause_launch_sampling_ratio";
        until("each program at its step", || exporter.samples().has(name, &labels).then_some(()));
    }
    std::thread::sleep(SETTLES);
    let value = |query: &str, pid: &str| {
        let of_pid = prometheus.query(query, "pid").into_iter().find(|(own, _)| own == pid);
        of_pid.map(|(_, value)| value)
    };
    let queries = queries_of_the_documents();
    assert!(queries.len() >= 4, "{queries:?}");
    let asked: Vec<_> = programs
        .iter()
        .map(|(_, program)| {
            let pid = program.pid();
            let of_readme: Vec<_> = queries.iter().map(|query| value(query, &pid)).collect();
            let rule = |name: &str| within(Duration::from_secs(35), name, || value(name, &pid));
            let ruled = [
                rule("process:gpucause_launches:rate1m"),
                rule("process:gpucause_launches_timed:ratio_rate1m"),
                rule("process:gpucause_launch_duration_seconds:p50_1m"),
            ];
            (of_readme, ruled)
        })
        .collect();
    let took = began.elapsed().as_secs();
    assert!(took < SECONDS, "the programs ended before they were asked about, after {took} s");
    programs.iter_mut().for_each(|(_, program)| program.stop());
    for ((step, mut program), (of_readme, [rate, timed, p50])) in programs.into_iter().zip(asked) {
        let own = program.truth();
        let made = own["calls"]["cudaLaunchKernel"].as_f64().unwrap();
        let counted = exporter.samples().sum("gpucause_launches_total", &[("pid", &program.pid())]);
        // Launches that began while probes were replaced may count twice, or not at all.
        let is_right =
            if step == "part_time" { counted < made } else { (counted - made).abs() <= 4.0 };
        assert!(is_right, "{step}: {counted} launches, and {made} in truth");
        let truth = made / (own["threads"][0]["wall_ns"].as_f64().unwrap() / 1e9);
        let is_rate = |value: f64| (value / truth - 1.0).abs() < TOLERANCE;
        assert!(is_rate(rate), "{step}: {rate} launches/s by the rule, and {truth} in truth");
        let share = match step {
            "full" | "driver_only" => (0.97, 1.001),
            // This is the share of the launches that were seen, also of a process that is partly observed.
            _ => (0.014, 0.018),
        };
        assert!((share.0..share.1).contains(&timed), "{step}: {timed} are timed");
        assert!((SPIN..2.5 * SPIN).contains(&p50), "{step}: p50 {p50} s");
        for (query, value) in queries.iter().zip(of_readme) {
            let value = value.unwrap_or_else(|| panic!("{step}: no answer to {query}"));
            let right = match query {
                query if query.contains("histogram_quantile") => value >= SPIN,
                query if query.contains("timed_total") => (share.0..share.1).contains(&value),
                _ => is_rate(value),
            };
            assert!(right, "{step}: {query} is {value}, with {truth} launches/s in truth");
        }
        program.end();
    }
    prometheus.assert_that_it_complained_of_nothing();
}
