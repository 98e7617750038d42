//! Probe hits of processes: cheaper than a snapshot, for one read per second.

use std::collections::HashMap;

use gpucause_abi::record::{LoadRecord, ProcRecord};
use gpucause_abi::snapshot::ProcessSnapshot;
use gpucause_abi::{ProcId, Tgid};

use super::{ReadError, Reader, monotonic_now};
use crate::launch_control::states::Activity;

/// A live process, and the hits of its busiest thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) id: ProcId,
    pub(crate) tgid: Tgid,
    /// The parent process, if observed.
    pub(crate) parent: Option<ProcId>,
    /// The window of the hits.
    pub(crate) window: u32,
    pub(crate) hits: LoadRecord,
    /// Outermost launches of all threads, in whole batches. Wraps.
    pub(crate) launches: u32,
}

impl Reader {
    /// All live processes.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub(crate) fn loads(&self) -> Result<Vec<Load>, ReadError> {
        let mut loads = Vec::new();
        self.procs.each(|id: u32, record: ProcRecord| {
            if record.ended_ns == 0 {
                loads.push(Load {
                    id: ProcId(id),
                    tgid: Tgid(record.tgid),
                    parent: (record.parent_id != 0).then_some(ProcId(record.parent_id)),
                    window: record.load_window,
                    hits: record.load,
                    launches: record.launches,
                });
            }
        })?;
        Ok(loads)
    }

    /// What the threads of each process do.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub(crate) fn activities(&self) -> Result<HashMap<ProcId, Activity>, ReadError> {
        let (mut processes, flushes) = self.processes()?;
        let accounts = self.read_accounts(&mut processes, flushes)?;
        let now = monotonic_now();
        let activity = |own: ProcessSnapshot| (own.id, accounts.activity(&own, now));
        Ok(processes.into_values().map(activity).collect())
    }
}
