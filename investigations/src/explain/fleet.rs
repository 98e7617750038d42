//! The report of several nodes: nodes without answer, clock skew, and the incident on each.

use std::fmt::Write as _;

use serde::Serialize;

use super::{ChainFilter, Incident, line, render};
use crate::fleet::{ClockOffset, FleetAnswer};
use crate::observation::Outcome;

/// What happened on several nodes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FleetReport {
    /// The outcome for the fleet: nothing was found only where every node answered and observed.
    pub outcome: Outcome,
    /// Nodes that answered, the worst chain first.
    pub nodes: Vec<FleetNode>,
    /// Nodes that did not.
    pub failures: Vec<FailureReport>,
    /// Clock skew to mind when times of different nodes are compared.
    pub warnings: Vec<String>,
}

/// A node that answered.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FleetNode {
    /// Its address.
    pub url: String,
    /// Its clock skew, where its version reports the time.
    pub clock: Option<ClockOffset>,
    /// Its incident.
    pub incident: Incident,
}

/// A node that did not answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FailureReport {
    /// Its address.
    pub url: String,
    /// The error.
    pub reason: String,
}

impl FleetReport {
    /// Of the chains seen in the last `seconds` on each node. `here` is as in [`Chains::observed`](crate::node::Chains::observed).
    pub fn of(answer: FleetAnswer, seconds: f64, here: f64, filter: &ChainFilter) -> Self {
        let warnings = answer.clock_warnings();
        let report = |node: crate::fleet::NodeAnswer| {
            let incident = Incident::of_answer(node.chains, seconds, here, filter);
            FleetNode { url: node.url.to_string(), clock: node.clock, incident }
        };
        let mut nodes: Vec<FleetNode> = answer.answers.into_iter().map(report).collect();
        nodes.sort_by(|a, b| {
            let period = a.incident.period();
            match (&a.incident.root_cause, &b.incident.root_cause) {
                (Some(a), Some(b)) => a.worst_first(b, period),
                (a, b) => b.is_some().cmp(&a.is_some()),
            }
        });
        let failure = |failed: crate::fleet::NodeFailure| FailureReport {
            url: failed.url.to_string(),
            reason: failed.error.to_string(),
        };
        let failures: Vec<_> = answer.failures.into_iter().map(failure).collect();
        let silent = (!failures.is_empty()).then_some(Outcome::NotObserved);
        // A process runs on one node; that others do not observe it says nothing.
        let has_it = nodes.iter().any(|node| node.incident.unobserved_pid.is_none());
        let counts = |node: &&FleetNode| !has_it || node.incident.unobserved_pid.is_none();
        let outcomes = nodes.iter().filter(counts).map(|node| node.incident.outcome).chain(silent);
        let outcome = outcomes.max().unwrap_or(Outcome::NotObserved);
        Self { outcome, nodes, failures, warnings }
    }

    /// The report as text.
    pub fn render(&self, per_process: bool) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "{} of {} nodes answered",
            self.nodes.len(),
            self.nodes.len() + self.failures.len()
        );
        for failure in &self.failures {
            let _ = writeln!(out, "NO ANSWER  {}", line(&failure.reason));
        }
        for warning in &self.warnings {
            let _ = writeln!(out, "CLOCK  {}", line(warning));
        }
        for node in &self.nodes {
            let _ = write!(out, "\n== {}", line(&node.url));
            if let Some(clock) = node.clock {
                let _ = write!(
                    out,
                    "  (clock {:+.3} s +- {:.3} s)",
                    clock.ahead_seconds, clock.uncertainty_seconds
                );
            }
            let _ = writeln!(out, "\n{}", render(&node.incident, per_process).trim_end());
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{NodeAnswer, NodeFailure};
    use crate::http::Address;
    use crate::node::{AskError, Chains};
    use gpucause_engine::observation::Period;

    fn url(text: &str) -> Address {
        Address::parse(text, [9400, 9400]).unwrap()
    }

    #[test]
    fn a_process_that_one_node_observes_needs_not_be_on_others() {
        let node = |name: &str, pid| {
            let chains = Chains {
                node: name.into(),
                now: Some(1000.0),
                watched_since: None,
                processes: Some(vec![pid]),
                observation: Some(Period::attached(0.0).into()),
                chains: Vec::new(),
            };
            NodeAnswer { url: url("http://a:1"), chains, clock: None }
        };
        let outcome = |pid| {
            let answers = vec![node("a", 7), node("b", 8)];
            let filter = ChainFilter { pid: Some(pid), ..ChainFilter::default() };
            FleetReport::of(FleetAnswer { answers, failures: Vec::new() }, 60.0, 0.0, &filter)
                .outcome
        };
        assert_eq!([outcome(7), outcome(9)], [Outcome::NothingFound, Outcome::NotObserved]);
    }

    #[test]
    fn nodes_without_answer_and_clock_skew_come_first() {
        let clock = ClockOffset { ahead_seconds: 5.0, uncertainty_seconds: 0.001 };
        let chains = Chains {
            node: "gpu-1".into(),
            now: Some(1000.0),
            watched_since: None,
            processes: None,
            observation: Some(Period::attached(0.0).into()),
            chains: Vec::new(),
        };
        let answer = FleetAnswer {
            answers: vec![NodeAnswer { url: url("http://a:1"), chains, clock: Some(clock) }],
            failures: vec![NodeFailure {
                url: url("http://b:1"),
                error: AskError::Unauthorized(url("http://b:1")),
            }],
        };
        let report = FleetReport::of(answer, 60.0, 0.0, &ChainFilter::default());
        let text = report.render(false);
        for part in [
            "1 of 2 nodes answered\n",
            "NO ANSWER  http://b:1 requires a login",
            "CLOCK  the clock of http://a:1 is 5.000 s ahead of this host's (+- 0.001 s)\n",
            "== http://a:1  (clock +5.000 s +- 0.001 s)\nOBSERVATION  attached since",
            "\ngpu-1: no causal chain.",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["failures"][0]["url"], "http://b:1");
        assert_eq!(json["outcome"], "not_observed", "of a node that is silent nothing is known");
        assert_eq!(json["nodes"][0]["incident"]["outcome"], "nothing_found");
        assert_eq!(json["nodes"][0]["clock"]["ahead_seconds"], 5.0);
    }
}
