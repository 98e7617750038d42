//! The incident report: root cause, timeline, and what to do.

mod fleet;
pub mod html;
pub mod markdown;
mod print;
mod recorded;
mod report;
mod tables;
mod text;

use std::collections::BTreeSet;

use gpucause_engine::chain::{Cause, Chain, Severity, Victim};
use serde::Serialize;

use crate::chain_filter::{ChainFilter, culprits};
use crate::node::Chains;
use crate::observation::{Observed, Outcome};
use crate::untrusted_text::line;

pub use report::{
    BetweenLine, CallLine, FailureReport, NodeReport, REPORT_VERSION, Recorded, Report,
    SessionLine, StackLine, ThreadLine, TraceFile, WaitLine,
};
pub use text::{render, render_chain, render_report};

/// Causal chains and observation of a node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Incident {
    /// Name of the host.
    pub node: String,
    /// Result of the search for causal chains.
    pub outcome: Outcome,
    /// Which part of the time window was observed.
    pub observation: Observed,
    /// Number of chains that the filter excludes.
    pub left_out: usize,
    /// The process in the filter, where the node does not observe it.
    pub unobserved_pid: Option<u32>,
    /// The worst chain with a known cause; the worst of all where no cause is known. Of the victim in the filter, where it is one.
    pub root_cause: Option<Chain>,
    /// The other chains, the [worst first](Chain::worst_first); those of the victim in the filter before the others.
    pub others: Vec<Chain>,
    /// Begin and end of the chains, in the order of time.
    pub timeline: Vec<TimelineEntry>,
    /// Victims, by the time that their chains took, the longest first.
    pub processes: Vec<ProcessLoss>,
    /// The filter, with the begin of the period that is asked for.
    #[serde(skip)]
    filter: ChainFilter,
    /// The processes that a live node observes: PIDs, with names and without those that have ended where the node reports that.
    #[serde(skip)]
    observed: Vec<String>,
    /// True if the filter is the processes of `record --pid`, and the user set no filter.
    #[serde(skip)]
    is_of_recorder: bool,
}

/// One line of the timeline.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TimelineEntry {
    /// Seconds since the Unix epoch.
    pub at: f64,
    /// The chain.
    pub chain_id: String,
    /// Description.
    pub what: String,
}

/// Time that one process lost to chains in the asked period, or to whole chains whose times are not known by period.
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
    /// The part of it that is lost dispatcher time, in seconds.
    pub lost_seconds: f64,
    /// The highest severity of its chains in the period.
    pub severity: Severity,
    /// The cause with the most attributed time, and that time in seconds.
    pub worst: (Cause, f64),
}

impl Incident {
    /// Returns the incident of a live node. `here` is as in [`Chains::observed`].
    pub fn of_answer(answer: Chains, seconds: f64, here: f64, filter: &ChainFilter) -> Self {
        let observation = answer.observed(seconds, here, filter);
        let (observed, names) = (answer.processes, answer.names);
        let incident = Self::filtered(answer.node, answer.chains, observation, filter);
        let is_unknown =
            |pid: &u32| observed.as_ref().is_some_and(|observed| !observed.contains(pid));
        match filter.pids.iter().copied().find(is_unknown) {
            Some(pid) if incident.root_cause.is_none() => {
                let observed = match names.is_empty() {
                    true => observed.unwrap_or_default().iter().map(u32::to_string).collect(),
                    false => {
                        names.iter().map(|(pid, comm)| format!("{pid} ({})", line(comm))).collect()
                    }
                };
                let unobserved_pid = Some(pid);
                Self { outcome: Outcome::NotObserved, unobserved_pid, observed, ..incident }
            }
            _ => incident,
        }
    }

    /// The root cause and the other chains.
    pub fn chains(&self) -> impl Iterator<Item = &Chain> {
        self.root_cause.iter().chain(&self.others)
    }

    /// Returns the incident with the chains that were seen in the window and that the filter selects.
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
        Self::selected(node, chains, observation, filter.clone().or_since(since))
    }

    /// Returns the incident with all these chains.
    pub fn of(node: String, chains: Vec<Chain>, observation: Observed) -> Self {
        Self::selected(node, chains, observation, ChainFilter::default())
    }

    /// Returns the incident with the chains that the filter selects.
    fn selected(
        node: String,
        chains: Vec<Chain>,
        observation: Observed,
        filter: ChainFilter,
    ) -> Self {
        let (mut others, left_out) = filter.of(chains);
        let period = filter.period();
        others.sort_by(|a, b| {
            filter.is_victim(b).cmp(&filter.is_victim(a)).then_with(|| a.worst_first(b, period))
        });
        let begun = observation.current.as_ref().map(|own| own.since);
        let timeline = timeline(&others, begun);
        let processes = processes(&others, period);
        let own = others.iter().take_while(|chain| filter.is_victim(chain)).count();
        let own = if own > 0 { &others[..own] } else { &others[..] };
        let root = known(own.iter()).or((!others.is_empty()).then_some(0));
        let root_cause = root.map(|at| others.remove(at));
        let outcome = observation.outcome(root_cause.is_some());
        Self {
            node,
            outcome,
            observation,
            left_out,
            unobserved_pid: None,
            root_cause,
            others,
            timeline,
            processes,
            filter,
            observed: Vec::new(),
            is_of_recorder: false,
        }
    }

    /// How many chains are not shown, and why.
    pub(crate) fn not_shown(&self) -> Option<String> {
        let left_out = self.left_out;
        let why = match self.is_of_recorder {
            true => "causal chains of processes that are not of record --pid",
            false => "causal chains excluded by the filter",
        };
        (left_out > 0).then(|| format!("{why}: {left_out}"))
    }

    /// The processes whose rows are shown: the selected ones and the culprits of their chains; all where `None`.
    pub fn shown_pids(&self) -> Option<BTreeSet<u32>> {
        let pids = &self.filter.pids;
        (!pids.is_empty())
            .then(|| self.culprits().into_iter().chain(pids.iter().copied()).collect())
    }

    /// The culprits of the chains of the selected processes, without these; none where all are selected.
    fn culprits(&self) -> BTreeSet<u32> {
        let pids = &self.filter.pids;
        let own = self.chains().filter(|chain| self.filter.is_victim(chain) && !pids.is_empty());
        own.flat_map(culprits)
            .filter_map(|(pid, _)| pid)
            .filter(|pid| !pids.contains(pid))
            .collect()
    }

    /// The asked period, by its begin and end in seconds since the Unix epoch.
    pub fn period(&self) -> (f64, f64) {
        self.filter.period()
    }

    /// The asked period; where it has no bound, that of the observed window.
    pub(crate) fn asked(&self) -> (f64, f64) {
        let (ChainFilter { from, until, .. }, window) = (&self.filter, self.observation.window);
        (from.unwrap_or(window.0), until.unwrap_or(window.1))
    }

    /// The highest severity that a chain reached in the period.
    pub fn severity(&self) -> Option<Severity> {
        self.chains().map(|chain| chain.severity_in(self.period())).max()
    }

    /// The chains by headings: the root cause and further causes of each victim, the victim of the worst chain first, and what the
    /// process in the filter causes without being the victim.
    pub(crate) fn sections(&self) -> Vec<(&'static str, String, Vec<&Chain>)> {
        let (victims, delayed) = self.by_victim();
        let is_one = victims.len() == 1;
        let mut sections = Vec::new();
        for mut chains in victims {
            let Victim { pid, comm, .. } = &chains[0].victim;
            let of = if is_one { String::new() } else { format!(" of {comm} (PID {pid})") };
            let further = chains.split_off(1);
            sections.extend([("Root cause", of.clone(), chains), ("Also", of, further)]);
        }
        sections.push(("It delays others", String::new(), delayed));
        sections.retain(|(.., chains)| !chains.is_empty());
        sections
    }

    /// The chains of each victim, the root cause first; then those of other victims that the process in the filter causes.
    fn by_victim(&self) -> (Vec<Vec<&Chain>>, Vec<&Chain>) {
        let (own, delayed): (Vec<&Chain>, Vec<&Chain>) =
            self.chains().partition(|chain| self.filter.is_victim(chain));
        let mut victims: Vec<Vec<&Chain>> = Vec::new();
        for chain in own {
            match victims.iter_mut().find(|chains| is_same_victim(chains[0], chain)) {
                Some(chains) => chains.push(chain),
                None => victims.push(vec![chain]),
            }
        }
        for chains in &mut victims {
            let root = known(chains.iter().copied()).unwrap_or(0);
            if let Some(until_root) = chains.get_mut(..=root) {
                until_root.rotate_right(1);
            }
        }
        (victims, delayed)
    }
}

/// Index of the first chain with a known cause.
fn known<'a>(mut chains: impl Iterator<Item = &'a Chain>) -> Option<usize> {
    chains.position(|chain| chain.cause != Cause::Unexplained)
}

/// PIDs are reused, also by programs of the same name.
fn is_same_victim(one: &Chain, other: &Chain) -> bool {
    let identity = |chain: &Chain| (chain.victim.pid, chain.victim.started);
    identity(one) == identity(other) && one.victim.comm == other.victim.comm
}

impl ProcessLoss {
    fn is_victim(&self, chain: &Chain) -> bool {
        let Victim { pid, comm, started, .. } = &chain.victim;
        (self.pid, &self.comm, self.started) == (*pid, comm, *started)
    }
}

/// How long after the begin of an observation its first chains begin at the latest, in seconds: processes have to warm up.
const WARM_UP: f64 = 8.0;

/// `observed` is when the observation began.
fn timeline(chains: &[Chain], observed: Option<f64>) -> Vec<TimelineEntry> {
    let mut events = Vec::with_capacity(chains.len() * 3);
    for chain in chains {
        let Chain { id, cause, effect, victim, severity, .. } = chain;
        let event = |at, what| TimelineEntry { at, chain_id: id.clone(), what };
        let whose = format!("{cause} -> {effect} of {} ({})", victim.comm, victim.pid);
        let last = chain.last_severity();
        let is_first = observed.is_some_and(|at| (0.0..WARM_UP).contains(&(chain.first_seen - at)));
        let begins = if is_first { "begins, or before: first evaluated then" } else { "begins" };
        events.push(event(chain.first_seen, format!("{whose} {begins}")));
        if let Some(at) = chain.course.severity_at.filter(|_| *severity != last) {
            events.push(event(at, format!("{whose} is {severity} for the last time")));
        }
        if chain.last_seen > chain.first_seen {
            events.push(event(chain.last_seen, format!("{whose} seen last, {last}")));
        }
    }
    events.sort_by(|a, b| a.at.total_cmp(&b.at));
    events
}

fn processes(chains: &[Chain], period: (f64, f64)) -> Vec<ProcessLoss> {
    let mut losses: Vec<ProcessLoss> = Vec::new();
    for chain in chains {
        let whole = (chain.attributed_seconds(), chain.lost_seconds);
        let (attributed, lost) = chain.taken_in(period).unwrap_or(whole);
        let severity = chain.severity_in(period);
        let at = losses.iter().position(|loss| loss.is_victim(chain)).unwrap_or_else(|| {
            let Victim { pid, comm, started, .. } = &chain.victim;
            losses.push(ProcessLoss {
                pid: *pid,
                comm: comm.clone(),
                started: *started,
                chains: 0,
                attributed_seconds: 0.0,
                lost_seconds: 0.0,
                severity,
                worst: (chain.cause, attributed),
            });
            losses.len() - 1
        });
        let loss = &mut losses[at];
        loss.chains += 1;
        loss.attributed_seconds += attributed;
        loss.lost_seconds += lost;
        loss.severity = loss.severity.max(severity);
        if attributed > loss.worst.1 {
            loss.worst = (chain.cause, attributed);
        }
    }
    losses.sort_by(|a, b| b.attributed_seconds.total_cmp(&a.attributed_seconds));
    losses
}
