//! Workers, and the processes that they work for.

use std::collections::HashMap;

use gpucause_abi::ProcId;
use gpucause_abi::snapshot::ProcessSnapshot;

/// Ancestors that are searched for one that makes calls.
const MAX_DEPTH: usize = 16;

/// Returns true if a process is a descendant of one that makes calls, and has made none.
#[must_use]
pub const fn is_worker(process: &ProcessSnapshot) -> bool {
    process.parent.is_some() && !process.dispatches
}

/// The processes that workers work for.
#[derive(Debug, Clone, Default)]
pub struct Owners(HashMap<ProcId, ProcId>);

impl Owners {
    /// Finds the owners of the workers among these processes.
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
