//! The exporter, Prometheus with the shipped rules and alerts, and Alertmanager with the shipped routes. Of the shipped files
//! only addresses and durations are changed. A second Prometheus takes native histograms alone, and notifies nobody.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpucause_fixture::exporter::Exporter;
use gpucause_fixture::poll::{until, within};
use gpucause_fixture::prometheus_server::{PROMETHEUS, Prometheus, native_histograms, version};
use gpucause_fixture::server_process::ServerProcess;
use serde_json::Value;
use tempfile::{NamedTempFile, TempDir};

use super::clock::sped_up;
use super::expected::COMM;
use super::webhook::Webhook;
use crate::alone::alone;
use crate::trainer::{Trainer, libraries};

/// How many times as fast the clock is. Scrapes and evaluations, shipped with 15 s between them, then have 1.875 s.
pub(crate) const SPEED: u32 = 8;
/// Interval of scrapes and evaluations, whatever the clock.
const INTERVAL: &str = "1875ms";

/// Until the second Prometheus has seen what the first notified of: by a phase of its own, not later by more than an evaluation.
const NATIVE_DEADLINE: Duration = Duration::from_secs(15);

/// The path from a fault to its notification. Dropped in this order: clients before servers.
pub(crate) struct Stack {
    pub(crate) prometheus: Prometheus,
    native: Prometheus,
    alertmanager: ServerProcess,
    pub(crate) webhook: Webhook,
    exporter: Exporter,
    libraries: PathBuf,
    _config: NamedTempFile,
    _rules: [TempDir; 2],
    _alone: &'static File,
}

fn shipped(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(path)
}

/// A shipped file with replacements; each old text must occur the given number of times.
fn adapted(path: &str, changes: &[(&str, &str, usize)]) -> String {
    let text = fs::read_to_string(shipped(path)).unwrap();
    changes.iter().fold(text, |text, (old, new, times)| {
        assert_eq!(text.matches(old).count(), *times, "{old} in {path}");
        text.replace(old, new)
    })
}

/// The shipped routes, with the webhook as each receiver.
fn routes(webhook: &Webhook, speed: u32) -> String {
    let path = "alerts/alertmanager.yml";
    let text = fs::read_to_string(shipped(path)).unwrap();
    let receivers = text.matches("\n  - name: ").count();
    let ours = format!("http://{}/", webhook.address);
    sped_up(&adapted(path, &[("http://localhost:9095/", &ours, receivers)]), speed)
}

/// The shipped rules, with the prices of the example, and alerts, on a clock that is so many times as fast.
pub(super) fn rules(speed: u32, native: bool) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let shared = [("rules", "rules"), ("rules/prices", "rules"), ("alerts", "alerts")];
    // In place of the file of that name.
    let natives = native.then_some(("rules/native", "rules"));
    for (from, to) in shared.into_iter().chain(natives) {
        let to = dir.path().join(to);
        fs::create_dir_all(&to).unwrap();
        for path in fs::read_dir(shipped(from)).unwrap().map(|file| file.unwrap().path()) {
            if path.extension().is_some_and(|extension| extension == "yaml") {
                let text = fs::read_to_string(&path).unwrap();
                fs::write(to.join(path.file_name().unwrap()), sped_up(&text, speed)).unwrap();
            }
        }
    }
    dir
}

fn prometheus_config(
    exporter: &Exporter,
    alertmanager: Option<&ServerProcess>,
    rules: &Path,
    native_setting: &str,
) -> String {
    let alerts = format!("- {}/", rules.join("alerts").display());
    let rules = format!("- {}/", rules.join("rules").display());
    let grafana = "  # external_labels:\n  #   grafana: https://grafana.your.host";
    let notified =
        "  alertmanagers:\n    - static_configs:\n        - targets: ['localhost:9093']\n";
    let ours = alertmanager.map_or_else(String::new, |server| {
        notified.replace("localhost:9093", &server.address.to_string())
    });
    let changes: [(&str, &str, usize); 7] = [
        (grafana, "  external_labels:\n    grafana: https://grafana.example", 1),
        ("- ../rules/", &rules, 1),
        ("- ./", &alerts, 1),
        (notified, &ours, 1),
        ("# scrape_native_histograms: true", native_setting, 1),
        ("localhost:9400", &exporter.address.to_string(), 1),
        ("_interval: 15s", &format!("_interval: {INTERVAL}"), 2),
    ];
    adapted("alerts/prometheus.yml", &changes)
}

/// One that notifies this Alertmanager, or else one with native histograms alone; with its rules.
fn start_prometheus(
    exporter: &Exporter,
    alertmanager: Option<&ServerProcess>,
    speed: u32,
) -> (Prometheus, TempDir) {
    let native = alertmanager.is_none();
    let rules = rules(speed, native);
    let (setting, flags) = native_histograms(version(PROMETHEUS), native);
    let config = prometheus_config(exporter, alertmanager, rules.path(), &setting);
    let prometheus = Prometheus::start(&config, flags);
    until("a scrape", || (!prometheus.query("up == 1", "job").is_empty()).then_some(()));
    (prometheus, rules)
}

impl Stack {
    /// Starts everything, once no other test runs on this host; Prometheus and Alertmanager on a clock that is so many times as fast.
    pub(crate) fn start(speed: u32) -> Self {
        let alone = alone();
        // The host may have CUDA processes of other tests.
        let config = NamedTempFile::with_suffix(".yaml").unwrap();
        let include = format!("processes: {{include: [{{comm: {COMM}}}]}}\n");
        fs::write(config.path(), include).unwrap();
        let path = config.path().to_str().unwrap();
        let exporter = Exporter::start(&["--config.file", path, "--nvml.off"]);
        let webhook = Webhook::listen();
        let alertmanager = ServerProcess::start(
            "prometheus-alertmanager",
            &routes(&webhook, speed),
            "--storage.path",
            &["--cluster.listen-address="],
        );
        let (prometheus, rules) = start_prometheus(&exporter, Some(&alertmanager), speed);
        let (native, native_rules) = start_prometheus(&exporter, None, speed);
        let libraries = libraries();
        Self {
            prometheus,
            native,
            alertmanager,
            webhook,
            exporter,
            libraries,
            _config: config,
            _rules: [rules, native_rules],
            _alone: alone,
        }
    }

    /// Starts a scenario, with probes from its first call on.
    pub(crate) fn trainer(&self, arguments: &[String]) -> Trainer {
        let mut trainer = Trainer::start(&self.libraries, arguments);
        self.exporter.until_attached(&self.libraries.join("libcudart.so.12"));
        trainer.go();
        trainer
    }

    /// With native histograms alone, these alerts and no others fire in the end, each by its name and a PID; and that kind alone is stored.
    pub(crate) fn assert_that_native_histograms_alone_raise(
        &self,
        expected: &BTreeSet<(String, String)>,
    ) {
        let found = within(NATIVE_DEADLINE, "the same alerts by native histograms", || {
            let found = firing(&self.native);
            println!("by native histograms: {found:?}");
            found.is_superset(expected).then_some(found)
        });
        assert_eq!(found, *expected, "alerts by native histograms");
        let classic = "count(count_over_time({__name__=~\"gpucause.+_bucket\"}[1h]))";
        assert_eq!(self.native.value(classic), None);
        // Recorded from native histograms.
        let launches = "max(max_over_time(process:gpucause_timed_warm_launches:rate1m[1h]))";
        assert!(self.native.value(launches) > Some(10.0));
    }

    /// All rules, alerts and scrapes succeed.
    pub(crate) fn assert_that_all_is_evaluated(&self) {
        for prometheus in [&self.prometheus, &self.native] {
            assert_that_all_is_evaluated(prometheus);
        }
        self.alertmanager.assert_that_it_complained_of_nothing();
    }
}

fn assert_that_all_is_evaluated(prometheus: &Prometheus) {
    let rules = prometheus.api("/api/v1/rules");
    let groups = rules["groups"].as_array().unwrap();
    let all: Vec<&Value> =
        groups.iter().flat_map(|group| group["rules"].as_array().unwrap()).collect();
    let alerts = all.iter().filter(|rule| rule["type"] == "alerting").count();
    assert!(alerts >= 20 && all.len() > 2 * alerts, "{alerts} alerts of {} rules", all.len());
    for rule in all {
        assert_eq!((&rule["health"], &rule["lastError"]), (&"ok".into(), &Value::Null), "{rule}");
    }
    assert_eq!(prometheus.value("min_over_time(up[1h])"), Some(1.0));
    prometheus.assert_that_it_complained_of_nothing();
}

/// The alerts that fired in the last hour, by name and PID.
fn firing(prometheus: &Prometheus) -> BTreeSet<(String, String)> {
    let series = prometheus.series("max_over_time(ALERTS{alertstate=\"firing\"}[1h])");
    let label = |metric: &Value, name: &str| metric[name].as_str().unwrap_or_default().to_owned();
    let of = |metric: &Value| (label(metric, "alertname"), label(metric, "pid"));
    series.iter().map(|series| of(&series["metric"])).collect()
}

/// Waits until a trainer reports that its fault began.
pub(crate) fn until_injected(trainer: &mut Trainer) -> Value {
    until("the injection", || {
        trainer.listen_until(Instant::now() + Duration::from_millis(100));
        trainer.injected.clone()
    })
}
