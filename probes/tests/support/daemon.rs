//! The probes as the daemon runs them, and what they say of one process or library.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use gpucause_abi::op::op_of_symbol;
use gpucause_abi::snapshot::ProcessSnapshot;
use gpucause_probes::registry::{FileId, LibraryStatus, LibraryVerdict};
use gpucause_probes::{Options, Probes};

use super::guest::{forced_mode, is_emulated};

/// For what should happen within milliseconds, on a machine that is busy with other things.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// How much longer everything may take on an emulated processor.
const SLOWNESS: u32 = 30;

pub(crate) struct Daemon {
    pub(crate) probes: Probes,
}

/// Checks repeatedly until there is a result, or fails after `limit`.
pub(crate) fn eventually<T>(
    limit: Duration,
    what: &str,
    mut check: impl FnMut() -> Option<T>,
) -> T {
    let started = Instant::now();
    let limit = if is_emulated() { limit * SLOWNESS } else { limit };
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(started.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Daemon {
    /// Started, with all libraries attached that were in use.
    pub(crate) fn start() -> Self {
        Self::start_with(Options::default())
    }

    pub(crate) fn start_with(options: Options) -> Self {
        let options = Options { mode: options.mode.or_else(forced_mode), ..options };
        let probes = Probes::start(options).expect("needs root and a kernel with BTF");
        eventually(SOON, "the first scan", || probes.status().is_ready().then_some(()));
        assert!(probes.status().discovery.watching);
        Self { probes }
    }

    /// The library at a path that this process can see.
    pub(crate) fn library(&self, path: &Path) -> Option<LibraryStatus> {
        self.library_of(&path.metadata().expect("exists"))
    }

    /// The library with this device and inode.
    pub(crate) fn library_of(&self, file: &Metadata) -> Option<LibraryStatus> {
        let id = FileId { device: file.dev(), inode: file.ino() };
        self.probes.status().libraries.into_iter().find(|library| library.file == id)
    }

    /// The library, once it has probes.
    pub(crate) fn await_attached(&self, path: &Path) -> LibraryStatus {
        eventually(SOON, "an attached library", || {
            self.library(path).filter(|library| library.verdict == LibraryVerdict::Attached)
        })
    }

    /// Every account of a process.
    pub(crate) fn accounts(&self, pid: u32) -> Vec<ProcessSnapshot> {
        let snapshot = self.probes.snapshot().expect("readable maps");
        snapshot.processes.into_iter().filter(|process| process.tgid.0 == pid).collect()
    }

    /// Calls of a process that returned.
    pub(crate) fn calls(&self, pid: u32, function: &str) -> u64 {
        let op = op_of_symbol(function).expect("a traced function");
        self.accounts(pid).iter().map(|process| process.call_durations(op).count()).sum()
    }
}
