//! Processes that are not told apart: those that find no place among the told ones while they live, and those that had to go
//! early. Their accounts are added up, so that no counter of the whole steps back when a process ends up here.

use std::collections::HashSet;

use gpucause_abi::snapshot::{Comm, ProcessSnapshot, Wait};
use gpucause_abi::{ProcId, Tgid};
use gpucause_engine::FOLDED;

use crate::error_name::{LAST_CODE, RUBBISH};
use crate::merge::absorb;

/// Whom processes that are not told apart waited for.
const OTHER: Comm = Comm(*b"other\0\0\0\0\0\0\0\0\0\0\0");

/// Who is told apart, and the sum of the others.
#[derive(Debug, Default)]
pub struct Folding {
    /// How many live processes are told apart.
    limit: usize,
    apart: HashSet<ProcId>,
    /// Those without a place. One that has none gets none, since what it did so far could not be taken out of the sum again.
    untold: HashSet<ProcId>,
    /// Those without a place so far.
    count: u64,
    gone: Option<ProcessSnapshot>,
}

impl Folding {
    /// Tells so many live processes apart from now on; those that are stay so.
    pub const fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Processes that lived and found no place, so far.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Whether a process has found no place.
    #[must_use]
    pub fn is_untold(&self, id: ProcId) -> bool {
        self.untold.contains(&id)
    }

    /// Gives the places to those that come first, and forgets who is not among `processes` any more. How many ended ones are told
    /// apart is not decided here.
    pub fn assign(&mut self, processes: &[ProcessSnapshot]) {
        let known: HashSet<ProcId> = processes.iter().map(|process| process.id).collect();
        self.apart.retain(|id| known.contains(id));
        self.untold.retain(|id| known.contains(id));
        let (live, ended): (Vec<_>, Vec<_>) =
            processes.iter().partition(|process| process.ended.is_none());
        let is_new = |id: &ProcId| !self.untold.contains(id) && !self.apart.contains(id);
        let mut new: Vec<ProcId> = live.iter().map(|process| process.id).filter(is_new).collect();
        let new_ended: Vec<ProcId> =
            ended.iter().map(|process| process.id).filter(is_new).collect();
        new.sort_unstable();
        let taken = live.iter().filter(|process| self.apart.contains(&process.id)).count();
        let placed = self.limit.saturating_sub(taken).min(new.len());
        let beyond = new.split_off(placed);
        self.count += beyond.len() as u64;
        self.apart.extend(new.into_iter().chain(new_ended));
        self.untold.extend(beyond);
    }

    /// Leaves those out that are not told apart.
    pub fn leave_untold(&self, processes: &mut Vec<ProcessSnapshot>) {
        processes.retain(|process| !self.untold.contains(&process.id));
    }

    /// The same, and returns the sum of them and of those that are gone.
    #[must_use]
    pub fn split(&self, processes: &mut Vec<ProcessSnapshot>) -> Option<ProcessSnapshot> {
        let mut sum = self.gone.clone();
        for process in processes.extract_if(.., |process| self.untold.contains(&process.id)) {
            add(&mut sum, process);
        }
        sum
    }

    /// Adds the accounts of a process that is gone.
    pub fn keep(&mut self, process: ProcessSnapshot) {
        self.untold.remove(&process.id);
        add(&mut self.gone, process);
    }
}

/// What processes choose themselves, such as addresses of kernels and names, is not told apart: the sum has a bound.
fn add(sum: &mut Option<ProcessSnapshot>, mut process: ProcessSnapshot) {
    process.measures.other_launches = process.kernel_launches();
    process.kernels = Vec::new();
    for wait in &mut process.waits {
        *wait = Wait::host(wait.reason, OTHER, wait.total);
    }
    for (_, code, _) in &mut process.errors {
        *code = if *code > LAST_CODE { RUBBISH } else { *code };
    }
    let new = || ProcessSnapshot::new(FOLDED, Tgid(0), Comm([0; size_of::<Comm>()]));
    let sum = sum.get_or_insert_with(new);
    absorb(sum, &process);
    if process.ended.is_none() {
        // The oldest call in flight is told of.
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

    fn folding(limit: usize) -> Folding {
        let mut folding = Folding::default();
        folding.set_limit(limit);
        folding
    }

    fn ids(processes: &[ProcessSnapshot]) -> Vec<u32> {
        processes.iter().map(|process| process.id.0).collect()
    }

    #[test]
    fn places_go_to_those_that_come_first_and_one_without_gets_none_later() {
        let mut folding = folding(2);
        let mut processes: Vec<_> = (1..=4).map(|id| process(id, 1, true)).collect();
        folding.assign(&processes);
        folding.leave_untold(&mut processes);
        assert_eq!((ids(&processes), folding.count()), (vec![1, 2], 2));
        let mut processes = vec![process(2, 1, true), process(3, 1, true), process(5, 1, true)];
        folding.assign(&processes);
        folding.leave_untold(&mut processes);
        assert_eq!((ids(&processes), folding.count()), (vec![2, 5], 2));
    }

    #[test]
    fn what_processes_choose_themselves_takes_no_room_in_the_sum() {
        let mut folding = folding(0);
        (1..=50).for_each(|id| folding.keep(process(id, 2, false)));
        let sum = folding.split(&mut Vec::new()).unwrap();
        assert_eq!((sum.kernels.len(), sum.kernel_launches()), (0, 100));
        assert_eq!(sum.errors, [(OpId(0), RUBBISH, 100)]);
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
        /// As the daemon does it: those without a place go as soon as they have ended, those with one are kept.
        #[test]
        fn no_call_is_lost_and_no_series_steps_back_however_many_processes_come(
            steps in prop::collection::vec(step(), 1..60), limit in 0..4usize,
        ) {
            let mut folding = folding(limit);
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
                            process.ended.is_some() && folding.is_untold(process.id)
                        });
                        for process in gone.collect::<Vec<_>>() {
                            processes.remove(&process.id.0);
                            folding.keep(process);
                        }
                        folding.assign(&page);
                        let sum = folding.split(&mut page);
                        let live = page.iter().filter(|process| process.ended.is_none()).count();
                        prop_assert!(live <= limit);
                        let other = sum.map_or(0, |sum| sum.calls[0].durations.count());
                        prop_assert!(other >= others);
                        others = other;
                        let apart: u64 = page.iter().map(|process| process.calls[0].durations.count()).sum();
                        prop_assert_eq!(apart + other, made);
                    }
                }
            }
        }
    }
}
