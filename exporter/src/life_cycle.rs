//! What becomes of accounts between the kernel maps and the page: processes that ended are kept for a time, those beyond the
//! limits are added up, and no counter steps back.

use std::collections::{HashMap, HashSet};

use gpucause_abi::record::FAULTS;
use gpucause_abi::snapshot::{ProcessSnapshot, TimeAccount};
use gpucause_abi::{Nanos, ProcId};

use crate::folding::Folding;
use crate::retention::Retention;

/// What is remembered from one copy of the kernel maps to the next.
#[derive(Debug, Default)]
pub(crate) struct LifeCycle {
    pub(crate) retention: Retention,
    pub(crate) folding: Folding,
    /// Processes that were on a page, and whether that was after their end, so that all of them was exported.
    told: HashMap<ProcId, bool>,
    /// Time accounts and page faults as last exported, which the next must not fall behind.
    told_times: HashMap<ProcId, TimeAccount>,
    told_faults: HashMap<ProcId, [u64; FAULTS]>,
    /// Processes that no page had because a younger one has their PID and name.
    hidden: u64,
}

/// Processes whose accounts are to be deleted from the kernel maps.
#[derive(Debug, Default)]
pub(crate) struct Due {
    /// All of them.
    pub(crate) gone: HashSet<ProcId>,
    /// Those that go before their time is over without having been on a page.
    unseen: HashSet<ProcId>,
    /// Those that a younger process hides.
    hidden: HashSet<ProcId>,
}

impl LifeCycle {
    /// Processes that were aggregated into `other` so far.
    pub(crate) fn folded(&self) -> u64 {
        self.retention.folded() + self.folding.count() + self.hidden
    }

    /// Whether any of the processes that ended then is to be removed.
    pub(crate) fn has_excess(&self, now: Nanos, ended: &[(ProcId, Nanos)]) -> bool {
        ended.iter().any(|&(id, _)| self.folding.is_untold(id))
            || self.retention.has_excess(now, ended)
    }

    /// Brings a copy of the accounts up to what was exported before, and chooses the processes that go.
    pub(crate) fn due(&mut self, now: Nanos, processes: &mut [ProcessSnapshot]) -> Due {
        keep_up(&mut self.told_times, processes);
        keep_faults_up(&mut self.told_faults, processes);
        let ends = ends(processes);
        // Those that are not told apart have nothing more to tell once they have ended.
        let is_untold = |id| self.folding.is_untold(id);
        let is_over = |id| is_untold(id) && ends.get(&id).is_some_and(Option::is_some);
        let hidden = hidden(processes.iter().filter(|process| !is_untold(process.id)));
        let goes = |process: &&ProcessSnapshot| {
            is_passing(process) || is_over(process.id) || hidden.contains(&process.id)
        };
        let mut gone: HashSet<ProcId> =
            processes.iter().filter(goes).map(|process| process.id).collect();
        // Those on a page before their end have more to tell on the next one: they neither go early nor are folded.
        let partly_told = |id: &ProcId| self.told.get(id).is_some_and(|whole| !whole);
        let candidates = ends.iter().filter(|(id, end)| {
            !gone.contains(id)
                && !is_untold(**id)
                && (self.retention.is_over(now, **end) || !partly_told(id))
        });
        let candidates: Vec<_> = candidates.map(|(&id, &end)| (id, end)).collect();
        let swept = self.retention.sweep(now, candidates);
        gone.extend(&swept);
        let is_early = |id: &ProcId| {
            let end = ends.get(id).copied().flatten();
            !self.retention.is_over(now, end) && !self.told.contains_key(id)
        };
        let unseen = swept.iter().chain(&hidden).copied().filter(is_early).collect();
        Due { gone, unseen, hidden }
    }

    /// Takes out the processes whose accounts were deleted. Returns those that are part of `other` from now on: of the ones
    /// that are exported at all, those that no page had, and those that were part of it while they lived.
    pub(crate) fn remove(
        &mut self,
        due: &Due,
        processes: &mut Vec<ProcessSnapshot>,
        mut admits: impl FnMut(&ProcessSnapshot) -> bool,
    ) -> HashSet<ProcId> {
        let mut folded = HashSet::new();
        for process in processes.extract_if(.., |process| due.gone.contains(&process.id)) {
            self.told.remove(&process.id);
            let counts = due.unseen.contains(&process.id) || self.folding.is_untold(process.id);
            if counts && admits(&process) {
                self.hidden += u64::from(due.hidden.contains(&process.id));
                folded.insert(process.id);
                self.folding.keep(process);
            }
        }
        folded
    }

    /// Leaves the processes that are tracked individually; returns the sum of all others.
    pub(crate) fn limit(
        &mut self,
        processes: &mut Vec<ProcessSnapshot>,
    ) -> Option<ProcessSnapshot> {
        self.folding.assign(processes);
        self.folding.split(processes)
    }

    /// A page shows these.
    pub(crate) fn exported(&mut self, processes: &[ProcessSnapshot]) {
        self.told = processes.iter().map(|p| (p.id, p.ended.is_some())).collect();
    }
}

/// The time of a live thread is completed at each look, and a stretch caught while it changed may be told a moment short the
/// next time. Counters must not step back, so the larger is told.
fn keep_up(told: &mut HashMap<ProcId, TimeAccount>, processes: &mut [ProcessSnapshot]) {
    let mut telling = HashMap::with_capacity(processes.len());
    for process in processes.iter_mut().filter(|process| process.dispatches) {
        if let Some(before) = told.get(&process.id) {
            let cells = process.dispatcher_time.0.iter_mut().flatten();
            for (time, before) in cells.zip(before.0.iter().flatten()) {
                *time = (*time).max(*before);
            }
        }
        telling.insert(process.id, process.dispatcher_time);
    }
    *told = telling;
}

/// A thread that ends while the others report is in the sum of its process a moment late, and a process that ends then has no
/// sum.
fn keep_faults_up(told: &mut HashMap<ProcId, [u64; FAULTS]>, processes: &mut [ProcessSnapshot]) {
    let mut telling = HashMap::with_capacity(processes.len());
    for process in processes {
        let before = told.get(&process.id).copied();
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
        telling.insert(process.id, faults);
    }
    *told = telling;
}

/// A forked child that ran another program without having made a call: that image was never part of the job.
fn is_passing(process: &ProcessSnapshot) -> bool {
    process.execed && !process.dispatches && process.parent.is_some()
}

/// Ended processes whose PID and name a younger process has: that one is exported, and they never are again.
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

/// When each process ended, for its retention. The images that a process had before it executed another program are
/// added to the last one, and so are kept as long.
fn ends(processes: &[ProcessSnapshot]) -> HashMap<ProcId, Option<Nanos>> {
    let mut last: HashMap<_, (Nanos, Option<Nanos>)> = HashMap::new();
    let key = |process: &ProcessSnapshot| (process.tgid, process.started_boottime);
    for process in processes {
        let entry = last.entry(key(process)).or_insert((process.first_seen, process.ended));
        if process.first_seen >= entry.0 {
            *entry = (process.first_seen, process.ended);
        }
    }
    processes.iter().map(|p| (p.id, last.get(&key(p)).and_then(|entry| entry.1))).collect()
}

#[cfg(test)]
mod tests;
