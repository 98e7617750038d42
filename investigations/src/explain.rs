//! The incident report: what is the root cause, what came of it when, and what to try.

mod fleet;
mod recorded;
mod tables;
mod text;
mod wanted;

use gpucause_engine::chain::{Cause, Chain, Severity, Victim};
use serde::Serialize;

use crate::node::Chains;
use crate::observation::{Observed, Outcome};

pub use fleet::{FailureReport, FleetNode, FleetReport};
pub use recorded::{
    CallLine, NodeReport, Report, SessionLine, StackLine, ThreadLine, TraceFile, WaitLine,
};
pub use tables::render_report;
pub use text::render;
pub(crate) use text::{line, steers};
pub use wanted::Wanted;
pub(crate) use wanted::says_something;

/// What happened on a node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Incident {
    /// Name of the host.
    pub node: String,
    /// Whether there are causal chains, none, or none in what was observed.
    pub outcome: Outcome,
    /// What was observed of the time that is asked about.
    pub observation: Observed,
    /// Chains that are not shown, since they were not asked for.
    pub left_out: usize,
    /// The process that is asked about, where the node does not observe it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unobserved_pid: Option<u32>,
    /// The worst chain whose cause is known; the worst of all when none is.
    pub root_cause: Option<Chain>,
    /// The others, the worst first.
    pub others: Vec<Chain>,
    /// What happened when, in seconds since the Unix epoch.
    pub timeline: Vec<Event>,
    /// Processes that are victims of chains, the one that they took most time of first.
    pub processes: Vec<ProcessLoss>,
}

/// One line of the timeline.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Event {
    /// When.
    pub at: f64,
    /// The chain.
    pub chain_id: String,
    /// What.
    pub what: String,
}

/// What chains took of one process's time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProcessLoss {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// When it started, in seconds on the boot-time clock, where that is known.
    pub started: Option<f64>,
    /// Chains that it is the victim of.
    pub chains: usize,
    /// Time of its dispatcher threads that chains attribute to causes, in seconds.
    pub attributed_seconds: f64,
    /// The part of it that is GPU-feeding time lost.
    pub lost_seconds: f64,
    /// The worst of them.
    pub severity: Severity,
    /// The cause that cost most, and what it cost in seconds.
    pub worst: (Cause, f64),
}

impl Incident {
    /// Of the chains that were seen since the window began. `chains` has the worst first.
    #[must_use]
    pub fn of_window(node: String, chains: Vec<Chain>, observation: Observed) -> Self {
        Self::of_wanted(node, chains, observation, &Wanted::default())
    }

    /// What a node answered, as far as it is asked for. `here` is as in [`Chains::observed`].
    #[must_use]
    pub fn of_answer(answer: Chains, seconds: f64, here: f64, wanted: &Wanted) -> Self {
        let observation = answer.observed(seconds, here, wanted);
        let observed = answer.processes;
        let incident = Self::of_wanted(answer.node, answer.chains, observation, wanted);
        let is_unknown = |pid: &u32| observed.is_some_and(|observed| !observed.contains(pid));
        match wanted.pid.filter(is_unknown) {
            Some(pid) if incident.root_cause.is_none() => {
                Self { outcome: Outcome::NotObserved, unobserved_pid: Some(pid), ..incident }
            }
            _ => incident,
        }
    }

    /// Of those of them that are asked for.
    #[must_use]
    pub fn of_wanted(
        node: String,
        mut chains: Vec<Chain>,
        observation: Observed,
        wanted: &Wanted,
    ) -> Self {
        let (since, until) = observation.window;
        // Clocks of a node and of this host may differ: what a node tells now is not after its window.
        let until = wanted.until.map_or(f64::INFINITY, |_| until);
        chains.retain(|chain| chain.last_seen >= since && chain.first_seen <= until);
        let (seen, left_out) = wanted.of(chains);
        Self { left_out, ..Self::of(node, seen, observation) }
    }

    /// Of all these chains, of which the worst is the first.
    #[must_use]
    pub fn of(node: String, mut others: Vec<Chain>, observation: Observed) -> Self {
        let timeline = timeline(&others);
        let processes = processes(&others);
        let known = others.iter().position(|chain| chain.cause != Cause::Unexplained);
        let root = known.or(if others.is_empty() { None } else { Some(0) });
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
        // A PID may be used again, by another job and by another program of the same name.
        let same = |loss: &&mut ProcessLoss| {
            (loss.pid, &loss.comm, loss.started) == (*pid, comm, *started)
        };
        match losses.iter_mut().find(same) {
            Some(loss) => {
                loss.chains += 1;
                loss.attributed_seconds += attributed;
                loss.lost_seconds += chain.lost_seconds;
                loss.severity = loss.severity.max(chain.severity);
                if attributed > loss.worst.1 {
                    loss.worst = (chain.cause, attributed);
                }
            }
            None => losses.push(ProcessLoss {
                pid: chain.victim.pid,
                comm: chain.victim.comm.clone(),
                started: chain.victim.started,
                chains: 1,
                attributed_seconds: attributed,
                lost_seconds: chain.lost_seconds,
                severity: chain.severity,
                worst: (chain.cause, attributed),
            }),
        }
    }
    losses.sort_by(|a, b| b.attributed_seconds.total_cmp(&a.attributed_seconds));
    losses
}
