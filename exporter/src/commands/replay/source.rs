//! The current observation of a replay, served to scrapes.

use std::sync::Arc;

use gpucause_abi::Nanos;
use gpucause_abi::snapshot::Snapshot;
use gpucause_engine::Findings;
use gpucause_engine::activity::TimelinePoint;
use gpucause_engine::chain::Chain;
use gpucause_engine::observation::{ObservationState, Period};
use gpucause_observe::clock::{WallClock, monotonic_now};
use gpucause_observe::observation::Observation;
use gpucause_page::family::Sink;
use parking_lot::{Mutex, MutexGuard};

use crate::collector::{Collectors, Content, Scope};
use crate::config::MetricsSettings;
use crate::live_page::Processes;
use crate::routes::{Readiness, ScrapeError, Source};

/// Serves the replay in place of the daemon.
#[derive(Debug, Default)]
pub(super) struct ReplaySource {
    collectors: Collectors,
    settings: MetricsSettings,
    /// `None` before the first observation.
    current: Mutex<Option<Current>>,
    node: String,
    /// The file that it stands at the end of; `None` while it is played.
    file: Option<String>,
}

/// The data that is served.
#[derive(Debug, Clone)]
pub(super) struct Current {
    pub(super) observation: Arc<Observation>,
    pub(super) findings: Arc<Findings>,
    pub(super) processes: Processes,
    pub(super) timeline: Vec<TimelinePoint>,
}

/// An observation of nothing.
pub(super) fn nothing() -> Observation {
    Observation::new(Snapshot::default(), Nanos(0), WallClock::now())
}

impl ReplaySource {
    /// Serves all of a file.
    pub(super) fn at_end(file: String, node: String, current: Current) -> Self {
        Self { file: Some(file), node, current: Some(current).into(), ..Self::default() }
    }

    /// Serves nothing yet.
    pub(super) fn new(settings: MetricsSettings, node: String) -> Self {
        Self { settings, node, ..Self::default() }
    }

    /// Serves this from now on.
    pub(super) fn set_current(&self, current: Option<Current>) {
        *self.lock() = current;
    }

    fn current(&self) -> Option<Arc<Observation>> {
        self.lock().as_ref().map(|current| Arc::clone(&current.observation))
    }

    fn findings(&self) -> Arc<Findings> {
        self.lock().as_ref().map(|current| Arc::clone(&current.findings)).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Current>> {
        self.current.lock()
    }
}

impl Source for ReplaySource {
    fn collectors(&self) -> Vec<&'static str> {
        self.collectors.names()
    }

    fn metrics(&self) -> MetricsSettings {
        self.settings.clone()
    }

    fn scrape(&self, scope: &Scope, page: &mut dyn Sink) -> Result<(), ScrapeError> {
        // Others on this host can read metrics without the password of the file's page.
        if self.file.is_some() {
            let refusal = "a file is served without metrics; gpucause replay serves them";
            return Err(ScrapeError(refusal.into()));
        }
        let (observation, findings) = match &*self.lock() {
            Some(current) => (Arc::clone(&current.observation), Arc::clone(&current.findings)),
            None => (nothing().into(), Arc::default()),
        };
        let content = Content { findings: &findings, ..Content::from(&*observation) };
        Ok(self.collectors.write(content, scope, page)?)
    }

    fn chains(&self) -> Vec<Chain> {
        self.findings().chains.clone()
    }

    fn process_rows(&self) -> Processes {
        self.lock().as_ref().map(|current| current.processes.clone()).unwrap_or_default()
    }

    fn timeline(&self) -> Vec<TimelinePoint> {
        self.lock().as_ref().map(|current| current.timeline.clone()).unwrap_or_default()
    }

    fn node(&self) -> String {
        self.node.clone()
    }

    fn file(&self) -> Option<String> {
        self.file.clone()
    }

    /// A recorder keeps its probes attached: every recorded time was observed.
    fn observation(&self) -> ObservationState {
        let state = self.current().map(|observation| observation.state.clone());
        state.unwrap_or_else(|| {
            let now = WallClock::now().unix_seconds(monotonic_now());
            Period::disabled(now, "the recording is being read").into()
        })
    }

    fn ready(&self) -> Readiness {
        match self.current() {
            Some(_) => Readiness::Ready,
            None => Readiness::NotReady("the recording is being read".into()),
        }
    }
}
