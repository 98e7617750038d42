//! Worker processes, such as those of data loaders: descendants without calls of their own. They have no series: their accounts are part
//! of the process that they work for, also after they ended, so that its counters never decrease.

use std::collections::{HashMap, HashSet};

use gpucause_abi::ProcId;
use gpucause_abi::snapshot::ProcessSnapshot;

use super::groups::collapse;
use super::merge::merge_accounts;
use crate::workers::Owners;

/// State that is kept from one snapshot to the next.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    /// The workers of the last snapshot, with their owners.
    last: HashMap<ProcId, (ProcId, ProcessSnapshot)>,
    /// The sums of those that ended, or make calls now, by owner.
    former: HashMap<ProcId, ProcessSnapshot>,
}

impl Workers {
    /// Returns true if a worker was part of its owner's series at the last snapshot.
    pub(crate) fn knows(&self, id: ProcId) -> bool {
        self.last.contains_key(&id)
    }

    /// Returns true if a worker had ended at the last snapshot: nothing more will be counted of it.
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
        for (id, (owner, mut worker)) in last {
            if self.last.get(&id).is_none_or(|(now, _)| *now != owner) {
                collapse(&mut worker);
                let none = || ProcessSnapshot {
                    first_seen: worker.first_seen,
                    ..ProcessSnapshot::new(worker.id, worker.tgid, worker.comm)
                };
                merge_accounts(self.former.entry(owner).or_insert_with(none), &worker);
            }
        }
        self.former.retain(|owner, _| tracked.contains(owner));
        self.former.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpucause_abi::record::COMM_LEN;
    use gpucause_abi::snapshot::{Comm, Wait};
    use gpucause_abi::state::Reason;
    use gpucause_abi::{Nanos, Tgid, Tid};

    fn process(id: u32) -> ProcessSnapshot {
        ProcessSnapshot::new(ProcId(id), Tgid(id), Comm([b'p'; COMM_LEN]))
    }

    #[test]
    fn the_sum_of_ended_workers_stays_as_small_as_one_of_them() {
        let owner = ProcessSnapshot { dispatches: true, ..process(1) };
        let worker = |id: u32| {
            let wait = |tid| Wait {
                tid: Some(Tid(tid)),
                ..Wait::host(Reason::Futex, owner.comm, Nanos(1))
            };
            let waits = vec![wait(id), wait(1_000_000 + id)];
            ProcessSnapshot { parent: Some(owner.id), waits, ..process(id) }
        };
        let mut workers = Workers::default();
        let mut sums = HashMap::new();
        for id in 2..102 {
            let processes = [owner.clone(), worker(id)];
            let owners = Owners::of(&processes);
            sums = workers.update(&processes, &owners, &[owner.id].into());
        }
        let waits = &sums[&owner.id].waits;
        assert_eq!(waits.len(), 1);
        assert_eq!(waits[0].total, Nanos(2 * 99), "all but the one that lives");
    }
}
