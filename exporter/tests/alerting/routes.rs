//! Routes and notifications in documents equal the shipped ones.

use crate::files::{Rule, document, rules};
use regex::Regex;
use serde::Deserialize;

#[derive(Deserialize)]
struct Configuration {
    route: Route,
    #[serde(default)]
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
fn the_readme_of_alerts_lists_the_receivers() {
    let text = document("alerts/README.md");
    for receiver in configuration(&document("alerts/alertmanager.yml")).receivers {
        assert!(text.contains(&format!("| `{}` | ", receiver.name)), "{}", receiver.name);
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
