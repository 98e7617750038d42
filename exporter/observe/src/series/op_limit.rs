//! Bounds the series of one process's calls: the operations beyond the limit are aggregated into `other`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::images::{ProcessKey, by_process};
use crate::observation::AggregatedOps;
use gpucause_abi::op::OpId;
use gpucause_abi::snapshot::ProcessSnapshot;

/// Series of one operation at the full level, about: durations by bucket, and off-CPU time by reason.
pub const SERIES_PER_OP: usize = 40;

/// The processes that were ever beyond the limit.
#[derive(Debug, Default)]
pub(crate) struct OpLimit {
    processes: HashMap<ProcessKey, Ops>,
    /// Operations that were aggregated of processes that are gone.
    former: u64,
}

/// The operations of one process.
#[derive(Debug, Default)]
struct Ops {
    tracked: HashSet<OpId>,
    /// Sticky: their past values cannot be subtracted from the sum.
    aggregated: Arc<HashSet<OpId>>,
}

impl OpLimit {
    /// Tracks so many operations of each process individually: those that were, and then those with the most calls. Each account is
    /// behind the process or group that it is part of.
    pub(crate) fn update<'a>(
        &mut self,
        accounts: impl IntoIterator<Item = (&'a ProcessSnapshot, &'a ProcessSnapshot)>,
        limit: usize,
    ) -> AggregatedOps {
        let mut before = std::mem::take(&mut self.processes);
        let mut aggregated = AggregatedOps::new();
        for (process, images) in by_process(accounts) {
            let known = before.remove(&process);
            let most = images.iter().map(|(_, own)| own.calls.len()).sum::<usize>();
            if known.is_none() && most <= limit {
                continue;
            }
            let mut ops = known.unwrap_or_default();
            ops.update(images.iter().map(|&(_, account)| account), limit);
            let latest = images.iter().map(|&(image, _)| image);
            let latest = latest.max_by_key(|image| (image.first_seen, image.id));
            if let Some(latest) = latest.filter(|_| !ops.aggregated.is_empty()) {
                aggregated.insert(latest.id, Arc::clone(&ops.aggregated));
                self.processes.insert(process, ops);
            }
        }
        self.former += before.into_values().map(|gone| gone.aggregated.len() as u64).sum::<u64>();
        aggregated
    }

    /// Operations that were aggregated so far.
    pub(crate) fn aggregated(&self) -> u64 {
        let present = self.processes.values().map(|ops| ops.aggregated.len() as u64);
        self.former + present.sum::<u64>()
    }
}

impl Ops {
    fn update<'a>(&mut self, accounts: impl Iterator<Item = &'a ProcessSnapshot>, limit: usize) {
        let mut counts: HashMap<OpId, u64> = HashMap::new();
        for call in accounts.flat_map(|account| &account.calls) {
            *counts.entry(call.op).or_default() += call.durations.count();
        }
        let is_new = |op: &OpId| !self.tracked.contains(op) && !self.aggregated.contains(op);
        let mut new: Vec<(OpId, u64)> = counts.into_iter().filter(|(op, _)| is_new(op)).collect();
        new.sort_unstable_by_key(|&(op, count)| (std::cmp::Reverse(count), op));
        let free = limit.saturating_sub(self.tracked.len()).min(new.len());
        let beyond = new.split_off(free);
        self.tracked.extend(new.into_iter().map(|(op, _)| op));
        if !beyond.is_empty() {
            Arc::make_mut(&mut self.aggregated).extend(beyond.into_iter().map(|(op, _)| op));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpucause_abi::ProcId;
    use gpucause_abi::hist::{Histogram, slot_of};
    use gpucause_abi::record::COMM_LEN;
    use gpucause_abi::snapshot::{CallSnapshot, Comm};
    use gpucause_abi::{Nanos, Tgid};

    fn process(counts: &[(u16, u64)]) -> ProcessSnapshot {
        let slot = u16::try_from(slot_of(Nanos(10_000))).unwrap();
        let call = |&(op, count): &(u16, u64)| {
            let slots = vec![(slot, count)].into();
            let durations = Histogram { sum: Nanos(count), max: Nanos(10_000), slots };
            CallSnapshot::unstalled(OpId(op), false, durations)
        };
        ProcessSnapshot {
            dispatches: true,
            calls: counts.iter().map(call).collect(),
            ..ProcessSnapshot::new(ProcId(1), Tgid(1), Comm([0; COMM_LEN]))
        }
    }

    fn aggregated(limit: &mut OpLimit, counts: &[(u16, u64)], most: usize) -> Vec<u16> {
        let process = process(counts);
        let ops = limit.update([(&process, &process)], most);
        let mut ops: Vec<u16> = ops.values().flat_map(|ops| ops.iter()).map(|op| op.0).collect();
        ops.sort_unstable();
        ops
    }

    #[test]
    fn the_ops_with_the_most_calls_are_tracked_and_an_aggregated_one_stays_aggregated() {
        let mut limit = OpLimit::default();
        assert_eq!(aggregated(&mut limit, &[(1, 5), (2, 9)], 2), [0; 0]);
        assert_eq!(aggregated(&mut limit, &[(1, 5), (2, 9), (3, 7)], 2), [1]);
        assert_eq!(aggregated(&mut limit, &[(1, 50), (2, 9), (3, 7), (4, 8)], 2), [1, 4]);
        assert_eq!(aggregated(&mut limit, &[(1, 50), (2, 9), (3, 7), (4, 8)], 9), [1, 4]);
        assert_eq!(limit.aggregated(), 2);
        limit.update([], 2);
        assert_eq!(limit.aggregated(), 2);
    }
}
