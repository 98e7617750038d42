//! Workers that prepared data for a program, for as long as a window may have waits for them: they may have ended since.

use std::collections::HashMap;

use gpucause_abi::snapshot::ProcessSnapshot;
use gpucause_abi::{ProcId, Tgid};

/// PIDs of such workers, each with the program that it works for, and the last tick that saw it.
#[derive(Debug, Default)]
pub(crate) struct Preparers(HashMap<(ProcId, Tgid), u64>);

impl Preparers {
    /// Adds those of a tick, and forgets those that no tick from `oldest` on has seen. A child process that never ended a wait, such as
    /// a monitor, prepares nothing.
    pub(crate) fn update(&mut self, processes: &[ProcessSnapshot], tick: u64, oldest: u64) {
        for worker in processes {
            let prepares = !worker.dispatches && worker.measures.ended_waits.0 > 0;
            if let Some(owner) = worker.parent.filter(|_| prepares) {
                self.0.insert((owner, worker.tgid), tick);
            }
        }
        self.0.retain(|_, seen| *seen >= oldest);
    }

    /// Returns true if the process of this PID prepared data for a program.
    pub(crate) fn has(&self, owner: ProcId, worker: Tgid) -> bool {
        self.0.contains_key(&(owner, worker))
    }
}
