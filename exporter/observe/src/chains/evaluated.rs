//! The processes of the last evaluation.

use std::collections::HashMap;

use gpucause_abi::ProcId;
use gpucause_abi::snapshot::{Comm, ProcessSnapshot};

use crate::workers::Owners;

/// A process of the last evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Evaluated {
    pub(super) pid: u32,
    /// Its name, unless it has ended.
    pub(super) comm: Option<Comm>,
    /// The PID of the process that it works for.
    pub(super) works_for: Option<u32>,
}

impl Evaluated {
    pub(super) fn of(processes: &[ProcessSnapshot]) -> Vec<Self> {
        let owners = Owners::of(processes);
        let pids: HashMap<ProcId, u32> = processes.iter().map(|own| (own.id, own.tgid.0)).collect();
        let evaluated = |process: &ProcessSnapshot| Self {
            pid: process.tgid.0,
            comm: process.ended.is_none().then_some(process.comm),
            works_for: owners.get(process.id).and_then(|owner| pids.get(&owner)).copied(),
        };
        processes.iter().map(evaluated).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpucause_abi::Tgid;
    use gpucause_abi::record::COMM_LEN;

    #[test]
    fn a_worker_works_for_the_process_that_makes_calls() {
        let process =
            |id: u32| ProcessSnapshot::new(ProcId(id), Tgid(10 * id), Comm([0; COMM_LEN]));
        let train = ProcessSnapshot { dispatches: true, ..process(1) };
        let worker = ProcessSnapshot { parent: Some(train.id), ..process(2) };
        let rank = ProcessSnapshot { dispatches: true, parent: Some(train.id), ..process(3) };
        let evaluated = Evaluated::of(&[train, worker, rank]);
        let works_for: Vec<_> = evaluated.iter().map(|own| own.works_for).collect();
        assert_eq!(works_for, [None, Some(10), None]);
    }
}
