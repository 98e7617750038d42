//! Faults of exporters, and of what they need: each fires its alert for that exporter, and for no other.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gpucause_fixture::exporter::Exporter;
use gpucause_fixture::poll::{until, within};
use gpucause_fixture::programs::scratch;
use gpucause_fixture::prometheus_server::Prometheus;
use gpucause_fixture::workload::{Workload, libraries};
use nix::sys::signal::Signal;
use tempfile::NamedTempFile;

use super::stack::rules;
use crate::alone::alone;

/// How many times as fast the clock is: an hour is half a minute, and a minute has three scrapes.
const SPEED: u32 = 120;
const INTERVAL: &str = "150ms";
/// The longest that an alert of these waits, of the shipped clock, is an hour.
const DEADLINE: Duration = Duration::from_secs(60);
const RUNTIME: &str = "libcudart.so.12";
/// Ends with its standard input.
const MAPS: &str = "import mmap, sys\nfile = open(sys.argv[1], 'rb')\n\
                    mapped = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)\n\
                    print(flush=True)\nsys.stdin.read()";

/// Alerts of exporters, each with its instance.
type Alerts = BTreeSet<(String, String)>;

fn config(text: &str) -> NamedTempFile {
    let file = NamedTempFile::with_suffix(".yaml").unwrap();
    fs::write(file.path(), text).unwrap();
    file
}

fn exporter(config: &Path, arguments: &[&str]) -> Exporter {
    let always = ["--nvml.off", "--config.file", config.to_str().unwrap()];
    Exporter::start(&[&always, arguments].concat())
}

fn prometheus(exporters: &[&Exporter], rules: &Path) -> Prometheus {
    let targets: Vec<_> = exporters.iter().map(|own| format!("'{}'", own.address)).collect();
    let prometheus = Prometheus::start(
        &format!(
            "global: {{scrape_interval: {INTERVAL}, scrape_timeout: {INTERVAL}, evaluation_interval: {INTERVAL}}}\n\
             rule_files: ['{rules}/rules/*.yaml', '{rules}/alerts/*.yaml']\nscrape_configs:\n- job_name: gpucause\n  \
             static_configs: [{{targets: [{}]}}]\n",
            targets.join(", "),
            rules = rules.display(),
        ),
        &[],
    );
    let up = exporters.len() as f64;
    until("a scrape of each", || prometheus.value("sum(up)").filter(|&all| all == up));
    prometheus
}

/// The alerts of exporters that fired in the last hour.
fn fired(prometheus: &Prometheus) -> Alerts {
    let expression =
        "max_over_time(ALERTS{alertstate=\"firing\", component=\"exporter\"}[1h])".to_owned();
    let series = prometheus.series(&expression).into_iter();
    let label = |metric: &serde_json::Value, name: &str| metric[name].as_str().unwrap().to_owned();
    series
        .map(|one| (label(&one["metric"], "alertname"), label(&one["metric"], "instance")))
        .collect()
}

/// A process that has mapped the first part of a library. Killed when dropped.
struct Mapper(Child);

impl Drop for Mapper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn broken_library() -> Mapper {
    let folder = scratch().join("truncated");
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join(RUNTIME);
    let whole = fs::read(libraries().join(RUNTIME)).unwrap();
    fs::write(&path, &whole[..4096]).unwrap();
    let child = Command::new("python3")
        .args(["-c", MAPS])
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut mapper = Mapper(child.expect("python3 is installed"));
    let mapped = BufReader::new(mapper.0.stdout.take().unwrap()).lines().next();
    assert!(mapped.is_some(), "it maps the library");
    mapper
}

#[test]
#[ignore = "takes a while: make test-waits has it"]
fn each_fault_of_an_exporter_fires_its_alert_for_it_alone() {
    let _alone = alone();
    let plain = config("metrics: {level: full}\n");
    let changed = config("metrics: {level: full}\n");
    let few = config("limits: {live_processes: 1}\n");
    let healthy = exporter(plain.path(), &[]);
    let down = exporter(plain.path(), &[]);
    let disabled = exporter(plain.path(), &[]);
    let rejected = exporter(changed.path(), &[]);
    let without_dcgm = exporter(plain.path(), &["--dcgm.url=http://127.0.0.1:9/metrics"]);
    let crowded = exporter(few.path(), &[]);
    let over_budget =
        exporter(plain.path(), &["--probe.budget=0.01%", "--probe.counting-limit=20%"]);
    let rules = rules(SPEED, false);
    let all = [&healthy, &down, &disabled, &rejected, &without_dcgm, &crowded, &over_budget];
    let prometheus = prometheus(&all, rules.path());
    let expected = |alert: &str, own: &Exporter| (alert.to_owned(), own.address.to_string());
    let mut alerts: Alerts = [
        expected("GpucauseExporterDown", &down),
        expected("GpucauseProbesDisabled", &disabled),
        expected("GpucauseConfigRejected", &rejected),
        expected("GpucauseDcgmUnreachable", &without_dcgm),
        expected("GpucauseSeriesFolded", &crowded),
        expected("GpucauseProbesOverBudget", &over_budget),
    ]
    .into();
    for observes in [&healthy, &rejected, &without_dcgm, &crowded, &over_budget] {
        alerts.insert(expected("GpucauseProbesBroken", observes));
    }
    down.signal(Signal::SIGTERM);
    down.ended();
    disabled.signal(Signal::SIGUSR1);
    fs::write(changed.path(), "metrics: {level: loud}\n").unwrap();
    rejected.signal(Signal::SIGHUP);
    let mut busy = Workload::start(&["rate", "--per-second=1000", "--seconds=90"]);
    over_budget.until_attached(&libraries().join(RUNTIME));
    busy.go();
    let mut crowd = Workload::start(&["crowd", "--processes=8", "--calls=40"]);
    crowd.work();
    let _broken = broken_library();
    within(DEADLINE, "each alert", || {
        let now = fired(&prometheus);
        println!("{} of {}", now.intersection(&alerts).count(), alerts.len());
        now.is_superset(&alerts).then_some(())
    });
    assert_eq!(fired(&prometheus), alerts);
    prometheus.assert_that_it_complained_of_nothing();
}
