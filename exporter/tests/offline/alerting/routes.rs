//! Routes and notifications in documents equal the shipped ones.

use super::files::{Rule, document, rules};
use regex::Regex;
use serde::Deserialize;

#[derive(Deserialize)]
struct Configuration {
    route: Route,
    #[serde(default)]
    receivers: Vec<Receiver>,
}

#[derive(Deserialize)]
struct Receivers {
    receivers: Vec<Receiver>,
}

#[derive(Deserialize)]
struct Receiver {
    name: String,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Route {
    receiver: String,
    #[serde(default)]
    matchers: Vec<String>,
    #[serde(default)]
    routes: Vec<Self>,
}

fn configuration(yaml: &str) -> Configuration {
    serde_saphyr::from_str(yaml).expect("a configuration of Alertmanager")
}

/// The block of YAML of this document that has routes.
fn snippet(text: &str) -> &str {
    let blocks = text.split("```yaml\n").skip(1);
    let mut blocks = blocks.map(|rest| rest.split("```").next().expect("the block"));
    blocks.find(|block| block.starts_with("route:")).expect("the document has a route")
}

#[test]
fn the_route_of_the_readme_is_the_shipped_one() {
    let shipped = configuration(&document("alerts/alertmanager.yml"));
    let shown = configuration(snippet(&document("README.md")));
    assert_eq!(shown.route.receiver, shipped.route.receiver);
    assert!(!shown.route.routes.is_empty());
    for route in &shown.route.routes {
        assert!(shipped.route.routes.contains(route), "alertmanager.yml does not have {route:?}");
        assert!(shipped.receivers.iter().any(|own| own.name == route.receiver), "{route:?}");
    }
    let by_name = |route: &Route| route.matchers.iter().any(|one| one.contains("alertname"));
    let special: Vec<_> = shipped.route.routes.iter().filter(|route| by_name(route)).collect();
    assert_eq!(special, shown.route.routes.iter().collect::<Vec<_>>());
}

#[test]
fn the_readme_of_alerts_and_the_receivers_for_slack_and_pagerduty_have_the_receivers() {
    let text = document("alerts/README.md");
    let names = |path: &str| -> Vec<String> {
        let Receivers { receivers } = serde_saphyr::from_str(&document(path)).expect(path);
        receivers.into_iter().map(|receiver| receiver.name).collect()
    };
    let shipped = names("alerts/alertmanager.yml");
    for name in &shipped {
        assert!(text.contains(&format!("| `{name}` | ")), "{name}");
    }
    assert_eq!(names("alerts/receivers.yml"), shipped);
}

#[test]
fn the_readme_of_alerts_says_how_long_alerts_wait_and_keep_firing() {
    let text = document("alerts/README.md");
    let (_, rest) = text.split_once("## When an alert resolves").expect("the section");
    let section = rest.split("\n## ").next().expect("the section");
    let rows: Vec<_> = section.lines().filter(|line| line.starts_with("| `Gpucause")).collect();
    assert!(rows.len() > 8);
    for row in rows {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let [_, name, _, waits, keeps, _] = cells[..] else { panic!("{row}") };
        let name = name.trim_matches('`');
        let alerts = rules().iter().map(|(_, rule)| rule);
        let alerts: Vec<_> = alerts.filter(|rule| rule.alert.as_deref() == Some(name)).collect();
        assert!(!alerts.is_empty(), "{name}");
        let mut expected: Vec<String> = Vec::new();
        for rule in alerts {
            let waits = rule.pending_for.as_deref().unwrap_or("0s");
            if !expected.iter().any(|own| own == waits) {
                let is_other = !expected.is_empty();
                let severity = &rule.labels["severity"];
                let window = rule.labels.get("window").map(|own| format!("window {own}"));
                let which = window.as_ref().unwrap_or(severity);
                let text = if is_other { format!("{which} {waits}") } else { waits.to_owned() };
                expected.push(text);
            }
            assert_eq!(rule.keep_firing_for.as_deref().unwrap_or("-"), keeps, "{name}");
        }
        assert_eq!(expected.join("; "), waits, "{name}");
    }
}

/// An expression that matches what a template can expand to.
fn matching(template: &str) -> Regex {
    let action = Regex::new(r"\{\{.*?\}\}").expect("a pattern");
    let fixed: Vec<_> = action.split(template).map(regex::escape).collect();
    Regex::new(&fixed.join(".*")).expect("a pattern")
}

#[test]
fn the_notification_of_the_readme_has_the_texts_of_its_alert() {
    let text = document("alerts/README.md");
    let name = Regex::new(r"ALERT (\w+) \[(\w+)\]").expect("a pattern");
    let shown = name.captures(&text).expect("a notification is shown");
    let of = |rule: &Rule| {
        rule.alert.as_deref() == Some(&shown[1]) && rule.labels["severity"] == shown[2]
    };
    let (_, rule) = rules().iter().find(|(_, rule)| of(rule)).expect("the alert exists");
    let always = rule.annotations["description"].split("{{ if").next().expect("a first part");
    for template in [&rule.annotations["summary"], always.trim(), &rule.annotations["command"]] {
        let pattern = matching(template);
        assert!(pattern.is_match(&text), "{pattern}");
    }
}
