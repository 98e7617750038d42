//! The running probes: programs loaded, host programs attached, libraries attached to as they appear.

use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::Instant;

use gpucause_abi::Nanos;
use gpucause_abi::op::LaunchOps;
use libbpf_rs::Link;
use parking_lot::Mutex;

use crate::attach::CallProbes;
use crate::attacher::{Attacher, AttacherStatus};
use crate::calibrate::hit_costs;
use crate::desired_state::{DesiredState, DesiredStateCell};
use crate::discovery::{Discovery, DiscoveryStatus};
use crate::feature::AttachMode;
use crate::hazard::filtered_returns_kill;
use crate::hit_cost::HitCosts;
use crate::launch_control::LaunchControl;
use crate::launch_control::modes::LaunchModes;
use crate::launch_control::overspent::Overspent;
use crate::launch_states::LaunchStates;
use crate::load_error::LoadError;
use crate::op_table::OpTable;
use crate::program::{Options, Programs};
use crate::reader::{ReadError, Reader};
use crate::recorder::{Recorder, RecorderError};
use crate::registry::{LibraryStatus, Limits, Registry, RegistryCounts};
use crate::samples::{ClockEvents, Sampler};
use crate::stop::StopSignal;
use crate::thread_records::{CallTotals, RecordWatch, ThreadRecords};
use crate::verdict::{ProgramStatus, ProgramVerdict};

/// The probes could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The programs could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Their maps are not as expected.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The system is out of threads or file descriptors.
    #[error("cannot start the thread that attaches to libraries: {0}")]
    Thread(#[from] io::Error),
}

/// The state of all probes.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// True while probes are enabled; when disabled, nothing is observed.
    pub enabled: bool,
    /// The least share of the time for which launches of any process are observed.
    pub duty_ratio: f64,
    /// The least share of any process's launches that are timed now.
    pub timed_share: f64,
    /// Cost of a call probe hit, entry and return together; `None` when not measured.
    pub hit_cost: Option<Nanos>,
    /// Cost of a hit without a return probe.
    pub entry_cost: Option<Nanos>,
    /// Additional cost of a hit on an instruction that the kernel single-steps.
    pub step_cost: Option<Nanos>,
    /// How libraries are attached to.
    pub mode: AttachMode,
    /// The host-wide programs.
    pub programs: Vec<ProgramStatus>,
    /// Availability of thread records.
    pub thread_records: ThreadRecords,
    /// Reported libraries.
    pub libraries: Vec<LibraryStatus>,
    /// How libraries are found.
    pub discovery: DiscoveryStatus,
    /// Totals of attached and rejected files.
    pub counts: RegistryCounts,
}

impl Status {
    /// Returns true once the libraries in use at start have been attached to.
    pub fn is_ready(&self) -> bool {
        self.discovery.scans > 0
    }
}

/// The programs in the kernel and the thread that attaches them. Drop detaches everything.
#[derive(Debug)]
pub struct Probes {
    /// Before the programs that it runs.
    sampler: Sampler,
    programs: Arc<Programs>,
    op_table: OpTable,
    reader: Arc<Reader>,
    hit_costs: Option<HitCosts>,
    record_watch: RecordWatch,
    desired: Arc<DesiredStateCell>,
    has_recorder: Arc<AtomicBool>,
    status: Arc<Mutex<AttacherStatus>>,
    stop: Arc<StopSignal>,
    attacher_thread: Option<JoinHandle<()>>,
}

impl Probes {
    /// Loads, attaches to the scheduler, and starts library discovery. Libraries already in use are attached to soon
    /// after: see [`Status::is_ready`].
    ///
    /// # Errors
    /// When the kernel lacks what every program needs, or does not permit it. A rejected host program is no error: see
    /// [`Status::programs`].
    ///
    /// # Kernel
    /// 6.1 or newer with BTF; 6.6 or newer for the privileges that the systemd unit has.
    pub fn start(options: Options) -> Result<Self, StartError> {
        let loaded = options.loaded;
        let events = ClockEvents::open(options.samples_by_timers);
        let programs = Programs::load(options, events.program())?;
        let states = Arc::new(LaunchStates::default());
        let mut modes = LaunchModes::new(&programs.object)?;
        let overspent = Overspent::new(&programs.object)?;
        let reader = Arc::new(Reader::new(&programs.object, Arc::clone(&states))?);
        let op_table = OpTable::of(&programs.object)?;
        let programs = Arc::new(programs);
        let attacher = CallProbes::new(Arc::clone(&programs))?;
        reader.set_iterators(programs.attach_host_programs());
        let sampler = Sampler::new(&programs, events);
        let single_steps = !options.without_single_steps;
        let calibration = options
            .calibrate
            .then(|| calibrate(&programs, &reader, (&attacher, single_steps), &mut modes));
        let (calibration, totals) = calibration.unwrap_or_default();
        let (measured, used_links) = calibration.unzip();
        let hit_costs = options.hit_cost.map(HitCosts::of).or(measured);
        if let Some(costs) = hit_costs {
            reader.set_costs(costs);
        }
        let status = Arc::new(Mutex::new(AttacherStatus::default()));
        let stop = Arc::new(StopSignal::new()?);
        let stopping = Arc::clone(&stop);
        let desired = DesiredState {
            enabled: !options.disabled,
            budget: options.budget,
            counting_limit: options.counting_limit,
        };
        let desired = Arc::new(DesiredStateCell::new(desired)?);
        let tasks = Attacher {
            programs: Arc::clone(&programs),
            reader: Arc::clone(&reader),
            desired: Arc::clone(&desired),
            status: Arc::clone(&status),
            launches: LaunchControl::new(
                (modes, overspent),
                Arc::clone(&reader),
                states,
                (hit_costs, options.step),
            ),
            // Host programs are attached; when disabled at start, the first tick detaches them.
            enabled: true,
            used_links: used_links.unwrap_or_default(),
        };
        let discovery = Discovery::new();
        if let Some(loaded) = loaded {
            loaded(programs.mode);
        }
        let attacher_thread =
            std::thread::Builder::new().name("gpucause-find".into()).spawn(move || {
                let limits = Limits { single_steps, ..Limits::default() };
                let mut registry = Registry::new(limits, attacher);
                discovery.run(&mut registry, &stopping, tasks);
                registry.detach_all();
            })?;
        let attacher_thread = Some(attacher_thread);
        let has_recorder = Arc::default();
        Ok(Self {
            sampler,
            programs,
            op_table,
            reader,
            hit_costs,
            record_watch: RecordWatch::new(totals),
            desired,
            has_recorder,
            status,
            stop,
            attacher_thread,
        })
    }

    /// Sets the ops that count as launches: they end a launch gap, and the next gap starts at their return.
    ///
    /// # Errors
    /// When the map cannot be changed.
    pub fn set_launch_ops(&self, ops: &LaunchOps) -> Result<(), ReadError> {
        let refused = |source| ReadError::Libbpf("op_info", source);
        self.op_table.set_launch_ops(ops).map_err(refused)
    }

    /// The event recorder, initially off.
    ///
    /// # Errors
    /// A variant each for: [`Options::recorder`] not set, already in use, not supported by this kernel, failure.
    pub fn recorder(&self) -> Result<Recorder, RecorderError> {
        Recorder::new(&self.programs.object, &self.programs.recorder_support, &self.has_recorder)
    }

    /// Samples stacks of single threads, initially of none.
    pub fn sampler(&self) -> &Sampler {
        &self.sampler
    }

    /// Attaches or detaches all probes, soon after the call. While detached nothing is observed: processes count as ended, and
    /// as new when seen again.
    pub fn set_enabled(&self, enabled: bool) {
        self.desired.update(|desired| desired.enabled = enabled);
    }

    /// Sets the share of a thread's time that call probes may take; `None` for no limit. `counting_limit` is what they may take
    /// while they only count.
    pub fn set_budget(&self, budget: Option<f64>, counting_limit: f64) {
        self.desired.update(|desired| {
            (desired.budget, desired.counting_limit) = (budget, counting_limit);
        });
    }

    /// One of each program: that which samples stacks is among the others where the kernel rejected it.
    fn program_statuses(&self, enabled: bool) -> Vec<ProgramStatus> {
        let mut statuses = self.programs.statuses();
        let mut sampler = self.sampler.status();
        if statuses.iter().any(|own| own.program == sampler.program) {
            return statuses;
        }
        if !enabled && sampler.verdict == ProgramVerdict::Attached {
            sampler.verdict = ProgramVerdict::Disabled;
        }
        statuses.push(sampler);
        statuses
    }

    /// The state of all probes.
    pub fn status(&self) -> Status {
        let totals = self.reader.call_totals().unwrap_or_default();
        let thread_records = self.record_watch.update(totals, Instant::now());
        let status = self.status.lock();
        Status {
            enabled: status.enabled,
            duty_ratio: status.duty_ratio,
            timed_share: status.timed_share,
            hit_cost: self.hit_costs.map(|costs| costs.cold.timed),
            entry_cost: self.hit_costs.map(|costs| costs.cold.counted),
            step_cost: self.hit_costs.map(|costs| costs.cold.stepped),
            mode: self.programs.mode,
            programs: self.program_statuses(status.enabled),
            thread_records,
            libraries: status.libraries.clone(),
            discovery: status.discovery,
            counts: status.counts,
        }
    }
}

/// The accounts are read through the reader.
impl Deref for Probes {
    type Target = Reader;

    fn deref(&self) -> &Reader {
        &self.reader
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(attacher_thread) = self.attacher_thread.take()
            && attacher_thread.join().is_err()
        {
            tracing::error!("the thread that attaches to libraries panicked");
        }
    }
}

/// Measures the cost of a hit and removes the daemon's own calls from the accounts. Returns links to close, and what its calls
/// came to.
fn calibrate(
    programs: &Programs,
    reader: &Reader,
    call_probes: (&CallProbes, bool),
    modes: &mut LaunchModes,
) -> (Option<(HitCosts, Vec<Link>)>, CallTotals) {
    if filtered_returns_kill() {
        tracing::warn!(
            "probe cost is not measured: this kernel has the hazard uretprobe_seccomp, which could kill the daemon"
        );
        return Default::default();
    }
    let began = Instant::now();
    let measured = hit_costs(call_probes, modes, reader);
    let totals = reader.call_totals().unwrap_or_default();
    let undone = programs.forget_tasks().map_err(ReadError::Reports);
    if let Err(error) = undone.and_then(|()| reader.end_rest()).and_then(|()| reader.remove_all()) {
        tracing::error!(%error, "the daemon's own calls stay in the accounts");
    }
    let measured = match measured {
        Ok((costs, links)) => {
            let (cost_ns, counted_ns) = (costs.cold.timed.0, costs.cold.counted.0);
            let (warm_cost_ns, warm_counted_ns) = (costs.warm.timed.0, costs.warm.counted.0);
            let seconds = began.elapsed().as_secs_f64();
            tracing::info!(
                cost_ns,
                counted_ns,
                warm_cost_ns,
                warm_counted_ns,
                lookups = ?costs.lookups,
                seconds,
                "probe cost measured"
            );
            Some((costs, links))
        }
        Err(error) => {
            tracing::warn!(%error, "cannot measure the probe cost");
            None
        }
    };
    (measured, totals)
}
