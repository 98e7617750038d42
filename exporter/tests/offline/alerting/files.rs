//! The files that name series, read for their expressions.

use super::promql::{Selector, names};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// A recording rule or an alert.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Rule {
    pub(crate) record: Option<String>,
    pub(crate) alert: Option<String>,
    pub(crate) expr: String,
    #[serde(default, rename = "for")]
    pub(crate) pending_for: Option<String>,
    #[serde(default)]
    pub(crate) keep_firing_for: Option<String>,
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct RuleFile {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    rules: Vec<Rule>,
}

impl Rule {
    pub(crate) fn name(&self) -> &str {
        self.record.as_ref().or(self.alert.as_ref()).expect("a rule has a name")
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace")
}

/// The files of a folder of the workspace that end so, by path from its root; none where the folder is not there.
fn files(folder: &str, end: &str) -> Vec<(String, String)> {
    let Ok(entries) = std::fs::read_dir(root().join(folder)) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.to_string_lossy().ends_with(end));
    paths.sort();
    let name = |path: &Path| path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
    paths.iter().map(|path| (name(path), std::fs::read_to_string(path).unwrap())).collect()
}

static RULES: LazyLock<Vec<(String, Rule)>> = LazyLock::new(|| {
    let mut rules = Vec::new();
    for folder in ["rules", "rules/native", "alerts"] {
        for (name, text) in files(folder, ".yaml") {
            let file: RuleFile =
                serde_saphyr::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
            let of_file = file.groups.into_iter().flat_map(|group| group.rules);
            rules.extend(of_file.map(|rule| (name.clone(), rule)));
        }
    }
    rules
});

/// Every rule, with the file that it is in.
pub(crate) fn rules() -> &'static [(String, Rule)] {
    &RULES
}

/// The files of promtool's tests.
pub(crate) fn rule_tests() -> Vec<(String, String)> {
    ["rules/tests", "rules/native/tests", "alerts/tests"]
        .into_iter()
        .flat_map(|folder| files(folder, ".yaml"))
        .collect()
}

/// The queries in an alert's text: what `printf` is given first.
pub(crate) fn queries_in_template(text: &str) -> impl Iterator<Item = String> {
    text.split("(printf \"").skip(1).map(|rest| {
        let mut query = String::new();
        let mut chars = rest.chars();
        while let Some(c) = chars.next().filter(|&c| c != '"') {
            query.push(if c == '\\' { chars.next().unwrap_or(c) } else { c });
        }
        query.replace("%q", "\"\"")
    })
}

/// The queries of dashboards: of panels, annotations and variables.
pub(crate) fn dashboard_queries() -> Vec<(String, String)> {
    let mut queries = Vec::new();
    for folder in ["dashboards", "dashboards/provisioning", "dashboards/provisioning/dashboards"] {
        for (name, text) in files(folder, ".json") {
            let dashboard: Value =
                serde_json::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
            collect_queries(&name, &dashboard, &mut queries);
        }
    }
    queries
}

fn collect_queries(file: &str, value: &Value, queries: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::String(query) if ["expr", "query", "definition"].contains(&&**key) => {
                        queries.extend(promql_of(query).map(|query| (file.to_owned(), query)));
                    }
                    value => collect_queries(file, value, queries),
                }
            }
        }
        Value::Array(values) => {
            for value in values {
                collect_queries(file, value, queries);
            }
        }
        _ => {}
    }
}

/// The query that Grafana sends: a variable's is within a function of Grafana's, or no query at all.
fn promql_of(query: &str) -> Option<String> {
    let of_function =
        |name: &str| query.trim().strip_prefix(name)?.trim().strip_prefix('(')?.strip_suffix(')');
    if let Some(inner) = of_function("label_values").or_else(|| of_function("label_names")) {
        // The label comes last, alone or after the query.
        return inner.rfind(',').map(|comma| inner[..comma].to_owned());
    }
    let inner = of_function("query_result").unwrap_or(query);
    (inner.contains("gpucause_") || inner.contains("DCGM_")).then(|| inner.to_owned())
}

/// A file of the repository, by path from its root.
pub(crate) fn document(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The README, the runbooks and the references.
pub(crate) fn documents() -> Vec<(String, String)> {
    let folders =
        ["", "alerts", "dashboards", "exporter", "investigations", "probes", "rules", "systemd"];
    let documents = folders.into_iter().flat_map(|folder| files(folder, ".md"));
    documents.filter(|(name, _)| name != "CHANGELOG.md").collect()
}

/// The series that a text names in code.
pub(crate) fn series_in_text(text: &str) -> Vec<Selector> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_:".contains(c);
    let mut found = Vec::new();
    for (at, _) in text.match_indices("gpucause_") {
        let begin = text[..at].rfind(|c| !is_name(c)).map_or(0, |before| before + 1);
        let end = at + text[at..].find(|c| !is_name(c)).unwrap_or(text.len() - at);
        let name = text[begin..end].trim_end_matches(':');
        // Names of packages and files, of attributes and tables of logged chains, and a prefix that stands for many.
        let is_other = name.starts_with("gpucause_chain_")
            || text[end..].starts_with(['*', '-', '.']) && name.ends_with('_')
            || text[end..].starts_with("*.deb");
        if is_other || text[..begin].ends_with('/') {
            continue;
        }
        let matchers = text[end..]
            .strip_prefix('{')
            .and_then(|rest| rest.split_once('}'))
            .map_or("", |(inner, _)| inner);
        let mut selector = names(&format!("{name}{{{matchers}}}")).selectors;
        // In a table, braces hold labels without what they must be.
        found.extend(selector.drain(..1));
    }
    found
}
