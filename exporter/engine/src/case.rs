//! What rules are given: every process with its windows and effects, and what is known of the host.

use std::collections::HashMap;

use gpucause_abi::snapshot::{ProcessSnapshot, Wait};
use gpucause_abi::state::{Reason, Relation};
use gpucause_abi::{Nanos, ProcId, Tid};

use crate::delta::Delta;
use crate::divide::Span;
use crate::effect::{Measured, Phases};
use crate::settings::Settings;

/// One process under judgement.
#[derive(Debug)]
pub(crate) struct Subject<'a> {
    /// As it is now.
    pub(crate) now: &'a ProcessSnapshot,
    /// Since the last look.
    pub(crate) short: Delta<'a>,
    /// Over the last looks.
    pub(crate) long: Delta<'a>,
    /// Live bytes of device memory over the time that a leak is judged on; empty before.
    pub(crate) live_memory: Vec<u64>,
    /// Whether it has warmed up.
    pub(crate) settled: bool,
    /// Looks since then.
    pub(crate) settled_looks: u32,
    /// How long the CPU limit of its cgroup stopped it since the last look.
    pub(crate) throttled: Nanos,
    /// What was found to be wrong with it.
    pub(crate) effects: Vec<Measured>,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Scene<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) subjects: Vec<Subject<'a>>,
    /// Positions of the worker processes of each process.
    pub(crate) workers: HashMap<ProcId, Vec<usize>>,
    /// Share of the window in which each GPU ran below its clock for a reason other than idleness, by UUID.
    pub(crate) throttled: &'a HashMap<String, f64>,
    /// Name of the host, where it is known.
    pub(crate) host: Option<&'a str>,
}

impl<'a> Scene<'a> {
    /// Worker processes of a process.
    pub(crate) fn workers_of(&self, parent: ProcId) -> impl Iterator<Item = &Subject<'a>> {
        let workers = self.workers.get(&parent).into_iter().flatten();
        workers.filter_map(|&index| self.subjects.get(index))
    }
}

impl<'a> Subject<'a> {
    /// The time since the last look.
    pub(crate) fn span(&self) -> Span<'_, 'a> {
        Span { delta: &self.short, throttled: self.throttled }
    }

    /// Whether a thread of it feeds a GPU.
    pub(crate) fn dispatches(&self) -> bool {
        self.now.dispatches
    }

    /// Waits of all its threads that have part in an effect, added up by name, most time first.
    pub(crate) fn waits(&self, effect: &Measured, reasons: &[Reason]) -> Vec<Wait> {
        total_by_name(waits_in(effect.delta(self), None, effect.phases, reasons))
    }

    /// Those of one thread.
    pub(crate) fn waits_of(&self, tid: Tid, effect: &Measured, reasons: &[Reason]) -> Vec<Wait> {
        total_by_name(waits_in(effect.delta(self), Some(tid), effect.phases, reasons))
    }
}

/// Waits that have part in an effect in these phases, of one thread or of all. Waits of which the thread is not known may be
/// its, for whomever.
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

/// Waits added up by name, most time first.
fn total_by_name(waits: impl Iterator<Item = Wait>) -> Vec<Wait> {
    let mut totals: Vec<Wait> = Vec::new();
    for wait in waits {
        match totals.iter_mut().find(|own| own.on == wait.on && own.relation == wait.relation) {
            Some(own) => {
                own.total.0 = own.total.0.saturating_add(wait.total.0);
                own.held.0 = own.held.0.saturating_add(wait.held.0);
            }
            None => totals.push(wait),
        }
    }
    totals.sort_unstable_by_key(|wait| std::cmp::Reverse(wait.total));
    totals
}
