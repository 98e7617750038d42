//! The whole of it running: programs loaded, host programs attached, libraries found and attached to as they appear.

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use gpucause_abi::op::LaunchOps;
use gpucause_abi::snapshot::{HandleName, ProcessSnapshot, Snapshot};
use gpucause_abi::{Nanos, ProcId};

use crate::attach::CallProbes;
use crate::discovery::{Discovery, DiscoveryStatus};
use crate::feature::AttachMode;
use crate::op_table::OpTable;
use crate::program::{LoadError, Options, Programs};
use crate::reader::{ReadError, Reader};
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
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

/// What the discovery thread last told.
#[derive(Debug, Default)]
struct Told {
    libraries: Vec<LibraryStatus>,
    discovery: DiscoveryStatus,
    counts: RegistryCounts,
}

/// Programs in the kernel and a thread that attaches them. Dropping it leaves no probe behind.
#[derive(Debug)]
pub struct Probes {
    programs: Arc<Programs>,
    op_table: OpTable,
    reader: Reader,
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
    /// 5.15 or newer with BTF; 6.6 or newer for the privileges that the systemd unit has.
    pub fn start(options: Options) -> Result<Self, StartError> {
        let loaded = options.loaded;
        let mut programs = Programs::load(options)?;
        let (reports, adopts) = (programs.reports.take(), programs.adopts.take());
        let reader = Reader::new(&programs.object, reports, adopts)?;
        let op_table = OpTable::new(&programs)?;
        let programs = Arc::new(programs);
        let mut attacher = CallProbes::new(Arc::clone(&programs))?;
        let told = Arc::new(Mutex::new(Told::default()));
        let stop = Arc::new(StopSignal::new()?);
        let (telling, stopping) = (Arc::clone(&told), Arc::clone(&stop));
        let discovery = Discovery::new();
        if let Some(loaded) = loaded {
            loaded(programs.mode);
        }
        let finder = std::thread::Builder::new().name("gpucause-find".into()).spawn(move || {
            let mut registry = Registry::new(Limits::default());
            discovery.run(&mut registry, &mut attacher, &stopping, |registry, discovery| {
                let libraries = registry.libraries().collect();
                *lock(&telling) = Told { libraries, discovery, counts: registry.counts() };
            });
            registry.detach_all(&mut attacher);
        })?;
        Ok(Self { programs, op_table, reader, told, stop, finder: Some(finder) })
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

    /// How everything does.
    #[must_use]
    pub fn status(&self) -> Status {
        let told = lock(&self.told);
        Status {
            mode: self.programs.mode,
            programs: self.programs.statuses.clone(),
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

/// A panic elsewhere must not take the status down with it.
fn lock(told: &Mutex<Told>) -> MutexGuard<'_, Told> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}
