//! Rules and alerts need no more than the standard level, and those that compare ranks no more than the fleet level.

use gpucause_observe::observation::Observation;
use gpucause_page::exposition::classic_buckets::Policy;
use gpucause_page::exposition::{ClassicBuckets, Format};
use gpucause_page::metric::Level;

use super::promql::{Selector, names};
use super::{EXPOSED, files, fleet_job, rank, rules};
use gpucause::collector::{Collectors, Content, Scope, Selection};
use gpucause_abi::op::op_of_symbol;
use gpucause_abi::snapshot::ProcessSnapshot;
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};

/// A series of a page.
struct Series {
    name: String,
    labels: BTreeMap<String, String>,
    /// The line.
    line: String,
}

/// A node of a rank with a failed call and a worker.
fn observation() -> Observation {
    let mut rank: ProcessSnapshot = rank::rank(1);
    rank.errors = vec![(op_of_symbol("cudaMalloc").unwrap(), 2, 3)];
    let worker = rank::worker(2, &rank);
    rank::observation(vec![rank, worker])
}

/// The series that are not zero: what stands at zero is there for rates alone.
fn page(scope: &Scope) -> Vec<Series> {
    let mut page = Vec::new();
    let buckets = ClassicBuckets::of(Format::Text, scope.level, Policy::Auto);
    let mut writer = Format::Text.writer(scope.level, buckets, &mut page);
    let observation = observation();
    let findings = &rank::findings(&observation);
    let content = Content { findings, ..Content::from(&observation) };
    Collectors::default().write(content, scope, &mut writer).unwrap();
    writer.finish().unwrap();
    let label = Regex::new(r#"([a-z_]+)="((?:[^"\\]|\\.)*)""#).unwrap();
    let page = String::from_utf8(page).unwrap();
    let lines = page.lines().filter(|line| !line.starts_with('#') && !line.ends_with(" 0"));
    lines
        .map(|line| {
            let (series, _) = line.rsplit_once(' ').unwrap();
            let labels = label.captures_iter(series).map(|own| (own[1].into(), own[2].into()));
            Series {
                name: series.split('{').next().unwrap().to_owned(),
                labels: labels.collect(),
                line: series.to_owned(),
            }
        })
        .collect()
}

fn is_selected(series: &Series, selector: &Selector) -> bool {
    let signs = selector.signs.iter().map(String::as_str);
    series.name == selector.name
        && selector.matchers.iter().zip(signs).all(|((label, value), sign)| {
            // Prometheus adds this label to the target, or a template fills in the value.
            if ["instance", "job"].contains(&&**label) || value.contains('%') {
                return true;
            }
            let own = series.labels.get(label).map_or("", String::as_str);
            let is_match = || Regex::new(&format!("^(?:{value})$")).unwrap().is_match(own);
            match sign {
                "=" => own == value,
                "!=" => own != value,
                "=~" => is_match(),
                "!~" => !is_match(),
                other => panic!("unknown sign {other:?}"),
            }
        })
}

fn at(level: Level) -> Scope {
    Scope { selection: Selection::All, level }
}

/// Series that rules of these files read, and that only a larger page has.
fn missing(scope: &Scope, is_of: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let (own, full) = (page(scope), page(&Scope::full()));
    let lines: BTreeSet<&str> = own.iter().map(|series| &*series.line).collect();
    let mut missing = BTreeSet::new();
    for (file, rule) in rules().iter().filter(|(file, _)| is_of(file)) {
        let of_texts = rule.annotations.values().flat_map(|text| files::queries_in_template(text));
        for expression in of_texts.chain([rule.expr.clone()]) {
            for mut selector in names(&expression).selectors {
                let Some(metric) = EXPOSED.get(&selector.name) else { continue };
                selector.name = fleet_job::original(&selector.name);
                let selected = full.iter().filter(|series| is_selected(series, &selector));
                let lacks = selected.filter(|series| !lines.contains(&*series.line));
                missing.extend(lacks.map(|series| format!("{file}: {}", series.line)));
                if metric.level > scope.level {
                    missing.insert(format!("{file}: {}", metric.name));
                }
            }
        }
    }
    missing
}

#[test]
fn rules_and_alerts_need_no_more_than_the_standard_level() {
    assert_eq!(missing(&at(Level::Standard), |file| !file.contains("native")), BTreeSet::new());
}

#[test]
fn rules_that_compare_ranks_need_no_more_than_the_fleet_level() {
    let fleet = ["rules/fleet.yaml", "rules/dispatchers.yaml"];
    assert_eq!(missing(&at(Level::Fleet), |file| fleet.contains(&file)), BTreeSet::new());
}

#[test]
fn rules_of_the_fleets_job_need_no_more_than_what_it_scrapes() {
    let query = fleet_job::query();
    let level = query.split('&').find_map(|own| own.strip_prefix("level=")).unwrap();
    let selection = Selection::parse(&query, &Collectors::default().names()).unwrap();
    let scope = Scope { selection, level: level.parse().unwrap() };
    assert_eq!(missing(&scope, |file| file == "rules/stragglers.yaml"), BTreeSet::new());
    let names = rules().iter().filter(|(file, _)| file == "rules/stragglers.yaml");
    let mut read: BTreeSet<String> = names
        .flat_map(|(_, rule)| names_of(&rule.expr))
        .filter(|name| name.starts_with("gpucause_"))
        .collect();
    let kept: BTreeSet<String> =
        EXPOSED.keys().filter_map(|name| fleet_job::renamed(name)).collect();
    // The text of the alert names the cause.
    let alerts = files::document("alerts/fleet.yaml");
    read.extend(kept.iter().filter(|name| alerts.contains(name.as_str())).cloned());
    assert_eq!(read, kept, "it keeps what is read and no more");
}

fn names_of(expression: &str) -> Vec<String> {
    names(expression).selectors.into_iter().map(|selector| selector.name).collect()
}

#[test]
fn a_series_that_the_level_lacks_is_noticed() {
    let lower = missing(&at(Level::Fleet), |file| file == "rules/histograms.yaml");
    assert!(lower.iter().any(|line| line.contains("launch_duration_seconds_bucket")), "{lower:?}");
}

#[test]
fn rules_and_alerts_need_no_durations_of_calls() {
    let selection = Selection::parse("exclude[]=calls", &Collectors::default().names()).unwrap();
    let scope = Scope { selection, level: Level::Standard };
    let mut missing = missing(&scope, |file| !file.contains("native"));
    // The collector that was left out has this series.
    missing.retain(|series| !series.contains("scrape_collector_success"));
    assert_eq!(missing, BTreeSet::new());
}
