//! The daemon: probes, the sampler that reads their accounts, chains, and everything that a page is made of.

mod host;
mod probe_states;
mod source;
mod victim;

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use gpucause_abi::{Nanos, ProcId};
use gpucause_engine::observation::ObservationState;
use gpucause_engine::{EngineInput, Findings};
use gpucause_http::web_config::LiveWebConfig;
use gpucause_observe::chains::{Chains, engine_input};
use gpucause_observe::clock::{WallClock, monotonic_now};
use gpucause_observe::gpus::Gpus;
use gpucause_observe::host_name::node_name;
use gpucause_observe::observation::Observation;
use gpucause_observe::observing::{Observing, Switch};
use gpucause_observe::pipeline::Pipeline;
use gpucause_observe::sampler::observer::Observer;
use gpucause_observe::sampler::{SampleError, Sampler};
use gpucause_observe::visibility::obstacles;
use gpucause_probes::hazard::{HazardSeverity, hazards_of_this_kernel};
use gpucause_probes::recorder::{Recorder, RecorderError};
use gpucause_probes::{Options, Probes, ReadError, StartError, Status};
use parking_lot::{Mutex, MutexGuard};

use crate::collector::Collectors;
use crate::config::Config;
use crate::daemon_state::{ConfigState, DaemonState};
use crate::file_limits::{self, TooFewFiles};
use crate::flights::FlightRecords;
use crate::live_page::Problem;
use crate::otlp::ChainLog;
use crate::peers::PeerRanks;
use host::{Host, ThreadSampler};
use victim::victim_process;

/// Between two calls of [`Daemon::reap`].
pub const REAP_EVERY: Duration = Duration::from_secs(1);

/// The daemon could not be started.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The probes could not be started.
    #[error(transparent)]
    Probes(#[from] StartError),
    /// Fewer files may be open than they need.
    #[error(transparent)]
    Files(#[from] TooFewFiles),
    /// The system is out of threads.
    #[error("cannot start the sampling thread: {0}")]
    Thread(#[from] io::Error),
}

/// State that the sampler shares with the server. No lock of it is held for longer than a copy takes.
#[derive(Debug)]
struct Shared {
    probes: Probes,
    /// The configuration in effect, and how the last reload went.
    config: Mutex<(Arc<Config>, ConfigState)>,
    observing: Observing,
    /// How clients of the page are authenticated.
    access: OnceLock<Arc<LiveWebConfig>>,
    /// Files and counts of the flight recorder, where there is one.
    flights: OnceLock<Arc<FlightRecords>>,
    /// Where chains are logged.
    chain_log: OnceLock<Arc<ChainLog>>,
    /// Ranks on other hosts.
    peers: Arc<PeerRanks>,
    /// The last thing that went wrong, for the live page.
    problem: Mutex<Option<Problem>>,
}

impl Shared {
    fn in_effect(&self) -> MutexGuard<'_, (Arc<Config>, ConfigState)> {
        self.config.lock()
    }

    fn state(&self) -> DaemonState {
        let config = self.in_effect().1;
        DaemonState {
            config,
            web_config: self.access.get().and_then(|access| access.reload_state()),
            flights: self.flights.get().map(|flights| flights.counts()),
            otlp: self.chain_log.get().and_then(|log| log.counts()),
            peers: self.peers.counts(Instant::now()),
        }
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
    /// True while probes should be attached.
    enabled: AtomicBool,
    /// Live processes at the last evaluation.
    live: AtomicU64,
}

impl Daemon {
    /// Starts the probes.
    ///
    /// # Errors
    /// When this kernel cannot run them, or does not permit it.
    pub fn start(options: Options, config: Arc<Config>) -> Result<Self, DaemonError> {
        let since = monotonic_now();
        let (launch_ops, budget) = (config.launch_ops.0, config.probe.budget.0);
        let counting_limit = config.probe.counting_share();
        let options = Options {
            launch_ops,
            budget,
            counting_limit,
            disabled: !config.probe.enabled,
            without_single_steps: config.probe.leaves_single_steps_out(),
            calibrate: true,
            ..options
        };
        file_limits::require()?;
        warn_of_hazards();
        let obstacles = obstacles();
        for obstacle in &obstacles {
            tracing::warn!("processes of this host are not all observed: {}", obstacle.sentence());
        }
        let shared = Arc::new(Shared {
            probes: Probes::start(options)?,
            config: Mutex::default(),
            observing: Observing::new(obstacles),
            access: OnceLock::new(),
            flights: OnceLock::new(),
            chain_log: OnceLock::new(),
            peers: Arc::default(),
            problem: Mutex::default(),
        });
        let chains = Arc::new(Chains::of_this_host(
            config.chains.clone(),
            Box::new(ThreadSampler(Arc::clone(&shared))),
        ));
        let gpus = Arc::new(Gpus::default());
        let host = Host::new(Arc::clone(&shared), Arc::clone(&gpus));
        let observer = Observer::new(Pipeline::new(host, since), Arc::clone(&chains));
        let sampler = Sampler::start(observer)?;
        let (collectors, enabled) = (Collectors::default(), AtomicBool::new(true));
        let live = AtomicU64::new(0);
        let daemon = Self { sampler, shared, collectors, chains, gpus, enabled, live };
        daemon.configure(config);
        Ok(daemon)
    }

    /// Exports how reloads of the web configuration went. The first call counts.
    pub fn export_access(&self, access: &Arc<LiveWebConfig>) {
        self.shared.access.get_or_init(|| Arc::clone(access));
    }

    /// Exports the files of the flight recorder. The first call counts.
    pub fn export_flights(&self, flights: &Arc<FlightRecords>) {
        self.shared.flights.get_or_init(|| Arc::clone(flights));
    }

    /// Sends chains to the OTLP endpoint from now on; in the folder they wait for it. The first call counts.
    pub fn log_chains(&self, spool_dir: Option<PathBuf>) {
        let log = || Arc::new(ChainLog::new(node_name(), spool_dir));
        self.shared.chain_log.get_or_init(log).configure(&self.config().otlp);
    }

    /// Where chains are logged.
    #[must_use]
    pub fn chain_log(&self) -> Option<&Arc<ChainLog>> {
        self.shared.chain_log.get()
    }

    /// The ranks on other hosts.
    #[must_use]
    pub fn peers(&self) -> &Arc<PeerRanks> {
        &self.shared.peers
    }

    /// Exports metrics of the GPUs themselves as well.
    #[must_use]
    pub fn with_gpus(mut self, gpus: Gpus) -> Self {
        self.gpus = Arc::new(gpus);
        let gpus = Arc::clone(&self.gpus);
        self.sampler.submit(|observer| observer.source().gpus = gpus);
        self
    }

    /// The sources of metrics of the GPUs.
    #[must_use]
    pub fn gpus(&self) -> &Gpus {
        &self.gpus
    }

    /// Sets the address that it is served at, for commands of chains.
    pub(crate) fn set_url(&self, url: &str) {
        self.chains.set_url(url);
    }

    /// Applies another configuration from now on. The next sample is the first that uses it.
    pub fn configure(&self, config: Arc<Config>) {
        self.chains.set_settings(config.chains.clone());
        let probe = &config.probe;
        self.shared.probes.set_budget(probe.budget.0, probe.counting_share());
        self.set_enabled(config.probe.enabled, Switch::Configuration);
        if let Err(error) = self.shared.probes.set_launch_ops(&config.launch_ops.0) {
            tracing::warn!(%error, "cannot change the ops that count as launches");
        }
        let taken_at = WallClock::now().unix_seconds(monotonic_now());
        let state = ConfigState { successful: true, taken_at };
        if let Some(log) = self.chain_log() {
            log.configure(&config.otlp);
        }
        self.shared.peers.configure(&config.peers);
        let series = config.series();
        *self.shared.in_effect() = (config, state);
        self.sampler.submit(move |observer| observer.configure(&series));
    }

    fn set_enabled(&self, enabled: bool, switch: Switch) {
        if !enabled {
            self.shared.observing.set_switch(switch);
        }
        self.enabled.store(enabled, Ordering::Relaxed);
        self.shared.probes.set_enabled(enabled);
    }

    /// Detaches all probes at once, or attaches them again, until the configuration is reloaded.
    pub fn toggle(&self) {
        let enable = !self.enabled.load(Ordering::Relaxed);
        let action = if enable { "attaching all probes" } else { "detaching all probes" };
        tracing::warn!(signal = "SIGUSR1", "{action}");
        self.set_enabled(enable, Switch::Signal);
    }

    /// Shows on the live page what went wrong; the log has it too.
    pub fn show_problem(&self, what: impl Into<String>) {
        let at = WallClock::now().unix_seconds(monotonic_now());
        *self.problem_slot() = Some(Problem { at, what: what.into() });
    }

    fn problem_slot(&self) -> MutexGuard<'_, Option<Problem>> {
        self.shared.problem.lock()
    }

    /// A configuration was rejected: the page reports that.
    pub fn config_rejected(&self) {
        self.show_problem(
            "configuration reload failed; the previous configuration is still active",
        );
        self.shared.in_effect().1.successful = false;
    }

    /// The configuration in effect.
    #[must_use]
    pub fn config(&self) -> Arc<Config> {
        Arc::clone(&self.shared.in_effect().0)
    }

    /// The state of the probes.
    #[must_use]
    pub fn status(&self) -> Status {
        self.shared.probes.status()
    }

    /// Why nothing is observed although the probes are enabled; `None` if something is.
    #[must_use]
    pub fn why_nothing(&self) -> Option<String> {
        self.shared.observing.why_nothing(&self.status())
    }

    /// Returns whether processes are observed, and since when.
    #[must_use]
    pub fn observation_state(&self) -> ObservationState {
        self.shared.observing.update(&self.status())
    }

    /// Observes this host now.
    ///
    /// # Errors
    /// When a kernel map cannot be read.
    pub fn observe(&self) -> Result<Arc<Observation>, SampleError> {
        self.sampler.observe(monotonic_now())
    }

    /// Evaluates causal chains. To be called every [`EVALUATE_EVERY`](gpucause_observe::chains::EVALUATE_EVERY). Returns the accounts that were
    /// evaluated; `None` while no process is observed, which costs next to nothing.
    ///
    /// # Errors
    /// When a kernel map cannot be read.
    pub fn evaluate(&self) -> Result<Option<(Arc<Observation>, EngineInput)>, SampleError> {
        // Also when nothing is evaluated: these are shares of the time since the last call.
        let throttled_gpus = self.gpus.throttled();
        let Some(observation) = self.observe_between_pages()? else {
            self.end_chains();
            self.live.store(0, Ordering::Relaxed);
            return Ok(None);
        };
        self.live.store(observation.processes_live, Ordering::Relaxed);
        let input = engine_input(&observation, throttled_gpus);
        self.shared.peers.update(&input.snapshot, &observation.details);
        self.chains.set_peers(self.shared.peers.known(Instant::now()));
        let chains = self.chains.evaluate(&input);
        // An idle daemon need not wake the sampler for that.
        if input.snapshot.processes.iter().any(|process| process.ended.is_some()) {
            let snapshot = Arc::clone(&input.snapshot);
            self.sampler.submit(move |observer| observer.set_evaluated(&snapshot.processes));
        }
        if let Some(log) = self.chain_log() {
            log.record(&chains, |victim| victim_process(victim, &input.snapshot, &observation));
        }
        Ok(Some((observation, input)))
    }

    /// Logs only chains of these processes, and those that they cause; of none, all. The first call counts.
    pub fn log_only(&self, pids: &[u32]) {
        self.chains.log_only(pids);
    }

    /// Ends all chains: no process is observed any more. Blocks when they are logged.
    pub fn end_chains(&self) {
        let chains = self.chains.end();
        if let Some(log) = self.chain_log().filter(|_| !chains.is_empty()) {
            log.record(&chains, |_| None);
        }
    }

    /// Observes this host now; `None` while no process is observed, which costs next to nothing.
    ///
    /// # Errors
    /// When a kernel map cannot be read.
    pub fn observe_any(&self) -> Result<Option<Arc<Observation>>, SampleError> {
        let now = monotonic_now();
        self.sampler.call(move |observer| match observes_any(observer)? {
            true => Ok(Some(Arc::clone(&observer.observe(now)?.observation))),
            false => Ok(None),
        })
    }

    /// Does the same as [`observe_any`](Self::observe_any), but waits where it would delay a page: both have fixed intervals, so that an
    /// evaluation would otherwise fall on each page or on none.
    fn observe_between_pages(&self) -> Result<Option<Arc<Observation>>, SampleError> {
        let observed = self.sampler.call(|observer| {
            // Later than the call by the page that was made meanwhile.
            let now = monotonic_now();
            match observes_any(observer)? {
                true => {
                    let observed = observer.observe_between_pages(now)?;
                    Ok(observed.map(|explained| Some(Arc::clone(&explained.observation))))
                }
                false => Ok(Ok(None)),
            }
        })?;
        observed.or_else(|Nanos(wait)| {
            std::thread::sleep(Duration::from_nanos(wait));
            self.observe_any()
        })
    }

    /// The kernel functions that have names, by process and handle.
    ///
    /// # Errors
    /// When the sampler has failed.
    pub fn kernel_names(&self) -> Result<Vec<(ProcId, u64, Arc<str>)>, SampleError> {
        self.sampler.call(|observer| Ok(observer.kernel_names()))
    }

    /// The recorder of single events, which [`Options::recorder`] must have enabled.
    ///
    /// # Errors
    /// When this kernel cannot, or something failed.
    pub fn recorder(&self) -> Result<Recorder, RecorderError> {
        self.shared.probes.recorder()
    }

    /// The engine's results so far.
    #[must_use]
    pub fn findings(&self) -> Findings {
        self.chains.findings()
    }

    /// Names kernels while their processes live, and removes ended processes before the maps are full. To be called every
    /// [`REAP_EVERY`], scraped or not. Costs next to nothing while there is nothing to name or remove.
    ///
    /// # Errors
    /// When a kernel map cannot be read.
    pub fn reap(&self) -> Result<(), SampleError> {
        self.shared.observing.update(&self.status());
        self.sampler.call(|observer| {
            let launches = observer.source().shared.probes.launches()?;
            observer.name_launched(launches);
            let ended = observer.source().shared.probes.ended()?;
            observer.reap(monotonic_now(), &ended)
        })
    }
}

fn observes_any(observer: &mut Observer<Host>) -> Result<bool, ReadError> {
    observer.source().shared.probes.observes_any()
}

/// Kernels on which probes can harm what they observe.
fn warn_of_hazards() {
    for hazard in hazards_of_this_kernel().iter().filter(|h| h.severity == HazardSeverity::Warning)
    {
        tracing::warn!(hazard = hazard.name, "this kernel: {}; {}", hazard.harm, hazard.remedy);
    }
}

#[cfg(test)]
mod tests;
