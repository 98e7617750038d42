//! Deltas of a process since an earlier snapshot.

use std::collections::HashMap;

use gpucause_abi::snapshot::{ProcessSnapshot, Snapshot};
use gpucause_abi::{Nanos, ProcId};

use super::Delta;
use crate::baseline::Baseline;

/// A process can be missing in a snapshot although it began this long before: taking one is not instantaneous.
const SNAPSHOT_DURATION: Nanos = Nanos(500_000_000);

impl Baseline {
    /// Returns true if a delta of the process can be computed.
    pub(crate) fn knows(&self, process: &ProcessSnapshot) -> bool {
        let is_new = process.first_seen.0.saturating_add(SNAPSHOT_DURATION.0) >= self.at.0;
        is_new || self.processes.contains_key(&process.id)
    }

    /// How long the CPU limit of its cgroup has throttled a process since.
    pub(crate) fn throttled(&self, now: &HashMap<ProcId, Nanos>, process: ProcId) -> Nanos {
        let both = now.get(&process).zip(self.throttled_cgroups.get(&process));
        both.map_or(Nanos(0), |(now, before)| now.less(*before))
    }

    /// Returns the delta of a process since this snapshot; empty for a process that is older than the snapshot and yet not in it.
    pub(crate) fn delta<'a>(&'a self, now: &Snapshot, process: &'a ProcessSnapshot) -> Delta<'a> {
        let earlier = self.processes.get(&process.id);
        if !self.knows(process) {
            return Delta::default();
        }
        let from = if earlier.is_some() { self.at } else { process.first_seen };
        let wall = process.ended.unwrap_or(now.taken_at).min(now.taken_at).less(from);
        Delta::between(earlier, process, wall)
    }
}
