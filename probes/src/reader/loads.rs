//! Probe hits of processes: cheaper than a snapshot, for one read per second.

use gpucause_abi::record::{LoadRecord, ProcRecord, SPENT_RAN_UNIT};
use gpucause_abi::{Nanos, ProcId, Tgid};

use super::{ReadError, Reader, decode};

/// A live process, the hits of its busiest thread, and sums of all threads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) id: ProcId,
    pub(crate) tgid: Tgid,
    /// The nearest process above it that makes calls, if observed.
    pub(crate) parent: Option<ProcId>,
    /// The window of the hits.
    pub(crate) window: u32,
    pub(crate) hits: LoadRecord,
    /// Time that hits of all threads took of them, and the sum of that of each thread in nanoseconds times its nanoseconds on a CPU while
    /// calls were observed.
    pub(crate) all_spent: Nanos,
    pub(crate) all_spent_ran: f64,
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
                    all_spent: Nanos(record.all_spent_ns),
                    all_spent_ran: record.all_spent_ran as f64 * SPENT_RAN_UNIT as f64,
                    launches: record.launches,
                });
            }
        })?;
        Ok(loads)
    }

    /// Outermost launches of all threads of a process, in whole batches. Wraps.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub(crate) fn launches_of(&self, id: ProcId) -> Result<Option<u32>, ReadError> {
        let record = self.procs.lookup(&id.0.to_ne_bytes())?;
        let record = record.map(|bytes| decode::<ProcRecord>(self.procs.name, &bytes));
        Ok(record.transpose()?.map(|record| record.launches))
    }
}
