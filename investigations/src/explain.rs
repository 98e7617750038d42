//! The incident report: what is the root cause, what came of it when, and what to try.

mod fleet;
mod recorded;
mod tables;
mod text;

use gpucause_engine::chain::{Cause, Chain, Severity, Victim};
use serde::Serialize;

pub use fleet::{FailureReport, FleetNode, FleetReport};
pub use recorded::{
    CallLine, NodeReport, Report, SessionLine, StackLine, ThreadLine, TraceFile, WaitLine,
};
pub use tables::render_report;
pub use text::render;
pub(crate) use text::{line, steers};

/// What happened on a node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Incident {
    /// Name of the host.
    pub node: String,
    /// Since when the node was watched, in seconds since the Unix epoch, when it tells.
    pub watched_since: Option<f64>,
    /// The worst chain whose cause is known; the worst of all when none is.
    pub root_cause: Option<Chain>,
    /// The others, the worst first.
    pub others: Vec<Chain>,
    /// What happened when, in seconds since the Unix epoch.
    pub timeline: Vec<Event>,
    /// Processes that lost time, the one that lost most first.
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

/// What one process lost.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProcessLoss {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// Chains that it is the victim of.
    pub chains: usize,
    /// GPU-feeding time lost, in seconds.
    pub lost_seconds: f64,
    /// The worst of them.
    pub severity: Severity,
    /// The cause that cost most, and what it cost in seconds.
    pub worst: (Cause, f64),
}

impl Incident {
    /// Of the chains that were seen at or after `since`, in seconds since the Unix epoch. `chains` has the worst first.
    #[must_use]
    pub fn of(node: String, chains: Vec<Chain>, since: f64) -> Self {
        let mut others: Vec<_> =
            chains.into_iter().filter(|chain| chain.last_seen >= since).collect();
        let timeline = timeline(&others);
        let processes = processes(&others);
        let known = others.iter().position(|chain| chain.cause != Cause::Unexplained);
        let root = known.or(if others.is_empty() { None } else { Some(0) });
        let root_cause = root.map(|at| others.remove(at));
        Self { node, watched_since: None, root_cause, others, timeline, processes }
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
        let lost = chain.lost_seconds;
        let Victim { pid, comm, .. } = &chain.victim;
        // A PID may be used again, by another job.
        match losses.iter_mut().find(|loss| (loss.pid, &loss.comm) == (*pid, comm)) {
            Some(loss) => {
                loss.chains += 1;
                loss.lost_seconds += lost;
                loss.severity = loss.severity.max(chain.severity);
                if lost > loss.worst.1 {
                    loss.worst = (chain.cause, lost);
                }
            }
            None => losses.push(ProcessLoss {
                pid: chain.victim.pid,
                comm: chain.victim.comm.clone(),
                chains: 1,
                lost_seconds: lost,
                severity: chain.severity,
                worst: (chain.cause, lost),
            }),
        }
    }
    losses.sort_by(|a, b| b.lost_seconds.total_cmp(&a.lost_seconds));
    losses
}
