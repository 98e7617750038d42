//! Finds the CUDA libraries that processes map: all at start, each new one as it is mapped, and all again periodically,
//! since events may be lost and files may change. Runs on its own thread.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpucause_abi::Tgid;
use nix::time::{ClockId, clock_gettime};

use crate::mapped::{Mapping, all_processes, candidate, executable_mappings, replaces_code};
use crate::mmap_events::MmapEvents;
use crate::registry::{Attach, Registry};
use crate::stop::{StopSignal, poll_readable};

#[cfg(test)]
mod tests;

/// Scan interval while events arrive.
const SCAN_EVERY: Duration = Duration::from_secs(60);
/// Scan interval without events, and after lost events.
const SCAN_OFTEN: Duration = Duration::from_secs(2);
/// Interval of the check for files overwritten in place.
const RECHECK_EVERY: Duration = Duration::from_secs(5);
/// Interval of the question whether the processes of each library still live.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Debounce of events: a program that starts makes a dozen in a row.
const DEBOUNCE: Duration = Duration::from_millis(2);
/// Processes whose mappings are read before pending events are handled.
const PROCESSES_AT_ONCE: usize = 64;
/// Mappings examined before pending events are handled.
const MAPPINGS_AT_ONCE: usize = 256;

/// The state of discovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiscoveryStatus {
    /// True if mappings are seen as events, not by scans alone.
    pub watching: bool,
    /// Events of mappings by other processes.
    pub events: u64,
    /// Events that did not fit the buffers; a scan follows.
    pub lost_events: u64,
    /// Scans of all processes.
    pub scans: u64,
    /// Duration of the last scan.
    pub last_scan: Duration,
    /// Processes whose mappings the last scan could not read.
    pub unreadable: u64,
}

/// Other tasks of the discovery thread.
pub trait BackgroundTasks<A: Attach> {
    /// Called after the first scan, when all libraries in use are attached, and whenever the registry or the status may
    /// have changed.
    fn changed(&mut self, registry: &Registry<A>, status: DiscoveryStatus);

    /// Does what is due. Called often.
    fn tick(&mut self, _registry: &mut Registry<A>) -> Tick {
        Tick::default()
    }

    /// One of them is readable when something is due.
    fn wake(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}

impl<A: Attach, F: FnMut(&Registry<A>, DiscoveryStatus)> BackgroundTasks<A> for F {
    fn changed(&mut self, registry: &Registry<A>, status: DiscoveryStatus) {
        self(registry, status);
    }
}

/// The result of a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tick {
    /// When the next tick is due.
    pub again: Option<Instant>,
    /// True while discovery pauses. It scans again when resumed.
    pub paused: bool,
}

/// Finds libraries and reports them to a registry.
#[derive(Debug)]
pub struct Discovery {
    own: Tgid,
    watch: Option<MmapEvents>,
    status: DiscoveryStatus,
    /// True if nothing that processes mapped went by unseen since a scan.
    has_scanned: bool,
}

impl Default for Discovery {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the CPU time of this thread.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

fn is_examined(path: &Path) -> bool {
    candidate(path).is_some() || replaces_code(path)
}

impl Discovery {
    /// Starts to watch, so that a following scan misses nothing. Without the privilege to watch, logs a warning and relies
    /// on scans.
    pub fn new() -> Self {
        match MmapEvents::open() {
            Ok(watch) => Self::with(Some(watch)),
            Err(error) => {
                tracing::warn!(
                    %error,
                    "cannot watch mappings; new CUDA libraries are found by a scan every {} s",
                    SCAN_OFTEN.as_secs()
                );
                Self::with(None)
            }
        }
    }

    fn with(watch: Option<MmapEvents>) -> Self {
        let status = DiscoveryStatus { watching: watch.is_some(), ..DiscoveryStatus::default() };
        Self { own: Tgid(std::process::id()), watch, status, has_scanned: false }
    }

    /// The current status.
    pub fn status(&self) -> DiscoveryStatus {
        self.status
    }

    /// Scans every process but this one, then lets the registry drop unmapped files.
    pub fn scan<A: Attach>(&mut self, registry: &mut Registry<A>) {
        let started = Instant::now();
        let processes = match all_processes() {
            Ok(processes) => processes,
            Err(error) => {
                tracing::error!(%error, "cannot list the processes in /proc");
                return;
            }
        };
        self.status.unreadable = 0;
        let mut found = Vec::new();
        for some in processes.chunks(PROCESSES_AT_ONCE) {
            for &tgid in some {
                if tgid != self.own {
                    found.extend(self.mappings_of(tgid).into_iter().map(|mapping| (tgid, mapping)));
                }
            }
            // Nothing is attached before all are known who may have replaced code.
            if self.has_scanned {
                self.follow(registry);
            }
        }
        let found = Arc::new(found);
        registry.begin_scan(Arc::clone(&found));
        for some in found.chunks(MAPPINGS_AT_ONCE) {
            for (tgid, mapping) in some {
                registry.observe(*tgid, mapping, None);
            }
            self.follow(registry);
        }
        registry.collect_garbage(started);
        self.has_scanned = true;
        self.status.scans += 1;
        self.status.last_scan = started.elapsed();
    }

    /// The mappings of a process that are to be examined, one for each file.
    fn mappings_of(&mut self, tgid: Tgid) -> Vec<Mapping> {
        let mut mappings = match executable_mappings(tgid) {
            Ok(mappings) => mappings,
            Err(error) => {
                self.status.unreadable += 1;
                tracing::debug!(tgid = tgid.0, %error, "cannot read the mappings of a process");
                return Vec::new();
            }
        };
        mappings.retain(|mapping| is_examined(&mapping.path));
        // A file may be mapped in several consecutive parts.
        mappings
            .dedup_by(|next, previous| previous.inode == next.inode && previous.path == next.path);
        mappings
    }

    /// Handles pending events.
    pub fn follow<A: Attach>(&mut self, registry: &mut Registry<A>) {
        registry.follow_writes();
        let Some(watch) = &mut self.watch else { return };
        let (own, status) = (self.own, &mut self.status);
        watch.drain(|event| {
            if event.tgid == own {
                return;
            }
            status.events += 1;
            // Nearly all events end here.
            if is_examined(&event.path) {
                let (tgid, at) = (event.tgid, event.at);
                let mapping = Mapping::from(event);
                registry.observe(tgid, &mapping, Some(at));
            }
        });
        status.lost_events = watch.lost();
    }

    /// Runs until `stop` is raised; the probes stay attached.
    pub fn run<A: Attach>(
        mut self,
        registry: &mut Registry<A>,
        stop: &StopSignal,
        mut tasks: impl BackgroundTasks<A>,
    ) {
        let mut reported = None;
        let mut next_scan = Instant::now();
        let mut next_recheck = next_scan + RECHECK_EVERY;
        let (mut next_question, mut soonest_scan) = (next_scan, next_scan);
        while !stop.is_stopped() {
            let tick = tasks.tick(registry);
            if tick.paused {
                if let Some(watch) = &mut self.watch {
                    watch.drain(|_| {});
                }
                tasks.changed(registry, self.status);
                self.has_scanned = false;
                next_scan = Instant::now();
                self.sleep(next_scan + SCAN_EVERY, stop, tasks.wake());
                continue;
            }
            let lost_before = self.status.lost_events;
            let now = Instant::now();
            let mut is_due = now >= next_scan;
            if now >= next_question {
                next_question = now + ASK_EVERY;
                is_due |= registry.has_abandoned(now) && now >= soonest_scan;
            }
            if is_due {
                let before = cpu_time();
                self.scan(registry);
                let pause = if self.watch.is_some() { SCAN_EVERY } else { SCAN_OFTEN };
                // Bounds the CPU share of slow scans. One that others slowed down took no more of a CPU.
                soonest_scan = Instant::now() + cpu_time().saturating_sub(before) * 20;
                next_scan = soonest_scan.max(Instant::now() + pause);
                next_recheck = Instant::now() + RECHECK_EVERY;
            } else if Instant::now() >= next_recheck {
                registry.recheck();
                next_recheck = Instant::now() + RECHECK_EVERY;
            }
            self.follow(registry);
            if self.status.lost_events > lost_before {
                next_scan = next_scan.min(Instant::now() + SCAN_OFTEN);
            }
            let now = Some((registry.generation(), self.status.scans, self.status.lost_events));
            if reported != now {
                reported = now;
                tasks.changed(registry, self.status);
            }
            let mut next = next_scan.min(next_recheck);
            if !registry.is_empty() {
                next = next.min(next_question);
            }
            let next = tick.again.map_or(next, |again| again.min(next));
            self.sleep(next, stop, registry.writes().into_iter().chain(tasks.wake()));
        }
    }

    fn sleep<'a>(
        &'a self,
        until: Instant,
        stop: &'a StopSignal,
        wakers: impl IntoIterator<Item = BorrowedFd<'a>>,
    ) {
        if stop.wait(DEBOUNCE) {
            return;
        }
        let timeout = until.saturating_duration_since(Instant::now());
        let wakers: Vec<_> = std::iter::once(stop.as_fd()).chain(wakers).collect();
        let failed = match &self.watch {
            Some(watch) => watch.wait(timeout, wakers).is_err(),
            None => poll_readable(&wakers, timeout.min(SCAN_OFTEN)).is_err(),
        };
        if failed {
            let _ = stop.wait(timeout.min(SCAN_OFTEN));
        }
    }
}
