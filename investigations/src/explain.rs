//! The incident report: root cause, timeline, and what to do.

mod chain_filter;
mod fleet;
pub mod html;
pub mod markdown;
mod recorded;
mod tables;
mod text;

use gpucause_engine::chain::{Cause, Chain, Severity, Victim};
use serde::Serialize;

use crate::node::Chains;
use crate::observation::{Observed, Outcome};

pub use chain_filter::ChainFilter;
pub(crate) use chain_filter::is_reportable;
pub use fleet::{FailureReport, FleetNode, FleetReport};
pub use recorded::{
    CallLine, NodeReport, Report, SessionLine, StackLine, ThreadLine, TraceFile, WaitLine,
};
pub use tables::render_report;
pub(crate) use text::plain;
pub use text::render;
pub use text::{is_control, line, render_chain};

/// What happened on a node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Incident {
    /// Name of the host.
    pub node: String,
    /// Whether causal chains were found, or could have been.
    pub outcome: Outcome,
    /// Which part of the time window was observed.
    pub observation: Observed,
    /// Number of chains that the filter excludes.
    pub left_out: usize,
    /// The process in the filter, where the node does not observe it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unobserved_pid: Option<u32>,
    /// The worst chain with a known cause; the worst of all where no cause is known.
    pub root_cause: Option<Chain>,
    /// The other chains, the worst first.
    pub others: Vec<Chain>,
    /// Begin and end of the chains, in the order of time.
    pub timeline: Vec<Event>,
    /// Victims, by the time attributed to their chains, the longest first.
    pub processes: Vec<ProcessLoss>,
}

/// One line of the timeline.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Event {
    /// Seconds since the Unix epoch.
    pub at: f64,
    /// The chain.
    pub chain_id: String,
    /// Description.
    pub what: String,
}

/// Time that one process lost to chains.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProcessLoss {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// Start in seconds on the boot-time clock, where known.
    pub started: Option<f64>,
    /// Number of chains whose victim it is.
    pub chains: usize,
    /// Time of its dispatcher threads attributed to causes, in seconds.
    pub attributed_seconds: f64,
    /// The part of it that is lost GPU-feeding time, in seconds.
    pub lost_seconds: f64,
    /// The worst of its chains.
    pub severity: Severity,
    /// The cause with the most attributed time, and that time in seconds.
    pub worst: (Cause, f64),
}

impl Incident {
    /// Of a live node. `here` is as in [`Chains::observed`].
    pub fn of_answer(answer: Chains, seconds: f64, here: f64, filter: &ChainFilter) -> Self {
        let observation = answer.observed(seconds, here, filter);
        let observed = answer.processes;
        let incident = Self::filtered(answer.node, answer.chains, observation, filter);
        let is_unknown = |pid: &u32| observed.is_some_and(|observed| !observed.contains(pid));
        match filter.pid.filter(is_unknown) {
            Some(pid) if incident.root_cause.is_none() => {
                Self { outcome: Outcome::NotObserved, unobserved_pid: Some(pid), ..incident }
            }
            _ => incident,
        }
    }

    /// The root cause and the other chains.
    pub fn chains(&self) -> impl Iterator<Item = &Chain> {
        self.root_cause.iter().chain(&self.others)
    }

    /// Of the chains seen in the window that the filter selects.
    pub fn filtered(
        node: String,
        mut chains: Vec<Chain>,
        observation: Observed,
        filter: &ChainFilter,
    ) -> Self {
        let (since, until) = observation.window;
        // A window that ends now has no end here: the node's clock may be ahead of this host's.
        let until = filter.until.map_or(f64::INFINITY, |_| until);
        chains.retain(|chain| chain.last_seen >= since && chain.first_seen <= until);
        let (chains, left_out) = filter.of(chains);
        Self { left_out, ..Self::of(node, chains, observation) }
    }

    /// Of all these chains, the worst first.
    pub fn of(node: String, mut others: Vec<Chain>, observation: Observed) -> Self {
        let timeline = timeline(&others);
        let processes = processes(&others);
        let known = others.iter().position(|chain| chain.cause != Cause::Unexplained);
        let root = known.or((!others.is_empty()).then_some(0));
        let root_cause = root.map(|at| others.remove(at));
        let outcome = observation.outcome(root_cause.is_some());
        Self {
            node,
            outcome,
            observation,
            left_out: 0,
            unobserved_pid: None,
            root_cause,
            others,
            timeline,
            processes,
        }
    }
}

fn timeline(chains: &[Chain]) -> Vec<Event> {
    let mut events = Vec::with_capacity(chains.len() * 2);
    for chain in chains {
        let Chain { id, cause, effect, victim, .. } = chain;
        let event = |at, what| Event { at, chain_id: id.clone(), what };
        let whose = format!("{cause} -> {effect} of {} ({})", victim.comm, victim.pid);
        events.push(event(chain.first_seen, format!("{whose} begins")));
        if chain.last_seen > chain.first_seen {
            events.push(event(chain.last_seen, format!("{whose} seen last, {}", chain.severity)));
        }
    }
    events.sort_by(|a, b| a.at.total_cmp(&b.at));
    events
}

fn processes(chains: &[Chain]) -> Vec<ProcessLoss> {
    let mut losses: Vec<ProcessLoss> = Vec::new();
    for chain in chains {
        let attributed = chain.attributed_seconds();
        let Victim { pid, comm, started, .. } = &chain.victim;
        // PIDs are reused, also by programs of the same name.
        let same =
            |loss: &ProcessLoss| (loss.pid, &loss.comm, loss.started) == (*pid, comm, *started);
        let known = losses.iter().position(same);
        let at = known.unwrap_or_else(|| {
            losses.push(ProcessLoss {
                pid: *pid,
                comm: comm.clone(),
                started: *started,
                chains: 0,
                attributed_seconds: 0.0,
                lost_seconds: 0.0,
                severity: chain.severity,
                worst: (chain.cause, attributed),
            });
            losses.len() - 1
        });
        let loss = &mut losses[at];
        loss.chains += 1;
        loss.attributed_seconds += attributed;
        loss.lost_seconds += chain.lost_seconds;
        loss.severity = loss.severity.max(chain.severity);
        if attributed > loss.worst.1 {
            loss.worst = (chain.cause, attributed);
        }
    }
    losses.sort_by(|a, b| b.attributed_seconds.total_cmp(&a.attributed_seconds));
    losses
}
