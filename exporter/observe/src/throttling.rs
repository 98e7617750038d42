//! CPU throttling of observed processes: the counters of their cgroups since each process was first read. The kernel counts per
//! cgroup, not per process, and throttling of an ancestor throttles a cgroup.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpucause_abi::snapshot::ProcessSnapshot;
use gpucause_abi::{Nanos, ProcId, Tgid};

use crate::process_details::hierarchy::Hierarchy;
use crate::process_identity::is_that_process;

/// Throttling of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Throttled {
    /// Throttled time, summed over CPUs and cgroups.
    pub time: Nanos,
    /// Throttled periods, summed over cgroups.
    pub periods: u64,
}

/// How long the cgroup of a process is cached, plus up to as long again to spread the reads.
const CACHE_TIME: Duration = Duration::from_secs(10);

/// Counters by cgroup: many processes may share one.
type Readings = HashMap<PathBuf, Option<Throttled>>;

/// A process over all its images.
type Process = (Tgid, Nanos);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    cgroup: String,
    /// When its cgroup was read.
    read_at: Instant,
    /// The counters at the last read.
    last: Throttled,
    /// The increase since the process was first read.
    total: Throttled,
}

/// Throttling of the observed processes.
#[derive(Debug)]
pub struct Throttling {
    proc_root: PathBuf,
    hierarchy: Option<Hierarchy>,
    cache_time: Duration,
    known: HashMap<Process, Known>,
}

impl Default for Throttling {
    fn default() -> Self {
        Self { cache_time: CACHE_TIME, ..Self::at("/proc") }
    }
}

impl Throttling {
    /// With another `/proc`, and without a cache.
    #[must_use]
    pub fn at(proc_root: impl Into<PathBuf>) -> Self {
        let proc_root = proc_root.into();
        let mounts = fs::read_to_string(proc_root.join("self/mountinfo")).unwrap_or_default();
        let hierarchy = Hierarchy::in_mounts(&mounts);
        Self { proc_root, hierarchy, cache_time: Duration::ZERO, known: HashMap::new() }
    }

    /// Reads all `processes`, and forgets others. Processes without counters are absent: the kernel counts nothing, or the
    /// hierarchy is not visible.
    pub fn refresh(&mut self, processes: &[ProcessSnapshot]) -> HashMap<ProcId, Throttled> {
        let mut known = HashMap::new();
        let mut totals = HashMap::new();
        let mut readings = Readings::new();
        // Live images first: they can be read, and share the entry with exited ones.
        let (gone, live): (Vec<_>, Vec<_>) = processes.iter().partition(|p| p.ended.is_some());
        for process in live.into_iter().chain(gone) {
            let key = (process.tgid, process.started_boottime);
            if let Entry::Vacant(vacant) = known.entry(key) {
                let previous = self.known.remove(&key);
                let lives = process.ended.is_none();
                let now = lives.then(|| self.read(key, previous.as_ref(), &mut readings)).flatten();
                let Some(entry) = total(previous, now) else { continue };
                vacant.insert(entry);
            }
            totals.extend(known.get(&key).map(|entry| (process.id, entry.total)));
        }
        self.known = known;
        totals
    }

    /// The process's cgroup, and the counters of it and its ancestors.
    fn read(
        &self,
        process: Process,
        previous: Option<&Known>,
        readings: &mut Readings,
    ) -> Option<Known> {
        let hierarchy = self.hierarchy.as_ref()?;
        let share = self.cache_time * (process.0.0 % 8) / 8;
        let is_fresh = |known: &&Known| known.read_at.elapsed() < self.cache_time + share;
        let (cgroup, read_at) = match previous.filter(is_fresh) {
            Some(known) => (known.cgroup.clone(), known.read_at),
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
        Some(Known { cgroup, read_at, last: last?, total: Throttled::default() })
    }

    fn group_of(&self, hierarchy: &Hierarchy, (tgid, started): Process) -> Option<String> {
        let dir = self.proc_root.join(tgid.to_string());
        let cgroup = hierarchy.cgroup_of(&fs::read_to_string(dir.join("cgroup")).ok()?)?;
        is_that_process(&dir, started).then_some(cgroup)
    }
}

/// Adds the increase since the last read. A process that moved to another cgroup starts from its counters there.
fn total(previous: Option<Known>, now: Option<Known>) -> Option<Known> {
    let Some(mut now) = now else { return previous };
    if let Some(previous) = previous {
        now.total = previous.total;
        if previous.cgroup == now.cgroup {
            now.total.time.0 += now.last.time.0.saturating_sub(previous.last.time.0);
            now.total.periods += now.last.periods.saturating_sub(previous.last.periods);
        }
    }
    Some(now)
}

/// The counters of one cgroup.
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
