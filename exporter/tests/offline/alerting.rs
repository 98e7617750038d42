//! Rules, alerts, dashboards, runbooks and the README name only series and labels that there are, and leave no metric out.

mod files;
mod fleet_job;
mod launches;
mod levels;
mod promql;
mod routes;

use files::{Rule, rules};
use gpucause_abi::op::{OPS, Op};
use gpucause_fixture::rank;
use gpucause_page::metric::{ALL, Kind, Metric};
use promql::{Selector, names};
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::LazyLock;

/// Series of others: Prometheus' own, those that tell of GPUs, and their prices.
const FOREIGN: [&str; 8] = [
    "up",
    "scrape_duration_seconds",
    "scrape_samples_scraped",
    "nvidia_smi_utilization_gpu_ratio",
    "nvidia_smi_memory_used_bytes",
    "nvidia_smi_power_draw_watts",
    "nvidia_smi_gpu_info",
    "gpucause_gpu_hour_price",
];
/// Labels that Prometheus, DCGM and the rules add.
const ADDED_LABELS: [&str; 14] = [
    "job",
    "instance",
    "le",
    "UUID",
    "gpu",
    "uuid",
    "Hostname",
    "hostname",
    "modelName",
    "currency",
    "baseline",
    "owner",
    "exported_namespace",
    "exported_pod",
];

/// The series of the table, and those that the fleet's job makes of them, by name, with their metric.
static EXPOSED: LazyLock<BTreeMap<String, &'static Metric>> = LazyLock::new(|| {
    let mut names = BTreeMap::new();
    for metric in ALL {
        names.insert(metric.query_name(), *metric);
        if metric.kind == Kind::Histogram {
            for suffix in ["_bucket", "_sum", "_count"] {
                names.insert(format!("{}{suffix}", metric.name), *metric);
            }
        }
    }
    let renamed: Vec<_> = names
        .iter()
        .filter_map(|(name, metric)| Some((fleet_job::renamed(name)?, *metric)))
        .collect();
    names.extend(renamed);
    names
});

/// The series that rules record.
static RECORDED: LazyLock<HashSet<&'static str>> =
    LazyLock::new(|| rules().iter().filter_map(|(_, rule)| rule.record.as_deref()).collect());

/// Every label that there is.
static LABELS: LazyLock<HashSet<&'static str>> = LazyLock::new(|| {
    ALL.iter().flat_map(|metric| metric.labels).copied().chain(ADDED_LABELS).collect()
});

fn is_foreign(name: &str) -> bool {
    name.starts_with("DCGM_FI_") || FOREIGN.contains(&name)
}

/// Returns what is wrong with a selector: its name, or a label that its metric does not have.
fn faults(selector: &Selector) -> Vec<String> {
    let name = &selector.name;
    let labels: HashSet<&str> = match EXPOSED.get(name) {
        Some(metric) => metric.labels.iter().copied().chain(ADDED_LABELS).collect(),
        None if RECORDED.contains(&**name) || is_foreign(name) => LABELS.clone(),
        None => return vec![format!("no series {name}")],
    };
    let unknown = selector.matchers.iter().filter(|(label, _)| !labels.contains(&**label));
    unknown.map(|(label, _)| format!("{name} has no label {label}")).collect()
}

fn assert_named_exist(expressions: &[(String, String)]) {
    let mut wrong = BTreeSet::new();
    for (place, expression) in expressions {
        let found = names(expression);
        let mut said: Vec<_> = found.selectors.iter().flat_map(faults).collect();
        let unknown = found.labels.into_iter().filter(|label| {
            // Grafana fills variables in.
            !label.starts_with('$') && !LABELS.contains(&**label)
        });
        said.extend(unknown.map(|label| format!("no label {label}")));
        wrong.extend(said.into_iter().map(|fault| format!("{place}: {fault}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn rules_and_alerts_name_series_and_labels_that_there_are() {
    let mut expressions = Vec::new();
    for (file, rule) in rules() {
        let name = rule.name().to_owned();
        expressions.push((format!("{file}, {name}"), rule.expr.clone()));
        let texts = rule.annotations.values();
        expressions.extend(texts.flat_map(|text| {
            files::queries_in_template(text)
                .map(|query| (format!("{file}, {name}"), query))
                .collect::<Vec<_>>()
        }));
    }
    assert!(expressions.len() > 100, "only {} expressions", expressions.len());
    assert_named_exist(&expressions);
}

#[test]
fn dashboards_name_series_and_labels_that_there_are() {
    assert_named_exist(&files::dashboard_queries());
}

#[test]
fn documents_name_series_and_labels_that_there_are() {
    let mut wrong = BTreeSet::new();
    for (file, text) in files::documents() {
        for selector in files::series_in_text(&text) {
            wrong.extend(faults(&selector).into_iter().map(|fault| format!("{file}: {fault}")));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_metric_is_used_or_explained() {
    let mut used: HashSet<String> = HashSet::new();
    let expressions = rules().iter().map(|(_, rule)| rule.expr.clone());
    let queries = files::dashboard_queries().into_iter().map(|(_, query)| query);
    for expression in expressions.chain(queries) {
        used.extend(names(&expression).selectors.into_iter().map(|selector| selector.name));
    }
    for (file, text) in files::documents() {
        // The table of metrics is generated, and names each.
        let is_row = |line: &str| line.starts_with("| `gpucause_") && file == "exporter/METRICS.md";
        for line in text.lines().filter(|line| !is_row(line)) {
            used.extend(files::series_in_text(line).into_iter().map(|selector| selector.name));
        }
    }
    // The metrics of every process are Prometheus' own.
    for metric in ALL.iter().filter(|metric| metric.name.starts_with("gpucause_")) {
        let mut forms =
            EXPOSED.iter().filter(|(_, of)| of.name == metric.name).map(|(name, _)| name);
        assert!(forms.any(|form| used.contains(form)), "{}", metric.name);
    }
}

#[test]
fn every_rule_has_a_test() {
    let tests = files::rule_tests();
    for (file, rule) in rules() {
        let name = rule.name();
        let is_native = file.starts_with("rules/native/");
        let is_named = tests
            .iter()
            .filter(|(path, _)| path.starts_with("rules/native/") == is_native)
            .any(|(_, text)| {
                text.match_indices(name).any(|(at, _)| {
                    !text[at + name.len()..]
                        .starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
                })
            });
        assert!(is_named, "no test names {name} of {file}");
    }
}

#[test]
fn names_of_recorded_series_tell_level_metric_and_operation() {
    let name = Regex::new("^[a-z_]+:gpucause_[a-z0-9_]+:[a-z0-9_]+$").unwrap();
    for record in &*RECORDED {
        assert!(name.is_match(record), "{record}");
    }
}

#[test]
fn every_alert_says_what_is_wrong_how_bad_it_is_and_where_to_look() {
    let runbooks = format!("{}/blob/main/investigations/", env!("CARGO_PKG_REPOSITORY"));
    let alerts: Vec<_> = rules()
        .iter()
        .filter_map(|(_, rule)| rule.alert.as_ref().map(|name| (name, rule)))
        .collect();
    assert!(alerts.len() > 20);
    for (name, Rule { labels, annotations, .. }) in alerts {
        let of = |key: &str| {
            annotations.get(key).unwrap_or_else(|| panic!("{name} has no {key}")).as_str()
        };
        let command = format!(" On the host: `{}`.", of("command"));
        assert!(name.starts_with("Gpucause"), "{name}");
        assert!(["critical", "warning", "info"].contains(&labels["severity"].as_str()), "{name}");
        assert!(
            ["workload", "fleet", "exporter"].contains(&labels["component"].as_str()),
            "{name}"
        );
        assert!(of("summary").ends_with(['.', '}']) && of("summary").contains("{{"), "{name}");
        assert!(
            of("description").contains("{{") && of("description").ends_with(&command),
            "{name}"
        );
        // `localhost`, since the token is for no other address; an external label is for exporters with TLS.
        let server = r#"{{ or $externalLabels.explain "--url http://localhost" }}"#;
        let port = r#"{{ reReplaceAll "^.*?(:[0-9]+)?$" "$1" $labels.instance }}"#;
        let explains = of("command").starts_with("sudo gpucause explain ");
        let url = format!("sudo gpucause explain {server}{port} ");
        assert!(!explains || of("command").starts_with(&url), "{name}");
        assert_eq!(of("runbook_url"), format!("{runbooks}{name}.md"));
        let (with_address, end) =
            ("{{ with $externalLabels.grafana }}{{ . }}/d/gpucause-", "{{ end }}");
        let link = of("dashboard_url");
        assert!(link.starts_with(with_address) && link.ends_with(end), "{name}");
        assert!(annotations.values().all(|text| !text.contains("  ")), "{name} has two spaces");
    }
}

/// The ops whose names the matchers of `op` in this expression let through.
fn ops_matched<'a>(selectors: impl Iterator<Item = &'a Selector>) -> BTreeSet<&'static str> {
    let patterns =
        selectors.flat_map(|selector| &selector.matchers).filter(|(label, _)| label == "op");
    let patterns: Vec<_> =
        patterns.map(|(_, value)| Regex::new(&format!("^(?:{value})$")).unwrap()).collect();
    let names = OPS.iter().map(|op| op.name);
    names.filter(|name| patterns.iter().any(|pattern| pattern.is_match(name))).collect()
}

fn ops_that(is: impl Fn(&Op) -> bool) -> BTreeSet<&'static str> {
    OPS.iter().filter(|op| is(op)).map(|op| op.name).collect()
}

#[test]
fn only_launches_must_return_at_once_and_only_communicators_may_take_long_to_begin() {
    let (_, hung) = rules().iter().find(|(_, rule)| rule.name() == "GpucauseCallHung").unwrap();
    let selectors = names(&hung.expr).selectors;
    let [launches, others, communicators] = &selectors[..] else {
        panic!("{} selectors", selectors.len());
    };
    let of = |selector| ops_matched(std::iter::once(selector));
    assert_eq!(of(launches), ops_that(Op::feeds_gpu));
    assert_eq!(of(communicators), ops_that(|op| op.name.starts_with("ncclCommInit")));
    // It is for those that are in neither.
    assert_eq!(of(others), &of(launches) | &of(communicators));
}

#[test]
fn every_alert_has_a_runbook() {
    let runbooks: HashSet<String> = files::documents().into_iter().map(|(file, _)| file).collect();
    let alerts = rules().iter().filter_map(|(_, rule)| rule.alert.as_ref());
    let missing: BTreeSet<_> =
        alerts.filter(|name| !runbooks.contains(&format!("investigations/{name}.md"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
