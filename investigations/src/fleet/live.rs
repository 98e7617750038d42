//! What nodes told of their chains, as a recording without events, so that it is exported as any other.

use std::collections::HashSet;
use std::ops::ControlFlow;

use super::{FleetAnswer, NodeAnswer, here};
use crate::recording::{
    CallStatistics, Event, Filter, Node, NodeChain, NodeIndex, Process, Recording, RecordingError,
    Session, Stack, StackId, WaitStatistics,
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
    /// Of those that answered. Two of one name are told apart by their addresses, and clocks are told by that of the first.
    #[must_use]
    pub fn of(answer: &FleetAnswer) -> Self {
        let mut all = Self::default();
        let reference = answer.answers.first().and_then(|first| first.clock);
        for (index, told) in (0..=u16::MAX).zip(&answer.answers) {
            let ahead = told.clock.zip(reference);
            let ahead = ahead.map(|(own, first)| nanos(own.ahead_seconds - first.ahead_seconds));
            all.add(NodeIndex(index), told, ahead);
        }
        // Stable: those of a node stay in its order.
        all.chains.sort_by(|a, b| {
            let attributed = b.chain.attributed_seconds().total_cmp(&a.chain.attributed_seconds());
            b.chain.severity.cmp(&a.chain.severity).then(attributed)
        });
        all
    }

    fn add(&mut self, node: NodeIndex, told: &NodeAnswer, clock_ahead_ns: Option<i64>) {
        let mut name = told.chains.node.clone();
        if self.nodes.iter().any(|known| known.name == name) {
            name = format!("{name} ({})", told.url);
        }
        self.nodes.push(Node { name, clock_ahead_ns });
        let now = told.chains.now.unwrap_or_else(here);
        let first = told.chains.chains.iter().map(|chain| chain.first_seen).fold(now, f64::min);
        self.sessions.push(Session {
            node,
            started_ns: nanos(told.chains.watched_since.unwrap_or(first).min(first)),
            ended_ns: Some(nanos(now)),
            recorder: "gpucause exporter".into(),
            details: vec![("url".into(), told.url.to_string())],
            lost_events: None,
        });
        let mut known = HashSet::new();
        for chain in &told.chains.chains {
            let victim = &chain.victim;
            if known.insert((victim.pid, &victim.comm)) {
                let (pid, comm) = (victim.pid, victim.comm.clone());
                self.processes.push(Process { node, pid, comm, rank: None, details: Vec::new() });
            }
            self.chains.push(NodeChain { node, chain: chain.clone() });
        }
    }
}

/// Nanoseconds of seconds.
#[expect(clippy::cast_possible_truncation, reason = "a moment beyond the range becomes its end")]
fn nanos(seconds: f64) -> i64 {
    (seconds * 1e9) as i64
}

impl Recording for LiveChains {
    fn format(&self) -> String {
        "what nodes told".to_owned()
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

    fn thread_name(&self, _: crate::recording::ProcessIndex, _: u32) -> Option<&str> {
        None
    }

    fn chains(&self) -> Result<Vec<NodeChain>, RecordingError> {
        Ok(self.chains.clone())
    }

    fn calls(&self) -> Result<Vec<CallStatistics>, RecordingError> {
        Ok(Vec::new())
    }

    fn waits(&self) -> Result<Vec<WaitStatistics>, RecordingError> {
        Ok(Vec::new())
    }

    fn events(
        &self,
        _: &Filter,
        _: &mut dyn FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<(), RecordingError> {
        Ok(())
    }

    fn event_count(&self) -> Result<u64, RecordingError> {
        Ok(0)
    }

    fn stack(&self, _: StackId) -> Result<Option<Stack>, RecordingError> {
        Ok(None)
    }
}
