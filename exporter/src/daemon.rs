//! The daemon between the probes and the page: what is kept of processes that ended, and what `/proc` says of them.

mod host;
mod probe_states;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use gpucause_abi::ProcId;
use gpucause_engine::Moment;
use gpucause_engine::chain::Chain;
use gpucause_engine::observation::ObservationState;
use gpucause_probes::hazard::{Gravity, hazards_of_this_kernel};
use gpucause_probes::recorder::{Recorder, RecorderError};
use gpucause_probes::{Options, Probes, StartError, Status};

use crate::chains::{Chains, Findings, moment};
use crate::clock::{WallClock, monotonic_now};
use crate::collector::{Collectors, FOREIGN, Selection};
use crate::config::Config;
use crate::family::Sink;
use crate::flight_recorder::FlightRecords;
use crate::gpus::Gpus;
use crate::observation::{ConfigState, Observation};
use crate::observing::{Observing, Switch, is_all_broken};
use crate::pipeline::Pipeline;
use crate::sampler::{SampleError, Sampler};
use crate::server::{LiveWebConfig, Readiness, ScrapeError, Source};
use host::Host;

/// How often processes that ended are looked for when nobody scrapes.
pub const REAP_EVERY: Duration = Duration::from_secs(1);

/// The daemon could not be started.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// Its probes could not.
    #[error(transparent)]
    Probes(#[from] StartError),
    /// The system is out of threads.
    #[error("the thread that takes samples could not be started: {0}")]
    Thread(#[from] io::Error),
}

/// What the sampler has in common with those who serve. No lock of it is held for longer than a copy takes.
#[derive(Debug)]
struct Shared {
    probes: Probes,
    /// The configuration in effect, and how the last reload went.
    config: Mutex<(Arc<Config>, ConfigState)>,
    observing: Observing,
    /// How the page's readers are let in.
    access: OnceLock<Arc<LiveWebConfig>>,
    /// What the flight recorder did, where there is one.
    flights: OnceLock<Arc<FlightRecords>>,
}

impl Shared {
    fn in_effect(&self) -> MutexGuard<'_, (Arc<Config>, ConfigState)> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Running probes, the sampler that reads their accounts, and everything that a page is made of.
#[derive(Debug)]
pub struct Daemon {
    /// First: it ends before the probes do.
    sampler: Sampler<Host>,
    shared: Arc<Shared>,
    collectors: Collectors,
    chains: Arc<Chains>,
    gpus: Arc<Gpus>,
    /// Whether there are to be probes.
    enabled: AtomicBool,
}

impl Daemon {
    /// Starts the probes.
    ///
    /// # Errors
    /// When this kernel cannot run them, or does not permit it.
    pub fn start(options: Options, config: Arc<Config>) -> Result<Self, DaemonError> {
        let since = monotonic_now();
        let (launch_ops, budget) = (config.launch_ops.0, config.probe.budget.0);
        let disabled = !config.probe.enabled;
        let options = Options { launch_ops, disabled, budget, calibrate: true, ..options };
        warn_of_hazards();
        let shared = Arc::new(Shared {
            probes: Probes::start(options)?,
            config: Mutex::default(),
            observing: Observing::new(),
            access: OnceLock::new(),
            flights: OnceLock::new(),
        });
        let chains = Arc::new(Chains::of_this_host(config.chains.clone()));
        let gpus = Arc::new(Gpus::default());
        let host = Host::new(Arc::clone(&shared), Arc::clone(&gpus));
        let sampler = Sampler::start(Pipeline::new(host, Arc::clone(&chains), since))?;
        let (collectors, enabled) = (Collectors::default(), AtomicBool::new(true));
        let daemon = Self { sampler, shared, collectors, chains, gpus, enabled };
        daemon.configure(config);
        Ok(daemon)
    }

    /// Has the page tell how its readers are let in. The first call counts.
    pub fn tell_of(&self, access: &Arc<LiveWebConfig>) {
        self.shared.access.get_or_init(|| Arc::clone(access));
    }

    /// Has the page tell what the flight recorder did. The first call counts.
    pub fn tell_of_flights(&self, flights: &Arc<FlightRecords>) {
        self.shared.flights.get_or_init(|| Arc::clone(flights));
    }

    /// Tells also of the GPUs themselves.
    #[must_use]
    pub fn with_gpus(mut self, gpus: Gpus) -> Self {
        self.gpus = Arc::new(gpus);
        let gpus = Arc::clone(&self.gpus);
        self.sampler.tell(|pipeline| pipeline.source.gpus = gpus);
        self
    }

    /// Where what is told of the GPUs comes from.
    #[must_use]
    pub fn gpus(&self) -> &Gpus {
        &self.gpus
    }

    /// Goes by another configuration from now on. The next sample is the first that does.
    pub fn configure(&self, config: Arc<Config>) {
        self.chains.set_settings(config.chains.clone());
        self.shared.probes.set_budget(config.probe.budget.0);
        self.set_enabled(config.probe.enabled, Switch::Configuration);
        if let Err(error) = self.shared.probes.set_launch_ops(&config.launch_ops.0) {
            tracing::warn!(%error, "the ops that count as launches stay as they were");
        }
        let taken_at = WallClock::now().unix_seconds(monotonic_now());
        let state = ConfigState { successful: true, taken_at };
        *self.shared.in_effect() = (Arc::clone(&config), state);
        self.sampler.tell(move |pipeline| pipeline.configure(&config));
    }

    fn set_enabled(&self, enabled: bool, switch: Switch) {
        if !enabled {
            self.shared.observing.set_switch(switch);
        }
        self.enabled.store(enabled, Ordering::Relaxed);
        self.shared.probes.set_enabled(enabled);
    }

    /// Takes all probes away at once, or puts them back when there are none, until the configuration is taken again.
    pub fn toggle(&self) {
        let enable = !self.enabled.load(Ordering::Relaxed);
        let action = if enable { "attaching probes again" } else { "detaching all probes" };
        tracing::warn!(signal = "SIGUSR1", "{action}");
        self.set_enabled(enable, Switch::Signal);
    }

    /// A configuration was not taken: the pages tell.
    pub fn config_refused(&self) {
        self.shared.in_effect().1.successful = false;
        self.sampler.tell(Pipeline::forget_latest);
    }

    /// The configuration in effect.
    #[must_use]
    pub fn config(&self) -> Arc<Config> {
        Arc::clone(&self.shared.in_effect().0)
    }

    /// How the probes do.
    #[must_use]
    pub fn status(&self) -> Status {
        self.shared.probes.status()
    }

    /// Whether processes are observed, and since when.
    #[must_use]
    pub fn observation_state(&self) -> ObservationState {
        self.shared.observing.update(&self.status())
    }

    /// What is known of this host now.
    ///
    /// # Errors
    /// When a kernel map cannot be read.
    pub fn observe(&self) -> Result<Arc<Observation>, SampleError> {
        self.sampler.observe(monotonic_now())
    }

    /// Looks for causal chains. To be called every [`LOOK_EVERY`](crate::chains::LOOK_EVERY). Costs next to nothing while
    /// no process is observed. Returns what it looked at; `None` while no process is observed.
    ///
    /// # Errors
    /// When a kernel map cannot be read.
    pub fn look(&self) -> Result<Option<(Arc<Observation>, Moment)>, SampleError> {
        // Asked also when nothing is looked at: what it tells is of the time since the last look.
        let throttled_gpus = self.gpus.throttled();
        let Some(observation) = self.observe_any()? else {
            self.chains.end();
            return Ok(None);
        };
        let moment = moment(&observation, throttled_gpus);
        self.chains.look(moment.clone());
        Ok(Some((observation, moment)))
    }

    /// What is known of this host now; `None` while no process is observed, which costs next to nothing.
    ///
    /// # Errors
    /// When a kernel map cannot be read.
    pub fn observe_any(&self) -> Result<Option<Arc<Observation>>, SampleError> {
        let now = monotonic_now();
        self.sampler.ask(move |pipeline| match pipeline.source.shared.probes.observes_any()? {
            true => pipeline.observe(now).map(Some),
            false => Ok(None),
        })
    }

    /// The kernel functions that have names, by process and handle.
    ///
    /// # Errors
    /// When the sampler has failed.
    pub fn kernel_names(&self) -> Result<Vec<(ProcId, u64, Arc<str>)>, SampleError> {
        self.sampler.ask(|pipeline| Ok(pipeline.kernel_names()))
    }

    /// What records single events, which [`Options::recorder`] must have asked for.
    ///
    /// # Errors
    /// When this kernel cannot, or something failed.
    pub fn recorder(&self) -> Result<Recorder, RecorderError> {
        self.shared.probes.recorder()
    }

    /// The chains that were found so far.
    #[must_use]
    pub fn findings(&self) -> Findings {
        self.chains.findings()
    }

    /// What must not wait until somebody scrapes: kernels are named while their process lives, and the maps are kept from
    /// filling up with processes that ended. Costs next to nothing while nothing is launched and nothing to be dropped.
    ///
    /// # Errors
    /// When a kernel map cannot be read.
    pub fn reap(&self) -> Result<(), SampleError> {
        self.shared.observing.update(&self.status());
        self.sampler.ask(|pipeline| {
            let launches = pipeline.source.shared.probes.launches()?;
            pipeline.name_launched(launches);
            let ended = pipeline.source.shared.probes.ended()?;
            pipeline.reap(monotonic_now(), &ended)
        })
    }
}

impl Source for Daemon {
    fn collectors(&self) -> Vec<&'static str> {
        self.collectors.names()
    }

    fn scrape(&self, selection: &Selection, page: &mut dyn Sink) -> Result<(), ScrapeError> {
        let observation = self.sampler.page(monotonic_now());
        let observation = observation.map_err(|error| ScrapeError(Box::new(error)))?;
        self.collectors.write(&observation, selection, page)?;
        if selection.includes(FOREIGN) {
            page.foreign(&observation.gpus.families)?;
        }
        Ok(())
    }

    fn chains(&self) -> Vec<Chain> {
        self.chains.chains()
    }

    fn processes(&self) -> Option<Vec<u32>> {
        self.chains.evaluated()
    }

    fn observation(&self) -> ObservationState {
        self.observation_state()
    }

    fn ready(&self) -> Readiness {
        let status = self.status();
        self.shared.observing.update(&status);
        if !status.enabled {
            return Readiness::Disabled;
        }
        if !status.is_ready() {
            return Readiness::NotReady("the libraries in use are being looked for".into());
        }
        if is_all_broken(&status) {
            return Readiness::NotReady("every probe is broken; the log says why".into());
        }
        Readiness::Ready
    }
}

/// Kernels on which probes can harm what they observe.
fn warn_of_hazards() {
    for hazard in hazards_of_this_kernel().iter().filter(|h| h.gravity == Gravity::Warning) {
        tracing::warn!(hazard = hazard.name, "this kernel: {}; {}", hazard.harm, hazard.remedy);
    }
}

#[cfg(test)]
mod tests;
