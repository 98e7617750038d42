//! What rules are given: every process with its windows and effects, and what is known of the host.

use std::collections::HashMap;

use gpucause_abi::record::REASONS;
use gpucause_abi::snapshot::{ProcessSnapshot, Wait};
use gpucause_abi::state::{Reason, Relation};
use gpucause_abi::{ProcId, Tid};

use crate::delta::Delta;
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
    /// Launches per second as usual, once that is known.
    pub(crate) usual_launch_rate: Option<f64>,
    /// Share of time off the CPU as usual, by reason.
    pub(crate) usual_offcpu: [f64; REASONS],
    /// Live bytes of device memory over the time that a leak is judged on; empty before.
    pub(crate) live_memory: Vec<u64>,
    /// Whether it has warmed up.
    pub(crate) settled: bool,
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
    /// CPU-limit throttling of the process's cgroup in the short window, in nanoseconds.
    pub(crate) cgroup_throttled: HashMap<ProcId, u64>,
}

impl Scene<'_> {
    /// Worker processes of a process.
    pub(crate) fn workers_of(&self, parent: ProcId) -> impl Iterator<Item = &Subject<'_>> {
        let workers = self.workers.get(&parent).into_iter().flatten();
        workers.filter_map(|&index| self.subjects.get(index))
    }
}

impl Subject<'_> {
    /// Whether a thread of it feeds a GPU.
    pub(crate) fn dispatches(&self) -> bool {
        self.now.dispatches
    }

    /// Waits of all its threads that have part in an effect, most time first.
    pub(crate) fn waits(&self, effect: &Measured, reasons: &[Reason]) -> Vec<Wait> {
        total_by_name(effect.delta(self).waits().iter(), effect.phases, reasons)
    }

    /// Those of one thread. Waits of which the thread is not known may be its, for whomever.
    pub(crate) fn waits_of(&self, tid: Tid, effect: &Measured, reasons: &[Reason]) -> Vec<Wait> {
        let part = |wait: &Wait| match wait.tid {
            Some(own) => (own == tid).then_some(*wait),
            None => Some(Wait { tgid: None, relation: Relation::None, ..*wait }),
        };
        let own: Vec<_> = effect.delta(self).waits().iter().filter_map(part).collect();
        total_by_name(own.iter(), effect.phases, reasons)
    }
}

/// Waits for these reasons in these phases, added up by name, most time first.
pub(crate) fn total_by_name<'a>(
    waits: impl Iterator<Item = &'a Wait>,
    phases: Phases,
    reasons: &[Reason],
) -> Vec<Wait> {
    let mut totals: Vec<Wait> = Vec::new();
    let has_part = |wait: &&Wait| {
        reasons.contains(&wait.reason) && phases.contain_wait(wait.phase, wait.reason)
    };
    let wanted = waits.filter(has_part);
    for wait in wanted {
        match totals.iter_mut().find(|own| own.on == wait.on && own.relation == wait.relation) {
            Some(own) => {
                own.total.0 = own.total.0.saturating_add(wait.total.0);
                own.held.0 = own.held.0.saturating_add(wait.held.0);
            }
            None => totals.push(*wait),
        }
    }
    totals.sort_unstable_by_key(|wait| std::cmp::Reverse(wait.total));
    totals
}
