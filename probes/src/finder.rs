//! The thread that changes probes: it attaches to libraries as they are found, has launches watched as the budget allows, and takes
//! everything away when nothing is wanted.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use libbpf_rs::Link;

use crate::attach::{CallProbes, FileLinks};
use crate::discovery::{Chores, DiscoveryStatus, Tick};
use crate::launch_control::LaunchControl;
use crate::orders::Orders;
use crate::program::Programs;
use crate::reader::Reader;
use crate::registry::{LibraryStatus, Registry, RegistryCounts};

/// When something failed that should not, it is tried again after this time.
const AGAIN: Duration = Duration::from_secs(1);

/// What the thread last told.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) libraries: Vec<LibraryStatus>,
    pub(crate) discovery: DiscoveryStatus,
    pub(crate) counts: RegistryCounts,
    pub(crate) enabled: bool,
    pub(crate) duty_ratio: f64,
    pub(crate) timed_share: f64,
}

impl Default for Told {
    fn default() -> Self {
        let (libraries, discovery, counts) = Default::default();
        Self { libraries, discovery, counts, enabled: true, duty_ratio: 1.0, timed_share: 1.0 }
    }
}

/// What the thread does beside looking for libraries.
pub(crate) struct Finder {
    pub(crate) programs: Arc<Programs>,
    pub(crate) reader: Arc<Reader>,
    pub(crate) orders: Arc<Orders>,
    pub(crate) told: Arc<Mutex<Told>>,
    pub(crate) launches: LaunchControl,
    pub(crate) enabled: bool,
    /// To be closed once the libraries in use have probes: it takes a while.
    pub(crate) used_links: Vec<Link>,
}

/// A panic elsewhere must not take the status down with it.
pub(crate) fn lock(told: &Mutex<Told>) -> MutexGuard<'_, Told> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Finder {
    /// Takes all probes away, and ends the accounts of what they saw.
    fn disable(&mut self, registry: &mut Registry<FileLinks>, attacher: &mut CallProbes) {
        let began = Instant::now();
        let untold = |error| tracing::warn!(%error, "the programs cannot be told that they go");
        self.launches.pause().unwrap_or_else(untold);
        registry.detach_all(attacher);
        self.programs.detach_host_programs();
        if let Err(error) = self.programs.forget_tasks() {
            tracing::error!(%error, "accounts of live processes stay open");
        }
        if let Err(error) = self.reader.end_rest() {
            tracing::error!(%error, "accounts of ended processes stay open");
        }
        self.reader.set_iterators(Default::default());
        tracing::warn!(seconds = began.elapsed().as_secs_f64(), "all probes are detached");
    }

    /// Puts them back. Libraries follow when they are found.
    fn enable(&mut self) {
        self.reader.set_iterators(self.programs.attach_host_programs());
        if let Err(error) = self.launches.resume(Instant::now()) {
            tracing::error!(%error, "the programs cannot be told to count");
        }
        tracing::warn!("probes are attached again");
    }
}

impl Chores<CallProbes> for Finder {
    fn changed(&mut self, registry: &Registry<FileLinks>, status: DiscoveryStatus) {
        {
            let mut told = lock(&self.told);
            told.libraries = registry.libraries().collect();
            told.discovery = status;
            told.counts = registry.counts();
        }
        self.used_links.clear();
    }

    fn tick(&mut self, registry: &mut Registry<FileLinks>, attacher: &mut CallProbes) -> Tick {
        let wanted = self.orders.heed();
        if wanted.enabled != self.enabled {
            match wanted.enabled {
                true => self.enable(),
                false => self.disable(registry, attacher),
            }
            self.enabled = wanted.enabled;
            let mut told = lock(&self.told);
            told.enabled = wanted.enabled;
            told.libraries.clear();
        }
        self.launches.set_budget(wanted.budget);
        let again = self.enabled.then(|| {
            self.launches.tick(Instant::now(), registry, attacher).unwrap_or_else(|error| {
                tracing::warn!(%error, "the programs cannot be told which calls count");
                Instant::now() + AGAIN
            })
        });
        let mut told = lock(&self.told);
        told.duty_ratio = if self.enabled { self.launches.least_share() } else { 0.0 };
        told.timed_share = if self.enabled { self.launches.least_timed_share() } else { 0.0 };
        drop(told);
        Tick { again, paused: !self.enabled }
    }

    fn wake(&self) -> Option<BorrowedFd<'_>> {
        Some(self.orders.as_fd())
    }
}
