//! Bounds the number of processes that are tracked individually. The accounts of all others are added up in one overflow
//! process, `other`, so that the host's totals never decrease.

use std::collections::HashSet;

use gpucause_abi::snapshot::{Comm, ProcessSnapshot, Wait};
use gpucause_abi::{ProcId, Tgid};
use gpucause_engine::OTHER_PROCESS;
use gpucause_page::error_name::{LAST_CODE, UNKNOWN_CODE};

use crate::series::merge::merge_accounts;
use crate::workers::is_worker;

/// Whom aggregated processes waited for.
const OTHER: Comm = Comm(*b"other\0\0\0\0\0\0\0\0\0\0\0");

/// The processes that are tracked individually, and the sum of the others.
#[derive(Debug, Default)]
pub struct CardinalityLimit {
    /// Live processes that are tracked individually at most.
    limit: usize,
    tracked: HashSet<ProcId>,
    /// Processes aggregated into `other`. Sticky: their past values cannot be subtracted from the sum.
    aggregated: HashSet<ProcId>,
    /// Processes that were ever in `aggregated`.
    aggregated_total: u64,
    /// The sum of aggregated processes that were removed.
    removed: Option<ProcessSnapshot>,
}

impl CardinalityLimit {
    /// Tracks so many live processes from now on; those that are tracked stay so.
    pub const fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Live processes that exceeded the limit so far.
    #[must_use]
    pub const fn aggregated_total(&self) -> u64 {
        self.aggregated_total
    }

    /// Returns true if a process is part of `other`.
    #[must_use]
    pub fn is_aggregated(&self, id: ProcId) -> bool {
        self.aggregated.contains(&id)
    }

    /// Tracks the processes with the lowest ids up to the limit, and forgets those that are not in `processes`. Ended processes do
    /// not count: their number is limited by their retention. Nor do workers: they have no series.
    pub fn assign(&mut self, processes: &[ProcessSnapshot]) {
        let known: HashSet<ProcId> = processes.iter().map(|process| process.id).collect();
        self.tracked.retain(|id| known.contains(id));
        self.aggregated.retain(|id| known.contains(id));
        let candidates = processes.iter().filter(|process| !is_worker(process));
        let (live, ended): (Vec<_>, Vec<_>) =
            candidates.partition(|process| process.ended.is_none());
        let is_new = |id: &ProcId| !self.aggregated.contains(id) && !self.tracked.contains(id);
        let mut new: Vec<ProcId> = live.iter().map(|process| process.id).filter(is_new).collect();
        let new_ended: Vec<ProcId> =
            ended.iter().map(|process| process.id).filter(is_new).collect();
        new.sort_unstable();
        let used = live.iter().filter(|process| self.tracked.contains(&process.id)).count();
        let free = self.limit.saturating_sub(used).min(new.len());
        let beyond = new.split_off(free);
        if !beyond.is_empty() && self.aggregated_total == 0 {
            tracing::warn!(
                limit = self.limit,
                "limits.live_processes is reached: more processes are exported together, as pid=\"other\", and are not evaluated for causes"
            );
        }
        self.aggregated_total += beyond.len() as u64;
        self.tracked.extend(new.into_iter().chain(new_ended));
        self.aggregated.extend(beyond);
    }

    /// Makes a worker part of `other`, as the process that it works for is.
    pub(crate) fn aggregate_worker(&mut self, id: ProcId) {
        self.aggregated.insert(id);
    }

    /// Leaves the aggregated processes out.
    pub fn retain_tracked(&self, processes: &mut Vec<ProcessSnapshot>) {
        processes.retain(|process| !self.aggregated.contains(&process.id));
    }

    /// Leaves the aggregated processes out; returns the sum of all that ever were.
    #[must_use]
    pub fn take_overflow(&self, processes: &mut Vec<ProcessSnapshot>) -> Option<ProcessSnapshot> {
        let mut sum = self.removed.clone();
        for process in processes.extract_if(.., |process| self.aggregated.contains(&process.id)) {
            add(&mut sum, process);
        }
        sum
    }

    /// Adds a process that is removed to the overflow.
    pub fn add_removed(&mut self, process: ProcessSnapshot) {
        self.aggregated.remove(&process.id);
        add(&mut self.removed, process);
    }
}

/// Values that processes choose, such as kernel handles and task names, are collapsed: the sum has a bounded size.
fn add(sum: &mut Option<ProcessSnapshot>, mut process: ProcessSnapshot) {
    process.measures.other_launches = process.kernel_launches();
    process.kernels = Vec::new();
    for wait in &mut process.waits {
        *wait = Wait::host(wait.reason, OTHER, wait.total);
    }
    for (_, code, _) in &mut process.errors {
        *code = if *code > LAST_CODE { UNKNOWN_CODE } else { *code };
    }
    let new = || ProcessSnapshot::new(OTHER_PROCESS, Tgid(0), Comm([0; size_of::<Comm>()]));
    let sum = sum.get_or_insert_with(new);
    merge_accounts(sum, &process);
    if process.ended.is_none() {
        // The oldest call in flight is exported.
        sum.dispatchers.append(&mut process.dispatchers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpucause_abi::Nanos;
    use gpucause_abi::hist::{Histogram, slot_of};
    use gpucause_abi::op::OpId;
    use gpucause_abi::record::COMM_LEN;
    use gpucause_abi::snapshot::CallSnapshot;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn process(id: u32, calls: u64, lives: bool) -> ProcessSnapshot {
        let slot = u16::try_from(slot_of(Nanos(10_000))).unwrap();
        let slots = vec![(slot, calls)].into();
        let durations = Histogram { sum: Nanos(calls * 10_000), max: Nanos(10_000), slots };
        ProcessSnapshot {
            dispatches: true,
            ended: (!lives).then_some(Nanos(1)),
            calls: vec![CallSnapshot::unstalled(OpId(0), false, durations)],
            kernels: vec![(u64::from(id), calls)],
            errors: vec![(OpId(0), 1_000_000 + id, calls)],
            ..ProcessSnapshot::new(ProcId(id), Tgid(id), Comm([0; COMM_LEN]))
        }
    }

    fn limit(limit: usize) -> CardinalityLimit {
        let mut cardinality = CardinalityLimit::default();
        cardinality.set_limit(limit);
        cardinality
    }

    fn ids(processes: &[ProcessSnapshot]) -> Vec<u32> {
        processes.iter().map(|process| process.id.0).collect()
    }

    #[test]
    fn the_first_processes_are_tracked_and_an_aggregated_one_stays_aggregated() {
        let mut cardinality = limit(2);
        let mut processes: Vec<_> = (1..=4).map(|id| process(id, 1, true)).collect();
        cardinality.assign(&processes);
        cardinality.retain_tracked(&mut processes);
        assert_eq!((ids(&processes), cardinality.aggregated_total()), (vec![1, 2], 2));
        let mut processes = vec![process(2, 1, true), process(3, 1, true), process(5, 1, true)];
        cardinality.assign(&processes);
        cardinality.retain_tracked(&mut processes);
        assert_eq!((ids(&processes), cardinality.aggregated_total()), (vec![2, 5], 2));
    }

    #[test]
    fn values_that_processes_choose_do_not_grow_the_sum() {
        let mut cardinality = limit(0);
        (1..=50).for_each(|id| cardinality.add_removed(process(id, 2, false)));
        let sum = cardinality.take_overflow(&mut Vec::new()).unwrap();
        assert_eq!((sum.kernels.len(), sum.kernel_launches()), (0, 100));
        assert_eq!(sum.errors, [(OpId(0), UNKNOWN_CODE, 100)]);
        assert_eq!(sum.calls.len(), 1);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Begin,
        Call(usize, u64),
        End(usize),
        Page,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => Just(Step::Begin),
            4 => (0..8usize, 1..100u64).prop_map(|(index, calls)| Step::Call(index, calls)),
            2 => (0..8usize).prop_map(Step::End),
            4 => Just(Step::Page),
        ]
    }

    proptest! {
        /// Processes are handled as in the daemon: aggregated ones are removed when they have ended, tracked ones are kept.
        #[test]
        fn no_call_is_lost_and_no_series_steps_back_however_many_processes_come(
            steps in prop::collection::vec(step(), 1..60), limit in 0..4usize,
        ) {
            let mut cardinality = self::limit(limit);
            let mut processes: BTreeMap<u32, (u64, bool)> = BTreeMap::new();
            let (mut made, mut others, mut last_id) = (0u64, 0u64, 0u32);
            for step in steps {
                match step {
                    Step::Begin => {
                        last_id += 1;
                        processes.insert(last_id, (0, true));
                    }
                    Step::Call(index, calls) => {
                        if let Some((own, true)) = processes.values_mut().nth(index) {
                            *own += calls;
                            made += calls;
                        }
                    }
                    Step::End(index) => {
                        if let Some((_, lives)) = processes.values_mut().nth(index) {
                            *lives = false;
                        }
                    }
                    Step::Page => {
                        let snapshot = |(&id, &(calls, lives)): (&u32, &(u64, bool))| process(id, calls, lives);
                        let mut page: Vec<_> = processes.iter().map(snapshot).collect();
                        let gone = page.extract_if(.., |process| {
                            process.ended.is_some() && cardinality.is_aggregated(process.id)
                        });
                        for process in gone.collect::<Vec<_>>() {
                            processes.remove(&process.id.0);
                            cardinality.add_removed(process);
                        }
                        cardinality.assign(&page);
                        let sum = cardinality.take_overflow(&mut page);
                        let live = page.iter().filter(|process| process.ended.is_none()).count();
                        prop_assert!(live <= limit);
                        let other = sum.map_or(0, |sum| sum.calls[0].durations.count());
                        prop_assert!(other >= others);
                        others = other;
                        let tracked: u64 = page.iter().map(|process| process.calls[0].durations.count()).sum();
                        prop_assert_eq!(tracked + other, made);
                    }
                }
            }
        }
    }
}
