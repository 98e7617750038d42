//! The scrape job whose series have names of their own, as alerts/prometheus.yml has it.

use super::files::document;
use regex::Regex;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::LazyLock;

#[derive(Deserialize)]
struct Configuration {
    scrape_configs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    job_name: String,
    #[serde(default)]
    params: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    metric_relabel_configs: Vec<Relabelling>,
}

#[derive(Deserialize)]
struct Relabelling {
    #[serde(default)]
    regex: String,
    action: Option<String>,
    #[serde(default)]
    replacement: String,
}

static JOB: LazyLock<Job> = LazyLock::new(|| {
    let file: Configuration = serde_saphyr::from_str(&document("alerts/prometheus.yml"))
        .expect("a configuration of Prometheus");
    file.scrape_configs.into_iter().find(|job| job.job_name == "gpucause-fleet").expect("the job")
});

static KEPT: LazyLock<Regex> = LazyLock::new(|| {
    let kept = JOB.metric_relabel_configs.iter().find(|own| own.action.as_deref() == Some("keep"));
    Regex::new(&format!("^(?:{})$", kept.expect("what is kept").regex)).expect("an expression")
});

/// The name that a series has after it; `None` if it is dropped.
pub(crate) fn renamed(name: &str) -> Option<String> {
    let rename = JOB.metric_relabel_configs.iter().find(|own| own.replacement.ends_with("$1"))?;
    let prefix = rename.replacement.strip_suffix("$1")?;
    // The rule that keeps series keeps those of times by their state, too.
    let is_kept = KEPT.is_match(&format!("{name};stopped"));
    is_kept.then(|| name.replacen("gpucause_", prefix, 1))
}

/// The name that a series has on the page.
pub(crate) fn original(name: &str) -> String {
    name.replacen("gpucause_fleet_", "gpucause_", 1)
}

/// The query of its scrapes.
pub(crate) fn query() -> String {
    let pairs = JOB.params.iter().flat_map(|(key, values)| values.iter().map(move |v| (key, v)));
    pairs.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join("&")
}
