//! The runbooks as an on-call meets them: there is one for each alert. Queries, commands and links of all documents work.

mod commands;

use gpucause_page::metric::{self, ALL_REASONS, Kind, LAUNCH_DURATION, Level, OFFCPU_DURATION};
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SECTIONS: [&str; 6] =
    ["Do this first", "Meaning", "Diagnosis", "Mitigation", "Verify", "Look-alikes"];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

/// Text of the files of a folder with this ending, by name without it.
fn files(dir: &str, ending: &str) -> BTreeMap<String, String> {
    let paths = fs::read_dir(folder(dir)).unwrap().map(|entry| entry.unwrap().path());
    let wanted = paths.filter(|path| path.extension().is_some_and(|own| own == ending));
    let text = |path: PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        (name, fs::read_to_string(path).unwrap())
    };
    wanted.map(text).collect()
}

/// Returns what follows `key` on lines of all YAML files of a folder, such as the names of alerts.
fn values(dir: &str, key: &str) -> BTreeSet<String> {
    let files = files(dir, "yaml");
    let lines = files.values().flat_map(|text| text.lines());
    let found = lines.filter_map(|line| line.trim().trim_start_matches("- ").strip_prefix(key));
    found.map(|value| value.trim().to_owned()).collect()
}

/// Returns what follows `key` in the rules of this alert.
fn values_of(alert: &str, key: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for text in files("alerts", "yaml").values() {
        let rules = text.split("- alert: ").skip(1);
        for rule in rules.filter(|rule| rule.lines().next() == Some(alert)) {
            let lines = rule.lines().filter_map(|line| line.trim().strip_prefix(key));
            found.extend(lines.map(|value| value.trim().to_owned()));
        }
    }
    found
}

fn pages() -> BTreeMap<String, String> {
    files("investigations", "md")
}

fn runbooks() -> BTreeMap<String, String> {
    pages().into_iter().filter(|(name, _)| name.starts_with("Gpucause")).collect()
}

/// All documents, by path from the root of the workspace.
fn documents() -> BTreeMap<String, String> {
    let folders = [
        ".",
        "alerts",
        "dashboards",
        "exporter",
        "investigations",
        "investigations/cases",
        "probes",
        "rules",
        "systemd",
    ];
    let of = |dir: &'static str| {
        files(dir, "md").into_iter().map(move |(name, text)| (format!("{dir}/{name}.md"), text))
    };
    folders.into_iter().flat_map(of).collect()
}

/// The code blocks of a page in this language.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let (mut blocks, mut open) = (Vec::new(), None::<(bool, String)>);
    for line in text.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(own)) => open = Some((own == language, String::new())),
            (Some(_), Some(_)) => {
                blocks.extend(open.take().filter(|(wanted, _)| *wanted).map(|(_, block)| block));
            }
            (Some((_, block)), None) => *block += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a code block has no end");
    blocks
}

/// Every query of every page, with the page's name: an empty line parts two of a block.
fn queries() -> Vec<(String, String)> {
    let mut queries = Vec::new();
    for (name, text) in documents() {
        for block in blocks(&text, "promql") {
            let parts = block.split("\n\n").map(str::trim).filter(|query| !query.is_empty());
            queries.extend(parts.map(|query| (name.clone(), query.to_owned())));
        }
    }
    assert!(queries.len() > 50, "only {} queries were found", queries.len());
    queries
}

/// The names that series can have, with the labels of those that the exporter tells.
fn series() -> BTreeMap<String, Option<Vec<&'static str>>> {
    let mut series: BTreeMap<_, _> =
        values("rules", "record:").into_iter().map(|record| (record, None)).collect();
    for metric in metric::ALL {
        let labels = [metric.labels, &["job", "instance"]].concat();
        if metric.kind == Kind::Histogram {
            series.insert(format!("{}_sum", metric.name), Some(labels.clone()));
            series.insert(format!("{}_count", metric.name), Some(labels.clone()));
            // A native histogram has the name alone.
            series.insert(metric.query_name(), Some(labels.clone()));
            let labels = [&labels[..], &["le"]].concat();
            series.insert(format!("{}_bucket", metric.name), Some(labels));
        } else {
            series.insert(metric.query_name(), Some(labels));
        }
    }
    series
}

/// Series that only a page of the level full has: of its metrics, and classic buckets beyond those of the default level.
fn full_series() -> BTreeSet<String> {
    let tails = [LAUNCH_DURATION.name, OFFCPU_DURATION.name];
    let mut names = BTreeSet::new();
    for metric in metric::ALL {
        if metric.kind == Kind::Histogram && !tails.contains(&metric.name) {
            names.insert(format!("{}_bucket", metric.name));
        }
        if metric.level == Level::Full {
            names.insert(metric.query_name());
            names.extend(["sum", "count"].map(|part| format!("{}_{part}", metric.name)));
        }
    }
    names
}

/// Returns what a text reads beyond the default level. That level has off-CPU time of workers over all reasons only.
fn beyond_default(text: &str, full: &BTreeSet<String>) -> Vec<String> {
    let name = Regex::new("[a-zA-Z_:][a-zA-Z0-9_:]*").unwrap();
    let names = name.find_iter(text).map(|found| found.as_str().to_owned());
    let mut beyond: Vec<String> = names.filter(|name| full.contains(name)).collect();
    let of_others =
        format!(r#"{}\w*\{{[^}}]*role="(?:worker|helper)"[^}}]*\}}"#, OFFCPU_DURATION.name);
    let of_others = Regex::new(&of_others).unwrap();
    let all = format!("reason=\"{ALL_REASONS}\"");
    let selectors = of_others.find_iter(text).map(|found| found.as_str().to_owned());
    beyond.extend(selectors.filter(|own| !own.contains(&all) || own.contains("\"helper\"")));
    beyond
}

/// The parts of a page that stand alone: each begins at a heading or at a numbered step.
fn steps(text: &str) -> Vec<String> {
    let start = Regex::new(r"^(?:#+|[0-9]+\.) ").unwrap();
    let (mut steps, mut is_code) = (vec![String::new()], false);
    for line in text.lines() {
        is_code ^= line.starts_with("```");
        if !is_code && start.is_match(line) {
            steps.push(String::new());
        }
        let step = steps.last_mut().unwrap();
        step.push_str(line);
        step.push('\n');
    }
    steps
}

/// Names of ours in a text.
fn names(text: &str) -> BTreeSet<String> {
    let name = Regex::new(r"[a-z_]+:gpucause_[a-z0-9_:]+|\bgpucause_[a-z0-9_]+").unwrap();
    name.find_iter(text).map(|found| found.as_str().to_owned()).collect()
}

#[test]
fn every_alert_has_a_runbook_that_it_names_and_that_the_index_lists() {
    let alerts = values("alerts", "alert:");
    assert!(!alerts.is_empty());
    assert_eq!(runbooks().into_keys().collect::<BTreeSet<_>>(), alerts);
    let urls = values("alerts", "runbook_url:");
    let named = |alert: &String| urls.iter().any(|url| url.ends_with(&format!("/{alert}.md")));
    let index = &pages()["README"];
    for alert in &alerts {
        assert!(named(alert), "{alert} names no runbook");
        assert!(index.contains(&format!("| [{alert}]({alert}.md) | ")), "{alert} is not listed");
    }
}

#[test]
fn a_runbook_has_its_sections_and_leaves_nothing_to_be_done() {
    for (name, text) in runbooks() {
        assert!(text.starts_with(&format!("# {name}\n")), "{name} has another title");
        let headings: Vec<_> =
            text.lines().filter_map(|line| line.strip_prefix("## ")).map(str::trim).collect();
        assert_eq!(headings, SECTIONS, "{name}");
        for section in text.split("\n## ").skip(1) {
            let (heading, rest) = section.split_once('\n').unwrap();
            assert!(rest.trim().len() > 40, "{heading} of {name} says nothing");
            let has_command = rest.contains("\n```bash\n") || rest.contains("\n```sh\n");
            assert!(heading != "Mitigation" || has_command, "{name} has no command to copy");
        }
        let lines = text.lines().count();
        assert!((40..=100).contains(&lines), "{name} has {lines} lines");
        for left in ["TODO", "FIXME", "TBD", "XXX"] {
            assert!(!text.contains(left), "{name} has a {left}");
        }
        assert!(text.is_ascii(), "{name} is not plain ASCII");
    }
}

#[test]
fn a_runbook_begins_with_three_steps_its_urgency_and_its_owner() {
    for (name, text) in runbooks() {
        let (_, rest) = text.split_once("\n## Do this first\n").unwrap();
        let first = rest.split("\n## ").next().unwrap();
        let lines: Vec<_> = first.lines().filter(|line| !line.is_empty()).collect();
        let [one, two, three, urgency] = &lines[..] else { panic!("{name}: {first}") };
        for (step, number) in [one, two, three].into_iter().zip(["1. ", "2. ", "3. "]) {
            assert!(step.starts_with(number) && step.ends_with('.'), "{name}: {step}");
        }
        let severities = values_of(&name, "severity:");
        assert!(urgency.starts_with("Urgency: ") && urgency.contains(" Owner: "), "{name}");
        assert!(
            severities.iter().all(|own| urgency.to_lowercase().contains(own)),
            "{name} is {severities:?}"
        );
    }
}

#[test]
fn a_runbook_names_the_exporters_port_and_reads_no_longer_window_than_its_alert() {
    let explain = Regex::new(r"gpucause explain --[^`\n]*").unwrap();
    for (name, text) in runbooks() {
        for command in explain.find_iter(&text).map(|found| found.as_str()) {
            let names_source = ["--url http://localhost:", "--db ", "--nodes-from "];
            assert!(names_source.iter().any(|flag| command.contains(flag)), "{name}: {command}");
        }
        // A rate over five minutes is small while a fault is young.
        let lines = values_of(&name, "");
        if lines.iter().any(|line| line.contains("of the last minute")) {
            let queries = blocks(&text, "promql");
            assert!(queries.iter().all(|query| !query.contains("[5m]")), "{name}");
        }
    }
}

#[test]
fn prometheus_takes_every_query() {
    let mut rules = "groups:\n- name: runbooks\n  rules:\n".to_owned();
    for (number, (_, query)) in queries().iter().enumerate() {
        let indented = query.replace('\n', "\n      ");
        rules += &format!("  - record: runbook:query:{number}\n    expr: |\n      {indented}\n");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("queries.yaml");
    fs::write(&path, &rules).unwrap();
    let promtool = Command::new("promtool").args(["check", "rules"]).arg(&path).output();
    let output = promtool.expect("promtool is installed; `make test-tools` does it");
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{said}\n{rules}");
}

#[test]
fn every_series_of_a_query_exists_and_has_the_labels_that_are_asked_for() {
    let series = series();
    let selector = Regex::new(r"([a-z_:0-9]+)\{([^}]*)\}").unwrap();
    let label = Regex::new(r#"(\w+)\s*(?:=~|!~|!=|=)\s*""#).unwrap();
    for (page, query) in queries() {
        for name in names(&query) {
            assert!(series.contains_key(&name), "{page} asks for {name}, which nothing tells");
        }
        for selected in selector.captures_iter(&query) {
            let Some(Some(known)) = series.get(&selected[1]) else { continue };
            for own in label.captures_iter(&selected[2]) {
                assert!(known.contains(&&own[1]), "{page}: {} has no {}", &selected[1], &own[1]);
            }
        }
    }
}

#[test]
fn every_series_that_a_page_names_is_exported_recorded_or_an_alert() {
    let mut known: BTreeSet<_> = series().into_keys().collect();
    known.extend(files("alerts", "yaml").values().flat_map(|text| names(text)));
    known.extend(metric::ALL.iter().map(|metric| metric.name.to_owned()));
    for (page, text) in pages() {
        for name in names(&text) {
            assert!(known.contains(&name), "{page} names {name}, which does not exist");
        }
    }
}

#[test]
fn a_step_that_needs_the_level_full_says_so_and_its_page_says_how_to_ask() {
    const MARK: &str = "(`full`";
    let full = full_series();
    let names = ["look-alikes", "first-look"];
    let is_read = |name: &str| name.starts_with("Gpucause") || names.contains(&name);
    let mut marked = 0;
    for (name, text) in pages().into_iter().filter(|(name, _)| is_read(name)) {
        let mut needs_full = false;
        for step in steps(&text) {
            let beyond = beyond_default(&step, &full);
            assert!(beyond.is_empty() || step.contains(MARK), "{name} has no mark: {beyond:?}");
            needs_full |= !beyond.is_empty();
        }
        let hints = text.matches("/metrics?level=full").count();
        assert_eq!(hints, usize::from(needs_full), "{name} says {hints} times how to ask");
        marked += usize::from(needs_full);
    }
    assert!(marked > 5, "only {marked} pages need the level full");
}

#[test]
fn only_what_the_default_level_lacks_is_beyond_it() {
    let full = full_series();
    let is_beyond = |query: &str| !beyond_default(query, &full).is_empty();
    for query in [
        "rate(gpucause_tcp_retransmits_total[5m])",
        "gpucause_memcpy_duration_seconds_sum",
        "rate(gpucause_cuda_call_duration_seconds_bucket[5m])",
        r#"gpucause_offcpu_duration_seconds_sum{role="worker", reason!="all"}"#,
        r#"gpucause_offcpu_duration_seconds_sum{reason="all", role="helper"}"#,
        "process_max_fds",
    ] {
        assert!(is_beyond(query), "{query}");
    }
    for query in [
        "rate(gpucause_cuda_call_duration_seconds_count[5m])",
        "gpucause_launch_duration_seconds_bucket",
        r#"gpucause_offcpu_duration_seconds_sum{role="worker", reason="all"}"#,
        r#"gpucause_offcpu_duration_seconds_sum{role="dispatcher", reason="io"}"#,
        "process:gpucause_launches:rate5m",
    ] {
        assert!(!is_beyond(query), "{query}");
    }
}

/// Returns the anchor of a heading, in the format of GitHub.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn every_relative_link_leads_to_a_file_and_a_heading() {
    let link = Regex::new(r"\]\(([^)\s]+)\)").unwrap();
    for (page, text) in documents() {
        for found in link.captures_iter(&text).filter(|found| !found[1].contains("://")) {
            let (file, heading) = found[1].split_once('#').unwrap_or((&found[1], ""));
            let own = folder(&page);
            let path = if file.is_empty() { own } else { own.parent().unwrap().join(file) };
            assert!(path.exists(), "{page} links to {}", &found[1]);
            if !heading.is_empty() {
                let target = fs::read_to_string(&path).unwrap();
                let mut headings = target.lines().filter(|line| line.starts_with('#'));
                let is_target = |line: &str| anchor(line.trim_start_matches(['#', ' '])) == heading;
                assert!(headings.any(is_target), "{page} links to {}", &found[1]);
            }
        }
    }
}
