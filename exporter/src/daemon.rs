//! The daemon between the probes and the page: what is kept of processes that ended, and what `/proc` says of them.

mod probe_states;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use gpucause_abi::snapshot::{HandleName, ProcessSnapshot};
use gpucause_abi::{Nanos, ProcId};
use gpucause_engine::Moment;
use gpucause_engine::chain::Chain;
use gpucause_engine::observation::ObservationState;
use gpucause_probes::hazard::{Gravity, hazards_of_this_kernel};
use gpucause_probes::host_functions::{FunctionName, HostFunctions};
use gpucause_probes::recorder::{Recorder, RecorderError};
use gpucause_probes::{Options, Probes, ReadError, StartError, Status};

use crate::chains::{Chains, Findings, moment};
use crate::clock::{WallClock, monotonic_now};
use crate::collector::{Collectors, FOREIGN, Selection};
use crate::config::Config;
use crate::family::Sink;
use crate::flight_recorder::FlightRecords;
use crate::gpus::Gpus;
use crate::kernel_names::{KernelNames, NameSource};
use crate::life_cycle::LifeCycle;
use crate::nvml::GpusByPid;
use crate::observation::{ConfigState, Observation};
use crate::observing::{Observing, Switch, is_all_broken};
use crate::process_details::{DetailsCache, ProcessDetails, is_running};
use crate::process_selection::ProcessSelection;
use crate::server::{LiveWebConfig, Readiness, ScrapeError, Source};
use crate::throttling::Throttling;
use crate::wait_names::WaitNames;
use probe_states::{attach_gaps, nvml_state, probe_states};

/// How often processes that ended are looked for when nobody scrapes.
pub const REAP_EVERY: Duration = Duration::from_secs(1);

/// What is remembered from scrape to scrape.
#[derive(Debug)]
struct Memory {
    selection: ProcessSelection,
    details: DetailsCache,
    life_cycle: LifeCycle,
    clock: WallClock,
    wait_names: WaitNames,
    throttling: Throttling,
    kernel_names: KernelNames,
    functions: HostFunctions,
    /// UUIDs of the GPUs that processes use.
    gpu_uuids: HashMap<ProcId, Arc<str>>,
}

impl Memory {
    /// Leaves out the processes that the configuration does not want; returns what is known of all, and how many that were.
    fn select(
        &mut self,
        processes: &mut Vec<ProcessSnapshot>,
    ) -> (HashMap<ProcId, Arc<ProcessDetails>>, u64) {
        let details = self.details.refresh(processes);
        let excluded = self.selection.apply(processes, &details);
        (details, excluded)
    }
}

/// Running probes, and everything that a page is made of.
#[derive(Debug)]
pub struct Daemon {
    probes: Probes,
    collectors: Collectors,
    chains: Chains,
    gpus: Gpus,
    memory: Mutex<Memory>,
    /// The configuration in effect, and how the last reload went. Apart, since the thread that serves asks for it: it must not wait
    /// for a scrape under way.
    config: Mutex<(Arc<Config>, ConfigState)>,
    since: Nanos,
    /// Whether there are to be probes.
    enabled: AtomicBool,
    observing: Observing,
    /// How the page's readers are let in.
    access: OnceLock<Arc<LiveWebConfig>>,
    /// What the flight recorder did, where there is one.
    flights: OnceLock<Arc<FlightRecords>>,
}

impl Daemon {
    /// Starts the probes.
    ///
    /// # Errors
    /// When this kernel cannot run them, or does not permit it.
    pub fn start(options: Options, config: Arc<Config>) -> Result<Self, StartError> {
        let since = monotonic_now();
        let (launch_ops, budget) = (config.launch_ops.0, config.probe.budget.0);
        let disabled = !config.probe.enabled;
        let options = Options { launch_ops, disabled, budget, calibrate: true, ..options };
        warn_of_hazards();
        let probes = Probes::start(options)?;
        let memory = Memory {
            selection: ProcessSelection::default(),
            details: DetailsCache::default(),
            life_cycle: LifeCycle::default(),
            clock: WallClock::now(),
            wait_names: WaitNames::default(),
            throttling: Throttling::default(),
            kernel_names: KernelNames::default(),
            functions: HostFunctions::default(),
            gpu_uuids: HashMap::new(),
        };
        let chains = Chains::of_this_host(config.chains.clone());
        let memory = Mutex::new(memory);
        let (collectors, gpus) = (Collectors::default(), Gpus::default());
        let (access, flights) = (OnceLock::new(), OnceLock::new());
        let (enabled, observing) = (AtomicBool::new(true), Observing::new());
        let in_effect = Mutex::default();
        let daemon = Self {
            probes,
            collectors,
            chains,
            gpus,
            memory,
            config: in_effect,
            since,
            enabled,
            observing,
            access,
            flights,
        };
        daemon.configure(config);
        Ok(daemon)
    }

    /// Has the page tell how its readers are let in. The first call counts.
    pub fn tell_of(&self, access: &Arc<LiveWebConfig>) {
        self.access.get_or_init(|| Arc::clone(access));
    }

    /// Has the page tell what the flight recorder did. The first call counts.
    pub fn tell_of_flights(&self, flights: &Arc<FlightRecords>) {
        self.flights.get_or_init(|| Arc::clone(flights));
    }

    /// Tells also of the GPUs themselves.
    #[must_use]
    pub fn with_gpus(self, gpus: Gpus) -> Self {
        Self { gpus, ..self }
    }

    /// Where what is told of the GPUs comes from.
    #[must_use]
    pub const fn gpus(&self) -> &Gpus {
        &self.gpus
    }

    /// Goes by another configuration from now on. Waits for a scrape under way.
    pub fn configure(&self, config: Arc<Config>) {
        self.chains.set_settings(config.chains.clone());
        self.probes.set_budget(config.probe.budget.0);
        self.set_enabled(config.probe.enabled, Switch::Configuration);
        let mut memory = self.memory();
        if let Err(error) = self.probes.set_launch_ops(&config.launch_ops.0) {
            tracing::warn!(%error, "the ops that count as launches stay as they were");
        }
        memory.life_cycle.retention.set_policy(config.retention_policy());
        memory.selection.set_filter(&config.processes);
        memory.life_cycle.folding.set_limit(config.limits.live_processes);
        memory.clock = memory.clock.refreshed();
        let taken_at = memory.clock.unix_seconds(monotonic_now());
        *self.in_effect() = (config, ConfigState { successful: true, taken_at });
    }

    fn set_enabled(&self, enabled: bool, switch: Switch) {
        if !enabled {
            self.observing.set_switch(switch);
        }
        self.enabled.store(enabled, Ordering::Relaxed);
        self.probes.set_enabled(enabled);
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
        self.in_effect().1.successful = false;
    }

    /// The configuration in effect.
    #[must_use]
    pub fn config(&self) -> Arc<Config> {
        Arc::clone(&self.in_effect().0)
    }

    /// How the probes do.
    #[must_use]
    pub fn status(&self) -> Status {
        self.probes.status()
    }

    /// Whether processes are observed, and since when.
    #[must_use]
    pub fn observation_state(&self) -> ObservationState {
        self.observing.update(&self.status())
    }

    /// Copies the accounts, drops those whose time is over, and adds what else is known.
    ///
    /// # Errors
    /// When a kernel map cannot be read.
    pub fn observe(&self) -> Result<Observation, ReadError> {
        let mut memory = self.memory();
        let mut snapshot = self.probes.snapshot()?;
        memory.clock = memory.clock.refreshed();
        self.drop_ended(&mut memory, snapshot.taken_at, &mut snapshot.processes)?;
        let (details, excluded) = memory.select(&mut snapshot.processes);
        let live = snapshot.processes.iter().filter(|process| process.ended.is_none()).count();
        let folded = memory.life_cycle.page(&mut snapshot.processes);
        self.name_kernels(&mut memory, &snapshot.processes);
        let kernels = memory.kernel_names.launches(&snapshot.processes);
        self.time_kernels(&mut memory, &snapshot.processes);
        let (config, config_state) = self.in_effect().clone();
        let with_waits = snapshot.processes.iter().chain(&folded);
        let waits = memory.wait_names.update(with_waits, config.limits.wait_names);
        let throttled = memory.throttling.refresh(&snapshot.processes);
        let gpus = self.gpus.view();
        keep_gpus(&mut memory.gpu_uuids, &gpus.gpus_by_pid, &snapshot.processes);
        let status = self.probes.status();
        let mut observation = Observation::new(snapshot, self.since, memory.clock);
        observation.state = self.observing.update(&status);
        observation.details = details;
        observation.probes = probe_states(&status);
        observation.attach_gaps = attach_gaps(&status.libraries);
        observation.hit_cost = status.hit_cost;
        observation.entry_cost = status.entry_cost;
        observation.duty_ratio = status.duty_ratio;
        observation.mmap_events_lost = status.discovery.lost_events;
        observation.processes_excluded = excluded;
        observation.config = config_state;
        observation.processes_live = live as u64;
        observation.processes_folded = memory.life_cycle.folded();
        observation.waits = waits;
        observation.throttled = throttled;
        observation.wait_names_folded = memory.wait_names.folded();
        observation.kernels = kernels;
        observation.kernel_names_folded = memory.kernel_names.folded();
        observation.folded = folded;
        observation.findings = self.chains.findings();
        observation.web_config = self.access.get().and_then(|access| access.reload_state());
        observation.flights = self.flights.get().map(|flights| flights.told());
        observation.gpu_uuids.clone_from(&memory.gpu_uuids);
        observation.probes.extend(gpus.nvml.as_ref().map(nvml_state));
        observation.gpus = gpus;
        Ok(observation)
    }

    /// Looks for causal chains. To be called every [`LOOK_EVERY`](crate::chains::LOOK_EVERY). Costs next to nothing while
    /// no process is observed.
    ///
    /// # Errors
    /// When a kernel map cannot be read.
    pub fn look(&self) -> Result<(), ReadError> {
        self.looked(|_| ()).map(|_| ())
    }

    /// Looks, and returns what it looked at; `None` while no process is observed.
    ///
    /// # Errors
    /// When a kernel map cannot be read.
    pub fn look_at(&self) -> Result<Option<Moment>, ReadError> {
        self.looked(Moment::clone)
    }

    fn looked<T>(&self, keep: impl FnOnce(&Moment) -> T) -> Result<Option<T>, ReadError> {
        // Asked also when nothing is looked at: what it tells is of the time since the last look.
        let throttled_gpus = self.gpus.throttled();
        if !self.probes.observes_any()? {
            self.chains.end();
            return Ok(None);
        }
        let moment = self.accounts(throttled_gpus)?;
        let kept = keep(&moment);
        self.chains.look(moment);
        Ok(Some(kept))
    }

    /// What a look would look at now, but for what GPUs tell of themselves; `None` while no process is observed. It is no look:
    /// no chain comes of it.
    ///
    /// # Errors
    /// When a kernel map cannot be read.
    pub fn moment(&self) -> Result<Option<Moment>, ReadError> {
        if !self.probes.observes_any()? {
            return Ok(None);
        }
        self.accounts(HashMap::new()).map(Some)
    }

    fn accounts(&self, throttled_gpus: HashMap<String, f64>) -> Result<Moment, ReadError> {
        let (snapshot, details, clock, throttled) = {
            // Before the copy is made: who is told apart is decided on one copy after the other.
            let mut memory = self.memory();
            let mut snapshot = self.probes.snapshot()?;
            let (details, _) = memory.select(&mut snapshot.processes);
            memory.life_cycle.folding.assign(&snapshot.processes);
            memory.life_cycle.folding.leave_untold(&mut snapshot.processes);
            memory.clock = memory.clock.refreshed();
            let throttled = memory.throttling.refresh(&snapshot.processes);
            (snapshot, details, memory.clock, throttled)
        };
        Ok(moment(snapshot, &details, clock, throttled, throttled_gpus))
    }

    /// What is known of the processes that were looked at last.
    #[must_use]
    pub fn details(&self) -> HashMap<ProcId, Arc<ProcessDetails>> {
        self.memory().details.known().clone()
    }

    /// The kernel functions that have names, by process and handle.
    #[must_use]
    pub fn kernel_names(&self) -> Vec<(ProcId, u64, Arc<str>)> {
        self.memory().kernel_names.names()
    }

    /// What records single events, which [`Options::recorder`] must have asked for.
    ///
    /// # Errors
    /// When this kernel cannot, or something failed.
    pub fn recorder(&self) -> Result<Recorder, RecorderError> {
        self.probes.recorder()
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
    pub fn reap(&self) -> Result<(), ReadError> {
        self.observing.update(&self.status());
        let mut memory = self.memory();
        let mut launches = self.probes.launches()?;
        memory.select(&mut launches);
        memory.life_cycle.folding.assign(&launches);
        memory.life_cycle.folding.leave_untold(&mut launches);
        self.name_kernels(&mut memory, &launches);
        self.time_kernels(&mut memory, &launches);
        let ended = self.probes.ended()?;
        if !memory.life_cycle.has_excess(monotonic_now(), &ended) {
            return Ok(());
        }
        let mut snapshot = self.probes.snapshot()?;
        self.drop_ended(&mut memory, snapshot.taken_at, &mut snapshot.processes)
    }

    /// Finds out what is launched.
    fn name_kernels(&self, memory: &mut Memory, processes: &[ProcessSnapshot]) {
        let mut names = Names { probes: &self.probes, functions: &mut memory.functions };
        memory.kernel_names.update(processes, &mut names);
    }

    /// Has the launches of the hottest kernels timed.
    fn time_kernels(&self, memory: &mut Memory, processes: &[ProcessSnapshot]) {
        for (id, handle, name) in memory.kernel_names.untimed(processes) {
            match self.probes.time_kernel(id, handle) {
                Ok(true) => memory.kernel_names.timed(id, handle, name),
                Ok(false) => {}
                Err(error) => tracing::debug!(%error, "launches of a kernel are not timed"),
            }
        }
    }

    fn drop_ended(
        &self,
        memory: &mut Memory,
        now: Nanos,
        processes: &mut Vec<ProcessSnapshot>,
    ) -> Result<(), ReadError> {
        let due = memory.life_cycle.due(now, processes);
        self.probes.remove(&due.gone)?;
        let (selection, details) = (&mut memory.selection, memory.details.known());
        let admits = |process: &ProcessSnapshot| selection.admits(process, details);
        let folded = memory.life_cycle.remove(&due, processes, admits);
        if !folded.is_empty() {
            self.chains.fold(&folded);
        }
        Ok(())
    }

    /// To be held for no longer than a copy takes.
    fn in_effect(&self) -> MutexGuard<'_, (Arc<Config>, ConfigState)> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Names from the kernel maps and from the files of processes.
struct Names<'a> {
    probes: &'a Probes,
    functions: &'a mut HostFunctions,
}

impl NameSource for Names<'_> {
    fn handle_name(&mut self, id: ProcId, handle: u64) -> Option<HandleName> {
        self.probes.handle_name(id, handle).unwrap_or_else(|error| {
            tracing::debug!(%error, "a kernel stays without name");
            None
        })
    }

    fn function_names(
        &mut self,
        process: &ProcessSnapshot,
        addresses: &[u64],
    ) -> BTreeMap<u64, FunctionName> {
        if process.ended.is_some() {
            return BTreeMap::new();
        }
        let names = self.functions.names(process.tgid, addresses).unwrap_or_else(|error| {
            tracing::debug!(pid = process.tgid.0, %error, "kernels stay without name");
            BTreeMap::new()
        });
        // Asked last: had the PID been reused before or during the reads, it would show here.
        if is_running(process.tgid, process.started_boottime) { names } else { BTreeMap::new() }
    }
}

impl Source for Daemon {
    fn collectors(&self) -> Vec<&'static str> {
        self.collectors.names()
    }

    fn scrape(&self, selection: &Selection, page: &mut dyn Sink) -> Result<(), ScrapeError> {
        let observation = self.observe().map_err(|error| ScrapeError(Box::new(error)))?;
        self.collectors.write(&observation, selection, page)?;
        if selection.includes(FOREIGN) {
            page.foreign(&observation.gpus.families)?;
        }
        Ok(())
    }

    fn chains(&self) -> Vec<Chain> {
        self.chains.chains()
    }

    fn observation(&self) -> ObservationState {
        self.observation_state()
    }

    fn ready(&self) -> Readiness {
        let status = self.probes.status();
        self.observing.update(&status);
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

/// The driver forgets a process with its end, and we do not: its series must keep their labels.
fn keep_gpus(
    known: &mut HashMap<ProcId, Arc<str>>,
    gpus_by_pid: &GpusByPid,
    processes: &[ProcessSnapshot],
) {
    let keep = |process: &ProcessSnapshot| {
        let now = gpus_by_pid.get(&process.tgid.0).filter(|_| process.ended.is_none());
        Some((process.id, Arc::clone(now.or_else(|| known.get(&process.id))?)))
    };
    *known = processes.iter().filter_map(keep).collect();
}

#[cfg(test)]
mod tests;
