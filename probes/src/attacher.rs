//! The thread that changes probes: attaches to libraries as they are found, applies the launch budget, and detaches
//! everything when probes are disabled.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libbpf_rs::Link;
use parking_lot::Mutex;

use crate::attach::CallProbes;
use crate::desired_state::DesiredStateCell;
use crate::discovery::{BackgroundTasks, DiscoveryStatus, Tick};
use crate::launch_control::LaunchControl;
use crate::launch_control::budget::Limits;
use crate::program::Programs;
use crate::reader::Reader;
use crate::registry::{LibraryStatus, Registry, RegistryCounts};

/// Delay before a retry after an unexpected failure.
const AGAIN: Duration = Duration::from_secs(1);

/// The state last published by the thread.
#[derive(Debug)]
pub(crate) struct AttacherStatus {
    pub(crate) libraries: Vec<LibraryStatus>,
    pub(crate) discovery: DiscoveryStatus,
    pub(crate) counts: RegistryCounts,
    pub(crate) enabled: bool,
    pub(crate) duty_ratio: f64,
    pub(crate) timed_share: f64,
}

impl Default for AttacherStatus {
    fn default() -> Self {
        let (libraries, discovery, counts) = Default::default();
        Self { libraries, discovery, counts, enabled: true, duty_ratio: 1.0, timed_share: 1.0 }
    }
}

/// The background tasks that run between discovery scans.
pub(crate) struct Attacher {
    pub(crate) programs: Arc<Programs>,
    pub(crate) reader: Arc<Reader>,
    pub(crate) desired: Arc<DesiredStateCell>,
    pub(crate) status: Arc<Mutex<AttacherStatus>>,
    pub(crate) launches: LaunchControl,
    pub(crate) enabled: bool,
    /// Closed after the first scan: closing is slow.
    pub(crate) used_links: Vec<Link>,
}

impl Attacher {
    /// Detaches all probes and ends the accounts.
    fn disable(&mut self, registry: &mut Registry<CallProbes>) {
        let began = Instant::now();
        let failed = |error| tracing::warn!(%error, "cannot pause the programs");
        self.launches.pause().unwrap_or_else(failed);
        registry.detach_all();
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

    /// Attaches the host programs; discovery re-attaches libraries.
    fn enable(&mut self) {
        self.reader.set_iterators(self.programs.attach_host_programs());
        if let Err(error) = self.launches.resume(Instant::now()) {
            tracing::error!(%error, "cannot resume the programs");
        }
        tracing::warn!("probes are attached again");
    }
}

impl BackgroundTasks<CallProbes> for Attacher {
    fn changed(&mut self, registry: &Registry<CallProbes>, discovery: DiscoveryStatus) {
        {
            let mut status = self.status.lock();
            status.libraries = registry.libraries().collect();
            status.discovery = discovery;
            status.counts = registry.counts();
        }
        self.used_links.clear();
    }

    fn tick(&mut self, registry: &mut Registry<CallProbes>) -> Tick {
        let desired = self.desired.latest();
        if desired.enabled != self.enabled {
            match desired.enabled {
                true => self.enable(),
                false => self.disable(registry),
            }
            self.enabled = desired.enabled;
            let mut status = self.status.lock();
            status.enabled = desired.enabled;
            status.libraries.clear();
        }
        let counting = desired.counting_limit;
        let limits = desired.budget.map(|budget| Limits { budget, counting });
        if let Err(error) = self.launches.set_limits(limits) {
            tracing::warn!(%error, "cannot tell the programs of the budget");
        }
        let again = self.enabled.then(|| {
            self.launches.tick(Instant::now(), registry).unwrap_or_else(|error| {
                tracing::warn!(%error, "cannot update the launch modes");
                Instant::now() + AGAIN
            })
        });
        let mut status = self.status.lock();
        status.duty_ratio = if self.enabled { self.launches.least_share() } else { 0.0 };
        status.timed_share = if self.enabled { self.launches.least_timed_share() } else { 0.0 };
        drop(status);
        Tick { again, paused: !self.enabled }
    }

    fn wake(&self) -> Vec<BorrowedFd<'_>> {
        // Nothing takes reports while probes are disabled.
        let launches = self.enabled.then(|| self.launches.as_fd());
        std::iter::once(self.desired.as_fd()).chain(launches).collect()
    }
}
