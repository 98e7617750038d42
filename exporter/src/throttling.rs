//! How long observed processes were out of CPU quota: what their control groups tell, from when each process was first asked
//! for. The kernel keeps these counts for groups, not for processes, and a group is held back when any above it is.

pub(crate) mod hierarchy;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

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

/// How long a process is taken to stay in its group, and up to as long again, so that not all are asked for at a time.
const ASK_EVERY: Duration = Duration::from_secs(10);

/// What groups tell at one moment: many processes may share one.
type Readings = HashMap<PathBuf, Option<Throttled>>;

/// A process over all its images.
type Process = (Tgid, Nanos);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    cgroup: String,
    /// When it was found to be in that group.
    asked: Instant,
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
    ask_every: Duration,
    known: HashMap<Process, Known>,
}

impl Default for Throttling {
    fn default() -> Self {
        Self { ask_every: ASK_EVERY, ..Self::at("/proc") }
    }
}

impl Throttling {
    /// With another `/proc`, and asking for the group of each process each time.
    #[must_use]
    pub fn at(proc_root: impl Into<PathBuf>) -> Self {
        let proc_root = proc_root.into();
        let mounts = fs::read_to_string(proc_root.join("self/mountinfo")).unwrap_or_default();
        let hierarchy = Hierarchy::in_mounts(&mounts);
        Self { proc_root, hierarchy, ask_every: Duration::ZERO, known: HashMap::new() }
    }

    /// Asks for all `processes`, and forgets others. Without an answer where no group tells: the kernel counts nothing, or
    /// the hierarchy is not in sight.
    pub fn refresh(&mut self, processes: &[ProcessSnapshot]) -> HashMap<ProcId, Throttled> {
        let mut known = HashMap::new();
        let mut told = HashMap::new();
        let mut readings = Readings::new();
        // One that lives can be asked for, whatever other images the process has had.
        let (gone, live): (Vec<_>, Vec<_>) = processes.iter().partition(|p| p.ended.is_some());
        for process in live.into_iter().chain(gone) {
            let key = (process.tgid, process.started_boottime);
            if let Entry::Vacant(place) = known.entry(key) {
                let before = self.known.remove(&key);
                let lives = process.ended.is_none();
                let now = lives.then(|| self.ask(key, before.as_ref(), &mut readings)).flatten();
                let Some(entry) = settle(before, now) else { continue };
                place.insert(entry);
            }
            told.extend(known.get(&key).map(|entry| (process.id, entry.total)));
        }
        self.known = known;
        told
    }

    /// The process's group, and what it and those above it tell now.
    fn ask(
        &self,
        process: Process,
        before: Option<&Known>,
        readings: &mut Readings,
    ) -> Option<Known> {
        let hierarchy = self.hierarchy.as_ref()?;
        let share = self.ask_every * (process.0.0 % 8) / 8;
        let is_fresh = |known: &&Known| known.asked.elapsed() < self.ask_every + share;
        let (cgroup, asked) = match before.filter(is_fresh) {
            Some(known) => (known.cgroup.clone(), known.asked),
            None => (self.group_of(hierarchy, process)?, Instant::now()),
        };
        let mut last = None;
        for group in hierarchy.groups(&cgroup) {
            let reading = *readings.entry(group).or_insert_with_key(|group| reading(group));
            let Some(Throttled { time, periods }) = reading else { continue };
            let sum: &mut Throttled = last.get_or_insert_default();
            sum.time.0 += time.0;
            sum.periods += periods;
        }
        Some(Known { cgroup, asked, last: last?, total: Throttled::default() })
    }

    fn group_of(&self, hierarchy: &Hierarchy, (tgid, started): Process) -> Option<String> {
        let dir = self.proc_root.join(tgid.to_string());
        let cgroup = hierarchy.cgroup_of(&fs::read_to_string(dir.join("cgroup")).ok()?)?;
        is_that_process(&dir, started).then_some(cgroup)
    }
}

/// Adds what came since the last look. A process that is in another group than before begins anew there.
fn settle(before: Option<Known>, now: Option<Known>) -> Option<Known> {
    let Some(mut now) = now else { return before };
    if let Some(before) = before {
        now.total = before.total;
        if before.cgroup == now.cgroup {
            now.total.time.0 += now.last.time.0.saturating_sub(before.last.time.0);
            now.total.periods += now.last.periods.saturating_sub(before.last.periods);
        }
    }
    Some(now)
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
