//! The chains of live nodes as a recording without events, so that they are exported like one.

use std::collections::HashSet;

use super::{FleetAnswer, NodeAnswer, distinct, here};
use gpucause_trace::recording::{
    Node, NodeChain, NodeIndex, Process, Recording, RecordingError, Session, sort_worst_first,
};

/// Chains of nodes, and the processes that are their victims.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LiveChains {
    nodes: Vec<Node>,
    sessions: Vec<Session>,
    processes: Vec<Process>,
    chains: Vec<NodeChain>,
}

impl LiveChains {
    /// Chains of the nodes that answered. A name that occurs again gets the address appended. Clocks are relative to the
    /// first node's.
    pub fn of(answer: &FleetAnswer) -> Self {
        let mut all = Self::default();
        let reference = answer.answers.first().and_then(|first| first.clock);
        for (index, node) in (0..=u16::MAX).zip(&answer.answers) {
            let ahead = node.clock.zip(reference);
            let ahead = ahead.map(|(own, first)| own.ahead_of_ns(&first));
            all.add(NodeIndex(index), node, ahead);
        }
        sort_worst_first(&mut all.chains);
        all
    }

    fn add(&mut self, node: NodeIndex, answer: &NodeAnswer, clock_ahead_ns: Option<i64>) {
        let is_taken = |name: &str| self.nodes.iter().any(|known| known.name == name);
        let name = distinct(answer.chains.node.clone(), &answer.url, is_taken);
        self.nodes.push(Node { name, clock_ahead_ns });
        let now = answer.chains.now.unwrap_or_else(here);
        let first = answer.chains.chains.iter().map(|chain| chain.first_seen).fold(now, f64::min);
        self.sessions.push(Session {
            node,
            started_ns: nanos(answer.chains.watched_since.unwrap_or(first).min(first)),
            ended_ns: Some(nanos(now)),
            recorder: "gpucause exporter".into(),
            details: vec![("url".into(), answer.url.to_string())],
            lost_events: None,
        });
        let mut known = HashSet::new();
        for chain in &answer.chains.chains {
            let victim = &chain.victim;
            if known.insert((victim.pid, &victim.comm)) {
                let (pid, comm) = (victim.pid, victim.comm.clone());
                self.processes.push(Process { node, pid, comm, rank: None, details: Vec::new() });
            }
            self.chains.push(NodeChain { node, chain: chain.clone() });
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a time beyond the range becomes its end")]
fn nanos(seconds: f64) -> i64 {
    (seconds * 1e9) as i64
}

impl Recording for LiveChains {
    fn format(&self) -> String {
        "live nodes".to_owned()
    }

    fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    fn sessions(&self) -> &[Session] {
        &self.sessions
    }

    fn processes(&self) -> &[Process] {
        &self.processes
    }

    fn chains(&self) -> Result<Vec<NodeChain>, RecordingError> {
        Ok(self.chains.clone())
    }
}
