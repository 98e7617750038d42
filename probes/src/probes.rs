//! The whole of it running: programs loaded, host programs attached, libraries found and attached to as they appear.

use std::collections::HashSet;
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use gpucause_abi::op::LaunchOps;
use gpucause_abi::snapshot::{HandleName, ProcessSnapshot, Snapshot};
use gpucause_abi::{Nanos, ProcId};
use libbpf_rs::Link;

use crate::attach::CallProbes;
use crate::calibrate::hit_cost;
use crate::discovery::{Discovery, DiscoveryStatus};
use crate::feature::AttachMode;
use crate::finder::{Finder, Told, lock};
use crate::hazard::filtered_returns_kill;
use crate::launch_budget::HitCost;
use crate::launch_control::LaunchControl;
use crate::launch_modes::LaunchModes;
use crate::launch_states::LaunchStates;
use crate::op_table::OpTable;
use crate::orders::{Orders, Wanted};
use crate::program::{LoadError, Options, Programs};
use crate::reader::{ReadError, Reader};
use crate::recorder::{Recorder, RecorderError};
use crate::registry::{LibraryStatus, Limits, Registry, RegistryCounts};
use crate::stop::StopSignal;
use crate::verdict::ProgramStatus;

/// The probes could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The programs could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Their maps are not what they should be.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The system is out of threads or file descriptors.
    #[error("the thread that finds libraries could not be started: {0}")]
    Thread(#[from] io::Error),
}

/// How everything does.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// Whether there are probes; without, nothing is observed, and that is as it was asked for.
    pub enabled: bool,
    /// The least share of the time for which launches of any process are observed.
    pub duty_ratio: f64,
    /// The least share of any process's launches that are timed now.
    pub timed_share: f64,
    /// What a hit of a call probe costs, entry and return together; `None` where it was not measured.
    pub hit_cost: Option<Nanos>,
    /// The same of a call that the program leaves at entry.
    pub entry_cost: Option<Nanos>,
    /// How libraries are attached to.
    pub mode: AttachMode,
    /// The host-wide programs.
    pub programs: Vec<ProgramStatus>,
    /// Every library worth telling of.
    pub libraries: Vec<LibraryStatus>,
    /// How libraries are found.
    pub discovery: DiscoveryStatus,
    /// Totals of what was attached and turned away.
    pub counts: RegistryCounts,
}

impl Status {
    /// Whether the libraries that were in use at start have been attached to.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.discovery.scans > 0
    }
}

/// Programs in the kernel and a thread that attaches them. Dropping it leaves no probe behind.
#[derive(Debug)]
pub struct Probes {
    programs: Arc<Programs>,
    op_table: OpTable,
    reader: Arc<Reader>,
    hit_cost: Option<HitCost>,
    orders: Arc<Orders>,
    has_recorder: Arc<AtomicBool>,
    told: Arc<Mutex<Told>>,
    stop: Arc<StopSignal>,
    finder: Option<JoinHandle<()>>,
}

impl Probes {
    /// Loads, attaches to the scheduler, and starts to look for libraries. Those in use already are attached to soon
    /// after: see [`Status::is_ready`].
    ///
    /// # Errors
    /// When the kernel lacks what every program needs, or does not permit it. A single host program that is refused is no
    /// error: see [`Status::programs`].
    ///
    /// # Kernel
    /// 6.1 or newer with BTF; 6.6 or newer for the privileges that the systemd unit has.
    pub fn start(options: Options) -> Result<Self, StartError> {
        let loaded = options.loaded;
        let programs = Programs::load(options)?;
        let states = Arc::new(LaunchStates::default());
        let mut modes = LaunchModes::new(&programs.object)?;
        let reader = Arc::new(Reader::new(&programs.object, Arc::clone(&states))?);
        let op_table = OpTable::new(&programs)?;
        let programs = Arc::new(programs);
        let mut attacher = CallProbes::new(Arc::clone(&programs))?;
        reader.set_iterators(programs.attach_host_programs());
        let calibration = options
            .calibrate
            .then(|| calibrate(&programs, &reader, &attacher, &mut modes))
            .flatten();
        let (hit_cost, used_links) = calibration.unzip();
        let told = Arc::new(Mutex::new(Told::default()));
        let stop = Arc::new(StopSignal::new()?);
        let stopping = Arc::clone(&stop);
        let wanted = Wanted { enabled: !options.disabled, budget: options.budget };
        let orders = Arc::new(Orders::new(wanted)?);
        let chores = Finder {
            programs: Arc::clone(&programs),
            reader: Arc::clone(&reader),
            orders: Arc::clone(&orders),
            told: Arc::clone(&told),
            launches: LaunchControl::new(
                modes,
                Arc::clone(&reader),
                states,
                (hit_cost, options.step),
            ),
            // Host programs are; where nothing is wanted, they go before libraries are looked for.
            enabled: true,
            used_links: used_links.unwrap_or_default(),
        };
        let discovery = Discovery::new();
        if let Some(loaded) = loaded {
            loaded(programs.mode);
        }
        let finder = std::thread::Builder::new().name("gpucause-find".into()).spawn(move || {
            let mut registry = Registry::new(Limits::default());
            discovery.run(&mut registry, &mut attacher, &stopping, chores);
            registry.detach_all(&mut attacher);
        })?;
        let finder = Some(finder);
        let has_recorder = Arc::default();
        Ok(Self { programs, op_table, reader, hit_cost, orders, has_recorder, told, stop, finder })
    }

    /// Copies every account.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub fn snapshot(&self) -> Result<Snapshot, ReadError> {
        self.reader.snapshot()
    }

    /// Whether any process is or was observed.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn observes_any(&self) -> Result<bool, ReadError> {
        self.reader.observes_any()
    }

    /// Processes that have ended, oldest first, with the moment they ended on the monotonic clock; not the images that made
    /// calls before their process executed another.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn ended(&self) -> Result<Vec<(ProcId, Nanos)>, ReadError> {
        self.reader.ended()
    }

    /// Every process with its launches by kernel function and nothing else that is counted: cheaper than a snapshot.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub fn launches(&self) -> Result<Vec<ProcessSnapshot>, ReadError> {
        self.reader.launches()
    }

    /// What a process was told when it asked for the handle of a kernel; `None` for other handles.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn handle_name(&self, id: ProcId, handle: u64) -> Result<Option<HandleName>, ReadError> {
        self.reader.handle_name(id, handle)
    }

    /// Has the warm launches of a kernel function timed apart from now on, anew if they were, until the process is
    /// removed. False when there is no room for it, or the kernel refused the program that does it.
    ///
    /// # Errors
    /// When a map or the program cannot be reached.
    pub fn time_kernel(&self, id: ProcId, function: u64) -> Result<bool, ReadError> {
        self.reader.time_kernel(id, function)
    }

    /// Deletes every account of processes that have ended.
    ///
    /// # Errors
    /// When a map cannot be changed.
    pub fn remove(&self, ids: &HashSet<ProcId>) -> Result<(), ReadError> {
        self.reader.remove(ids)
    }

    /// From now on calls of these ops count as launches: they end launch gaps, and the next gap begins with their return.
    ///
    /// # Errors
    /// When the map cannot be changed.
    pub fn set_launch_ops(&self, ops: &LaunchOps) -> Result<(), ReadError> {
        let refused = |source| ReadError::Libbpf { map: "op_info", source };
        self.op_table.set_launch_ops(ops).map_err(refused)
    }

    /// What switches the recording of single events on and off and reads them. It records nothing yet.
    ///
    /// # Errors
    /// Apart when [`Options::recorder`] asks for no room, when there is one already, when this kernel has no means for it, and when
    /// something failed.
    pub fn recorder(&self) -> Result<Recorder, RecorderError> {
        Recorder::new(&self.programs.object, &self.programs.room, &self.has_recorder)
    }

    /// Takes all probes away, or puts them back, soon after. While there are none nothing is observed; processes then count as
    /// ended, and as new when they are seen again.
    pub fn set_enabled(&self, enabled: bool) {
        self.orders.change(|wanted| wanted.enabled = enabled);
    }

    /// From now on call probes may take this share of a thread's time; `None` for any.
    pub fn set_budget(&self, budget: Option<f64>) {
        self.orders.change(|wanted| wanted.budget = budget);
    }

    /// How everything does.
    #[must_use]
    pub fn status(&self) -> Status {
        let told = lock(&self.told);
        Status {
            enabled: told.enabled,
            duty_ratio: told.duty_ratio,
            timed_share: told.timed_share,
            hit_cost: self.hit_cost.map(|cost| cost.timed),
            entry_cost: self.hit_cost.map(|cost| cost.counted),
            mode: self.programs.mode,
            programs: self.programs.statuses(),
            libraries: told.libraries.clone(),
            discovery: told.discovery,
            counts: told.counts,
        }
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(finder) = self.finder.take()
            && finder.join().is_err()
        {
            tracing::error!("the thread that finds libraries had failed");
        }
    }
}

/// Measures what a hit costs, and leaves the accounts as if that had not been. Returns links to be closed.
fn calibrate(
    programs: &Programs,
    reader: &Reader,
    call_probes: &CallProbes,
    modes: &mut LaunchModes,
) -> Option<(HitCost, Vec<Link>)> {
    if filtered_returns_kill() {
        tracing::warn!(
            "what a hit of a call probe costs is not measured: this kernel has uretprobe_seccomp, and calls of the daemon itself could end it"
        );
        return None;
    }
    let began = Instant::now();
    let measured = hit_cost(call_probes, modes);
    let undone = programs.forget_tasks().map_err(ReadError::Reports);
    if let Err(error) = undone.and_then(|()| reader.end_rest()).and_then(|()| reader.remove_all()) {
        tracing::error!(%error, "the daemon's own calls stay in the accounts");
    }
    match measured {
        Ok((cost, links)) => {
            let (cost_ns, counted_ns) = (cost.timed.0, cost.counted.0);
            let seconds = began.elapsed().as_secs_f64();
            tracing::info!(cost_ns, counted_ns, seconds, "the cost of a probe hit was measured");
            Some((cost, links))
        }
        Err(error) => {
            tracing::warn!(%error, "what a hit of a call probe costs is not known");
            None
        }
    }
}
