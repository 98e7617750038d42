//! Worker processes, such as those of data loaders: children without calls of their own. They have no series: their accounts are part
//! of the process that they work for, also after they ended, so that its counters never decrease.

use std::collections::{HashMap, HashSet};

use gpucause_abi::ProcId;
use gpucause_abi::snapshot::ProcessSnapshot;

use super::merge::merge_accounts;

/// Ancestors that are searched for one that makes calls.
const MAX_DEPTH: usize = 16;

/// The processes that workers work for.
#[derive(Debug, Clone, Default)]
pub struct Owners(HashMap<ProcId, ProcId>);

impl Owners {
    /// Of the workers among these processes.
    #[must_use]
    pub fn of(processes: &[ProcessSnapshot]) -> Self {
        let by_id: HashMap<ProcId, &ProcessSnapshot> =
            processes.iter().map(|process| (process.id, process)).collect();
        let owner = |worker: &ProcessSnapshot| {
            let mut ancestor = by_id.get(&worker.parent?)?;
            for _ in 0..MAX_DEPTH {
                if ancestor.dispatches {
                    return Some(ancestor.id);
                }
                ancestor = by_id.get(&ancestor.parent?)?;
            }
            None
        };
        let workers = processes.iter().filter(|process| is_worker(process));
        Self(workers.filter_map(|worker| Some((worker.id, owner(worker)?))).collect())
    }

    /// The process that a worker works for; `None` for others, and once that process is gone.
    #[must_use]
    pub fn get(&self, id: ProcId) -> Option<ProcId> {
        self.0.get(&id).copied()
    }
}

/// Whether a process is the child of another and has made no calls.
#[must_use]
pub const fn is_worker(process: &ProcessSnapshot) -> bool {
    process.parent.is_some() && !process.dispatches
}

/// What is kept from one snapshot to the next.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    /// The workers of the last snapshot, with their owners.
    last: HashMap<ProcId, (ProcId, ProcessSnapshot)>,
    /// The sums of those that ended, or make calls now, by owner.
    former: HashMap<ProcId, ProcessSnapshot>,
}

impl Workers {
    /// Whether a worker was part of its owner's series at the last snapshot.
    pub(crate) fn knows(&self, id: ProcId) -> bool {
        self.last.contains_key(&id)
    }

    /// Whether a worker had ended at the last snapshot: nothing more will be counted of it.
    pub(crate) fn has_ended(&self, id: ProcId) -> bool {
        self.last.get(&id).is_some_and(|(_, worker)| worker.ended.is_some())
    }

    /// Takes the final accounts of a worker that is removed.
    pub(crate) fn remove(&mut self, worker: ProcessSnapshot) {
        if let Some((_, last)) = self.last.get_mut(&worker.id) {
            *last = worker;
        }
    }

    /// The workers of a snapshot; `tracked` are the other processes that have series of their own. Returns the sums of former
    /// workers by owner.
    pub(crate) fn update(
        &mut self,
        processes: &[ProcessSnapshot],
        owners: &Owners,
        tracked: &HashSet<ProcId>,
    ) -> HashMap<ProcId, ProcessSnapshot> {
        let owned = processes.iter().filter_map(|worker| {
            let owner = owners.get(worker.id).filter(|owner| tracked.contains(owner))?;
            Some((worker.id, (owner, worker.clone())))
        });
        let last = std::mem::replace(&mut self.last, owned.collect());
        for (id, (owner, worker)) in last {
            if self.last.get(&id).is_none_or(|(now, _)| *now != owner) {
                match self.former.get_mut(&owner) {
                    Some(sum) => merge_accounts(sum, &worker),
                    None => {
                        self.former.insert(owner, worker);
                    }
                }
            }
        }
        self.former.retain(|owner, _| tracked.contains(owner));
        self.former.clone()
    }
}
