//! The life cycle of accounts between the kernel maps and the page: ended processes are kept for their retention, those beyond
//! the limits are aggregated, and no counter decreases.

use std::collections::{HashMap, HashSet};

use gpucause_abi::record::FAULTS;
use gpucause_abi::snapshot::{ProcessSnapshot, TimeAccount};
use gpucause_abi::{Nanos, ProcId};

use crate::series::cardinality_limit::CardinalityLimit;
use crate::series::groups::Groups;
use crate::series::retention::{Process, Retention};
use crate::series::workers::Workers;
use crate::workers::{Owners, is_worker};

/// At most so long after its end the account of a worker, or of a member of a group, is kept for the evaluation of its last seconds. Where
/// none comes, as in `top`, it goes then.
const AWAITED_FOR: Nanos = Nanos(10_000_000_000);

/// State that is kept from one snapshot of the kernel maps to the next.
#[derive(Debug, Default)]
pub(crate) struct LifeCycle {
    pub(crate) retention: Retention,
    pub(crate) cardinality: CardinalityLimit,
    workers: Workers,
    pub(crate) groups: Groups,
    /// Exported processes, and whether that was after their end, so that their final values were exported.
    exported: HashMap<ProcId, bool>,
    /// Processes whose chains were evaluated after their end.
    evaluated: HashSet<ProcId>,
    /// Time accounts and page faults of the last snapshot: the next must not be below them.
    last_times: HashMap<ProcId, TimeAccount>,
    last_faults: HashMap<ProcId, [u64; FAULTS]>,
    /// Processes that were never exported because a younger one has their PID and name.
    hidden: u64,
}

/// Processes whose accounts are to be deleted from the kernel maps.
#[derive(Debug, Default)]
pub(crate) struct Due {
    pub(crate) all: HashSet<ProcId>,
    /// Processes that are removed before their retention is over without having been exported.
    unexported: HashSet<ProcId>,
    /// Processes whose PID and name a younger process has.
    hidden: HashSet<ProcId>,
}

impl LifeCycle {
    /// Processes that were aggregated into `other` so far.
    pub(crate) fn aggregated(&self) -> u64 {
        self.retention.removed_early() + self.cardinality.aggregated_total() + self.hidden
    }

    /// Returns true if any of these processes, each with the time of its end, is to be removed.
    pub(crate) fn has_excess(&self, now: Nanos, ended: &[(ProcId, Nanos)]) -> bool {
        // The next sample removes workers, or they are kept for an evaluation.
        let ended = ended.iter().filter(|(id, _)| !self.workers.knows(*id));
        let ended: Vec<_> = ended.copied().collect();
        ended.iter().any(|&(id, _)| self.cardinality.is_aggregated(id))
            || self.retention.has_excess(now, &ended)
    }

    /// Raises a snapshot's values to those of the last one, and chooses the processes to remove.
    pub(crate) fn due(&mut self, now: Nanos, processes: &mut [ProcessSnapshot]) -> Due {
        raise_times(&mut self.last_times, processes);
        raise_faults(&mut self.last_faults, processes);
        let ends = ends(processes);
        // An aggregated process has nothing more to export once it has ended.
        let is_aggregated = |id| self.cardinality.is_aggregated(id);
        let has_ended = |id| is_aggregated(id) && ends.get(&id).is_some_and(Option::is_some);
        // In a group no process hides another.
        let can_hide = |id| !is_aggregated(id) && !self.groups.knows(id);
        let hidden = hidden(processes.iter().filter(|process| can_hide(process.id)));
        // The series of its group go on without it. The last of a group is kept as one that is in no group.
        let is_summed = |id| self.groups.has_live_peer(id);
        self.evaluated.retain(|id| ends.contains_key(id));
        let is_awaited = |process: &ProcessSnapshot| {
            let awaits = |ended: Nanos| now.less(ended) < AWAITED_FOR;
            process.ended.is_some_and(awaits) && !self.evaluated.contains(&process.id)
        };
        let is_due = |process: &&ProcessSnapshot| {
            is_passing(process)
                || has_ended(process.id)
                || (self.workers.has_ended(process.id) && !is_awaited(process))
                || (self.groups.has_ended(process.id)
                    && is_summed(process.id)
                    && !is_awaited(process))
                || hidden.contains(&process.id)
        };
        let mut all: HashSet<ProcId> =
            processes.iter().filter(is_due).map(|process| process.id).collect();
        let end = |id| ends.get(&id).copied().flatten();
        // A process that was exported before its end has final values to export: it is not removed early.
        let is_unfinished = |id| self.exported.get(&id).is_some_and(|is_final| !is_final);
        let unfinished = processes.iter().filter(|process| is_unfinished(process.id));
        let unfinished: HashSet<Process> = unfinished.map(process_of).collect();
        let is_candidate = |process: &&ProcessSnapshot| {
            !all.contains(&process.id)
                && !is_aggregated(process.id)
                && !self.workers.knows(process.id)
                && !is_summed(process.id)
                && (self.retention.is_over(now, end(process.id))
                    || !unfinished.contains(&process_of(process)))
        };
        let candidates = processes.iter().filter(is_candidate);
        let candidates: Vec<_> =
            candidates.map(|own| (process_of(own), own.id, end(own.id))).collect();
        let collected = self.retention.garbage_collect(now, candidates);
        all.extend(&collected);
        let is_early =
            |id: &ProcId| !self.retention.is_over(now, end(*id)) && !self.exported.contains_key(id);
        let unexported = collected.iter().chain(&hidden).copied().filter(is_early).collect();
        Due { all, unexported, hidden }
    }

    /// Removes the processes whose accounts were deleted. Returns those that are part of `other` from now on: of the ones that
    /// `admits` selects, those that were never exported, and those that were aggregated while they lived.
    pub(crate) fn remove(
        &mut self,
        due: &Due,
        processes: &mut Vec<ProcessSnapshot>,
        admits: impl Fn(&ProcessSnapshot) -> bool,
    ) -> HashSet<ProcId> {
        let mut aggregated = HashSet::new();
        for process in processes.extract_if(.., |process| due.all.contains(&process.id)) {
            self.exported.remove(&process.id);
            if self.groups.knows(process.id) {
                let is_lost =
                    due.unexported.contains(&process.id) && !self.groups.has_live_peer(process.id);
                if !is_lost {
                    self.groups.remove(process);
                    continue;
                }
                self.groups.forget(process.id);
            }
            if self.workers.knows(process.id) {
                self.workers.remove(process);
                continue;
            }
            let counts =
                due.unexported.contains(&process.id) || self.cardinality.is_aggregated(process.id);
            if counts && admits(&process) {
                self.hidden += u64::from(due.hidden.contains(&process.id));
                aggregated.insert(process.id);
                self.cardinality.add_removed(process);
            }
        }
        aggregated
    }

    /// Leaves the processes that are tracked individually and their workers; returns the sum of all others, if there are any, and
    /// the sums of former workers by the process that they worked for.
    pub(crate) fn limit(
        &mut self,
        processes: &mut Vec<ProcessSnapshot>,
    ) -> (Option<ProcessSnapshot>, HashMap<ProcId, ProcessSnapshot>) {
        self.cardinality.assign(processes);
        let owners = Owners::of(processes);
        let is_aggregated = |owner| self.cardinality.is_aggregated(owner);
        let aggregated = processes.iter().map(|process| process.id);
        let aggregated: Vec<ProcId> =
            aggregated.filter(|&id| owners.get(id).is_some_and(is_aggregated)).collect();
        aggregated.into_iter().for_each(|id| self.cardinality.aggregate_worker(id));
        let overflow = self.cardinality.take_overflow(processes);
        let tracked = processes.iter().filter(|process| !is_worker(process));
        let tracked = tracked.map(|process| process.id).collect();
        let former = self.workers.update(processes, &owners, &tracked);
        (overflow, former)
    }

    /// The chains of these ended processes are evaluated.
    pub(crate) fn set_evaluated(&mut self, ended: impl IntoIterator<Item = ProcId>) {
        self.evaluated.extend(ended);
    }

    /// These are exported.
    pub(crate) fn set_exported(&mut self, processes: &[ProcessSnapshot]) {
        self.exported = processes.iter().map(|p| (p.id, p.ended.is_some())).collect();
    }
}

/// A live thread's current time slice is completed by each snapshot, and one that is read while it changes may be reported short by
/// the next. Counters must not decrease, so the larger value is kept.
fn raise_times(last: &mut HashMap<ProcId, TimeAccount>, processes: &mut [ProcessSnapshot]) {
    let mut current = HashMap::with_capacity(processes.len());
    for process in processes.iter_mut().filter(|process| process.dispatches) {
        if let Some(before) = last.get(&process.id) {
            let cells = process.dispatcher_time.0.iter_mut().flatten();
            for (time, before) in cells.zip(before.0.iter().flatten()) {
                *time = (*time).max(*before);
            }
        }
        current.insert(process.id, process.dispatcher_time);
    }
    *last = current;
}

/// A thread that ends during the reading is added to its process's sum late, and a process that ends then has no sum.
fn raise_faults(last: &mut HashMap<ProcId, [u64; FAULTS]>, processes: &mut [ProcessSnapshot]) {
    let mut current = HashMap::with_capacity(processes.len());
    for process in processes {
        let before = last.get(&process.id).copied();
        let faults = match (process.host.page_faults, before) {
            (Some(mut faults), Some(before)) => {
                for (count, before) in faults.iter_mut().zip(before) {
                    *count = (*count).max(before);
                }
                faults
            }
            (Some(faults), None) | (None, Some(faults)) => faults,
            (None, None) => continue,
        };
        process.host.page_faults = Some(faults);
        current.insert(process.id, faults);
    }
    *last = current;
}

/// A forked child that executed another program without a call: that image was never part of the job.
fn is_passing(process: &ProcessSnapshot) -> bool {
    process.execed && !process.dispatches && process.parent.is_some()
}

/// Ended processes whose PID and name a younger process has: only the younger one is exported.
fn hidden<'a>(processes: impl Iterator<Item = &'a ProcessSnapshot>) -> HashSet<ProcId> {
    let mut by_label: HashMap<_, Vec<&ProcessSnapshot>> = HashMap::new();
    for process in processes {
        by_label.entry((process.tgid, process.comm.to_text())).or_default().push(process);
    }
    let older = by_label.into_values().flat_map(|all| {
        let youngest = all.iter().map(|process| process.started_boottime).max();
        all.into_iter().filter(move |process| {
            Some(process.started_boottime) < youngest && process.ended.is_some()
        })
    });
    older.map(|process| process.id).collect()
}

/// When each process ended, for its retention. The images of a process before an exec are merged into the last one, and so are
/// kept as long.
fn ends(processes: &[ProcessSnapshot]) -> HashMap<ProcId, Option<Nanos>> {
    let mut last: HashMap<_, (Nanos, Option<Nanos>)> = HashMap::new();
    for process in processes {
        let entry = last.entry(process_of(process)).or_insert((process.first_seen, process.ended));
        if process.first_seen >= entry.0 {
            *entry = (process.first_seen, process.ended);
        }
    }
    let end = |process| last.get(&process_of(process)).and_then(|entry| entry.1);
    processes.iter().map(|process| (process.id, end(process))).collect()
}

const fn process_of(process: &ProcessSnapshot) -> Process {
    (process.tgid, process.started_boottime)
}

#[cfg(test)]
mod tests;
