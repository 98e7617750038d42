//! How long observed processes were out of CPU quota: what their control groups tell, from when each process was first asked
//! for. The kernel keeps these counts for groups, not for processes, and a group is held back when any above it is.

mod hierarchy;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::path::{Path, PathBuf};

use gpucause_abi::snapshot::ProcessSnapshot;
use gpucause_abi::{Nanos, ProcId, Tgid};

use crate::process_details::is_that_process;
use hierarchy::Hierarchy;

/// What a process was held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Throttled {
    /// For how long, summed over CPUs and over the groups that were out of quota.
    pub time: Nanos,
    /// In how many periods, summed over groups.
    pub periods: u64,
}

/// A process over all its images.
type Process = (Tgid, Nanos);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    cgroup: String,
    /// What the groups told last.
    last: Throttled,
    /// Since the first look at the process.
    total: Throttled,
}

/// What is known of the processes under observation.
#[derive(Debug)]
pub struct Throttling {
    proc_root: PathBuf,
    hierarchy: Option<Hierarchy>,
    known: HashMap<Process, Known>,
}

impl Default for Throttling {
    fn default() -> Self {
        Self::at("/proc")
    }
}

impl Throttling {
    /// With another `/proc`.
    #[must_use]
    pub fn at(proc_root: impl Into<PathBuf>) -> Self {
        let proc_root = proc_root.into();
        let mounts = fs::read_to_string(proc_root.join("self/mountinfo")).unwrap_or_default();
        Self { proc_root, hierarchy: Hierarchy::in_mounts(&mounts), known: HashMap::new() }
    }

    /// Asks for all `processes`, and forgets others. Without an answer where no group tells: the kernel counts nothing, or
    /// the hierarchy is not in sight.
    pub fn refresh(&mut self, processes: &[ProcessSnapshot]) -> HashMap<ProcId, Throttled> {
        let mut known = HashMap::new();
        let mut told = HashMap::new();
        // One that lives can be asked for, whatever other images the process has had.
        let (gone, live): (Vec<_>, Vec<_>) = processes.iter().partition(|p| p.ended.is_some());
        for process in live.into_iter().chain(gone) {
            let key = (process.tgid, process.started_boottime);
            if let Entry::Vacant(place) = known.entry(key) {
                let before = self.known.remove(&key);
                let now = process.ended.is_none().then(|| self.ask(key)).flatten();
                let Some(entry) = settle(before, now) else { continue };
                place.insert(entry);
            }
            told.extend(known.get(&key).map(|entry| (process.id, entry.total)));
        }
        self.known = known;
        told
    }

    /// The process's group, and what it and those above it tell now.
    fn ask(&self, (tgid, started): Process) -> Option<(String, Throttled)> {
        let hierarchy = self.hierarchy.as_ref()?;
        let dir = self.proc_root.join(tgid.to_string());
        let cgroup = hierarchy.cgroup_of(&fs::read_to_string(dir.join("cgroup")).ok()?)?;
        if !is_that_process(&dir, started) {
            return None;
        }
        let groups = hierarchy.groups(&cgroup);
        let readings: Vec<_> = groups.iter().filter_map(|group| reading(group)).collect();
        let add = |a: Throttled, b: &Throttled| Throttled {
            time: Nanos(a.time.0 + b.time.0),
            periods: a.periods + b.periods,
        };
        (!readings.is_empty()).then(|| (cgroup, readings.iter().fold(Throttled::default(), add)))
    }
}

/// Adds what came since the last look. A process that is in another group than before begins anew there.
fn settle(before: Option<Known>, now: Option<(String, Throttled)>) -> Option<Known> {
    let Some((cgroup, now)) = now else { return before };
    let Some(before) = before else {
        return Some(Known { cgroup, last: now, total: Throttled::default() });
    };
    let mut total = before.total;
    if before.cgroup == cgroup {
        total.time.0 += now.time.0.saturating_sub(before.last.time.0);
        total.periods += now.periods.saturating_sub(before.last.periods);
    }
    Some(Known { cgroup, last: now, total })
}

/// What one group tells of itself.
fn reading(group: &Path) -> Option<Throttled> {
    let stat = fs::read_to_string(group.join("cpu.stat")).ok()?;
    let number = |name: &str| -> Option<u64> {
        stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    };
    let nanos = number("throttled_time")
        .or_else(|| number("throttled_usec").map(|micros| micros.saturating_mul(1_000)));
    Some(Throttled { time: Nanos(nanos?), periods: number("nr_throttled")? })
}

#[cfg(test)]
mod tests;
