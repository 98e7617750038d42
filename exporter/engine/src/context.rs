//! The context that rules are evaluated in: every process with its windows and effects, and the state of the host.

mod measured;

use std::collections::HashMap;

use gpucause_abi::snapshot::{ProcessSnapshot, Wait};
use gpucause_abi::state::{Reason, Relation};
use gpucause_abi::{Nanos, ProcId, Tid};

use crate::chain::Feeder;
use crate::claim::Span;
use crate::computing::Computing;
use crate::delta::Delta;
use crate::peers::Peers;
use crate::phases::Phases;
use crate::preparers::Preparers;
use crate::settings::Settings;

pub(crate) use measured::Measured;

#[derive(Debug)]
pub(crate) struct Process<'a> {
    pub(crate) now: &'a ProcessSnapshot,
    /// Since the previous snapshot.
    pub(crate) short: Delta<'a>,
    /// Since the oldest snapshot that is kept.
    pub(crate) long: Delta<'a>,
    /// Live bytes of device memory over the last `leak_seconds`; empty when observed for less.
    pub(crate) live_memory: Vec<u64>,
    pub(crate) warmed_up: bool,
    /// Ticks since the last of its warm-up in which it loaded something.
    pub(crate) ticks_since_loading: u32,
    /// How long the CPU limit of its cgroup throttled it since the previous snapshot.
    pub(crate) throttled: Nanos,
    pub(crate) effects: Vec<Measured>,
    /// When its own code was its limit since the previous snapshot.
    pub(crate) computing: Option<Computing>,
    /// In which of the windows before it was, too: the latest is the lowest bit.
    pub(crate) computed_before: u8,
}

#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) processes: Vec<Process<'a>>,
    /// Indexes of the worker processes of each process.
    pub(crate) workers: HashMap<ProcId, Vec<usize>>,
    /// Workers that prepared data, also those that have ended since.
    pub(crate) preparers: &'a Preparers,
    /// Share of the window for which each GPU was clock-throttled, idleness apart, by UUID.
    pub(crate) throttled: &'a HashMap<String, f64>,
    /// Name of the host, if known.
    pub(crate) host: Option<&'a str>,
    /// True if the last snapshot came early, as at the end of a recording.
    pub(crate) came_early: bool,
    /// Time since the previous snapshot.
    pub(crate) window: Nanos,
    /// Data of a Prometheus server on the jobs that have ranks on other hosts.
    pub(crate) peers: Option<&'a Peers>,
}

impl<'a> Context<'a> {
    pub(crate) fn workers_of(&self, parent: ProcId) -> impl Iterator<Item = &Process<'a>> {
        let workers = self.workers.get(&parent).into_iter().flatten();
        workers.filter_map(|&index| self.processes.get(index))
    }

    /// The process that feeds a GPU and that this PID is, or works for.
    pub(crate) fn feeder(&self, pid: u32) -> Option<Feeder> {
        let process = self.processes.iter().find(|own| own.now.tgid.0 == pid)?;
        let parent = |own: &&Process<'_>| Some(own.now.id) == process.now.parent;
        let feeder = match process.dispatches() {
            true => process,
            false => self.processes.iter().find(parent).filter(|own| own.dispatches())?,
        };
        Some(Feeder { pid: feeder.now.tgid.0, comm: feeder.now.comm.to_text() })
    }
}

impl<'a> Process<'a> {
    /// The time since the previous snapshot.
    pub(crate) fn span(&self) -> Span<'_, 'a> {
        Span { delta: &self.short, throttled: self.throttled }
    }

    pub(crate) fn dispatches(&self) -> bool {
        self.now.dispatches
    }

    /// Waits of all threads that are part of an effect, summed by name, most time first.
    pub(crate) fn waits(&self, effect: &Measured, reasons: &[Reason]) -> Vec<Wait> {
        total_by_name(waits_in(effect.delta(self), None, effect.phases, reasons))
    }

    /// Waits of one thread that are part of an effect, summed by name, most time first.
    pub(crate) fn waits_of(&self, tid: Tid, effect: &Measured, reasons: &[Reason]) -> Vec<Wait> {
        total_by_name(waits_in(effect.delta(self), Some(tid), effect.phases, reasons))
    }
}

/// Waits that are part of an effect in these phases, of one thread or of all. A wait whose thread is unknown counts for any, without
/// a culprit.
pub(crate) fn waits_in(
    delta: &Delta<'_>,
    tid: Option<Tid>,
    phases: Phases,
    reasons: &[Reason],
) -> impl Iterator<Item = Wait> {
    let has_part = move |wait: &&Wait| {
        reasons.contains(&wait.reason) && phases.contain_wait(wait.phase, wait.reason)
    };
    let part = move |wait: &Wait| match (tid, wait.tid) {
        (Some(tid), Some(own)) => (own == tid).then_some(*wait),
        (Some(_), None) => Some(Wait { tgid: None, relation: Relation::None, ..*wait }),
        (None, _) => Some(*wait),
    };
    delta.waits().iter().filter(has_part).filter_map(part)
}

pub(crate) fn total_by_name(waits: impl Iterator<Item = Wait>) -> Vec<Wait> {
    let key = |wait: &Wait| (wait.on, wait.relation, wait.holder, wait.lock, wait.syscall);
    let mut totals: Vec<Wait> = Vec::new();
    for wait in waits {
        match totals.iter_mut().find(|own| key(own) == key(&wait)) {
            Some(own) => {
                own.total.0 = own.total.0.saturating_add(wait.total.0);
                own.held.0 = own.held.0.saturating_add(wait.held.0);
                own.behind.0 = own.behind.0.saturating_add(wait.behind.0);
            }
            None => totals.push(wait),
        }
    }
    totals.sort_unstable_by_key(|wait| std::cmp::Reverse(wait.total));
    totals
}
