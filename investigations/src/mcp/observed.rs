//! The observation state of the nodes in an answer.

use std::collections::HashSet;

use gpucause_engine::observation::Period;
use serde_json::{Value, json};

use super::answer::{self, rounded};
use crate::fleet::NodeAnswer;
use crate::node::Chains;
use crate::observation::{Observed, Outcome};
use gpucause_trace::recording::{NodeIndex, Recording, RecordingError};

/// Nodes listed.
const MOST_NODES: usize = 20;
/// Periods listed of each node.
const MOST_PARTS: usize = 5;

/// Observation, and the outcome without a chain.
pub(super) struct Coverage {
    pub(super) observation: Value,
    pub(super) if_none: Outcome,
}

impl Coverage {
    fn of(nodes: &[(String, Observed)], all_answered: bool) -> Self {
        let outcomes = nodes.iter().map(|(_, observed)| observed.outcome(false));
        let silent = (!all_answered).then_some(Outcome::NotObserved);
        let if_none = outcomes.chain(silent).max().unwrap_or(Outcome::NotObserved);
        let rows = nodes.iter().take(MOST_NODES).map(|(node, observed)| row(node, observed));
        Self { observation: rows.collect(), if_none }
    }

    /// Returns the coverage of each node since it began to observe.
    pub(super) fn of_answers(answers: &[NodeAnswer], all_answered: bool) -> Self {
        let observed = |own: &NodeAnswer| {
            let state = own.chains.observation.clone();
            let until = own.chains.now.unwrap_or(f64::MAX);
            let begun = |state: &gpucause_engine::observation::ObservationState| {
                state.earlier.first().unwrap_or(&state.current).since
            };
            let from = state.as_ref().map_or(until, begun);
            (own.chains.node.clone(), Observed::of_node(state, from, until))
        };
        Self::of(&answers.iter().map(observed).collect::<Vec<_>>(), all_answered)
    }

    pub(super) fn of_recording(recording: &dyn Recording) -> Result<Self, RecordingError> {
        let mut nodes = Vec::new();
        for (index, _) in (0..=u16::MAX).map(NodeIndex).zip(recording.nodes()) {
            let observed = Observed::of_recording(recording, index, (None, &[]), (None, None))?;
            nodes.push((recording.node_name(index).to_owned(), observed));
        }
        Ok(Self::of(&nodes, true))
    }

    /// The note of an answer without chains.
    pub(super) const fn note(&self) -> &'static str {
        match self.if_none {
            Outcome::NotObserved => {
                "not observed: there is no causal chain, but some time or nodes were not observed, see observation; whether a GPU was starved there is unknown"
            }
            Outcome::Found | Outcome::NothingFound => {
                "no host-side cause of GPU starvation was found in the observed time; see observation and get_data_quality"
            }
        }
    }
}

fn row(node: &str, observed: &Observed) -> Value {
    let parts = observed.not_fully_observed.iter();
    let current = observed.current.as_ref();
    json!({
        "node": answer::name(node),
        "state": current.map_or("not reported", |own| own.state.label()),
        "timed_share": current.and_then(|own| own.timed_share).map(rounded),
        "since": current.map(|own| rounded(own.since)),
        "reason": current.map(|own| answer::text(&own.reason, 200)),
        // The newest first.
        "not_fully_observed": parts.rev().take(MOST_PARTS).map(part).collect::<Vec<_>>(),
    })
}

fn part(part: &Period) -> Value {
    json!({
        "state": part.state,
        "timed_share": part.timed_share.map(rounded),
        "since": rounded(part.since),
        "until": part.until.map(rounded),
        "reason": answer::text(&part.reason, 200),
    })
}

/// Names of the processes that nodes observe; `None` where one has processes and reports no names.
pub(super) fn names<'a>(nodes: impl IntoIterator<Item = &'a Chains>) -> Option<HashSet<String>> {
    let mut all = HashSet::new();
    for own in nodes {
        let is_silent = own.processes.as_ref().is_none_or(|own| !own.is_empty());
        if own.names.is_empty() && is_silent {
            return None;
        }
        all.extend(own.names.values().cloned());
    }
    Some(all)
}
