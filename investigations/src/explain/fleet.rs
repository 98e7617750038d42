//! The report of live nodes.

use gpucause_http::client::Address;

use super::Incident;
use super::report::{FailureReport, NodeReport, Report};
use crate::chain_filter::ChainFilter;
use crate::fleet::{FleetAnswer, NodeAnswer, NodeFailure};
use crate::node::Chains;
use crate::observation::Outcome;

impl Report {
    /// Reports the chains seen in the last `seconds` on one node, which has this address.
    pub fn of_node(
        url: &Address,
        answer: Chains,
        (seconds, here): (f64, f64),
        filter: &ChainFilter,
    ) -> Self {
        let node = NodeAnswer { url: url.clone(), chains: answer, clock: None };
        let answer = FleetAnswer { answers: vec![node], failures: Vec::new() };
        Self::of_nodes(answer, (seconds, here), filter)
    }

    /// Reports the chains seen in the last `seconds` on each node. `here` is as in [`Chains::observed`](crate::node::Chains::observed).
    pub fn of_nodes(
        answer: FleetAnswer,
        (seconds, here): (f64, f64),
        filter: &ChainFilter,
    ) -> Self {
        let warnings = answer.clock_warnings();
        let report = |node: NodeAnswer| {
            let incident = Incident::of_answer(node.chains, seconds, here, filter);
            NodeReport {
                url: Some(node.url.to_string()),
                clock: node.clock,
                incident,
                recorded: None,
            }
        };
        let mut nodes: Vec<NodeReport> = answer.answers.into_iter().map(report).collect();
        nodes.sort_by(|a, b| {
            let period = a.incident.period();
            match (&a.incident.root_cause, &b.incident.root_cause) {
                (Some(a), Some(b)) => a.worst_first(b, period),
                (a, b) => b.is_some().cmp(&a.is_some()),
            }
        });
        let failure = |failed: NodeFailure| FailureReport {
            url: failed.url.to_string(),
            reason: failed.error.to_string(),
        };
        let failures: Vec<_> = answer.failures.into_iter().map(failure).collect();
        let silent = (!failures.is_empty()).then_some(Outcome::NotObserved);
        // A process runs on one node; that others do not observe it says nothing.
        let has_it = nodes.iter().any(|node| node.incident.unobserved_pid.is_none());
        let counts = |node: &&NodeReport| !has_it || node.incident.unobserved_pid.is_none();
        let outcomes = nodes.iter().filter(counts).map(|node| node.incident.outcome).chain(silent);
        let outcome = outcomes.max().unwrap_or(Outcome::NotObserved);
        Self { outcome, file: None, nodes, failures, warnings }
    }
}

#[cfg(test)]
mod tests {
    use gpucause_engine::observation::Period;

    use super::*;
    use crate::explain::{markdown, render_report};
    use crate::fleet::ClockOffset;
    use crate::node::AskError;
    use std::collections::BTreeMap;

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
                names: BTreeMap::new(),
                observation: Some(Period::attached(0.0).into()),
                chains: Vec::new(),
            };
            NodeAnswer { url: url("http://a:1"), chains, clock: None }
        };
        let outcome = |pid| {
            let answers = vec![node("a", 7), node("b", 8)];
            let filter = ChainFilter { pids: vec![pid], ..ChainFilter::default() };
            let answer = FleetAnswer { answers, failures: Vec::new() };
            Report::of_nodes(answer, (60.0, 0.0), &filter).outcome
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
            names: BTreeMap::new(),
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
        let report = Report::of_nodes(answer, (60.0, 0.0), &ChainFilter::default());
        let text = render_report(&report, false);
        for part in [
            "1 of 2 nodes answered\n",
            "NO ANSWER  http://b:1 requires a login",
            "CLOCK  the clock of http://a:1 is 5.000 s ahead of this host's (+- 0.001 s)\n",
            "== http://a:1  (clock +5.000 s +- 0.001 s)\nOBSERVATION  attached since",
            "\ngpu-1: no causal chain.",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
        assert!(
            markdown::of(&report).contains("\n- **Clock:** the clock of http://a:1 is 5.000 s")
        );
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["failures"][0]["url"], "http://b:1");
        assert_eq!(json["outcome"], "not_observed", "of a node that is silent nothing is known");
        assert_eq!(json["nodes"][0]["outcome"], "nothing_found");
        assert_eq!(json["nodes"][0]["clock"]["ahead_seconds"], 5.0);
    }
}
