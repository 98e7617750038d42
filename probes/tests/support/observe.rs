//! The probes under test, and waiting for what they come to know.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use gpucause_abi::ProcId;
use gpucause_abi::op::OpId;
use gpucause_abi::record::SelfCounter;
use gpucause_abi::snapshot::{HandleName, MapUsage, ProcessSnapshot, Snapshot};
use gpucause_probes::recorder::{Recorder, RecorderError};
use gpucause_probes::registry::LibraryVerdict;
use gpucause_probes::samples::Sampler;
use gpucause_probes::verdict::{ProgramStatus, ProgramVerdict};
use gpucause_probes::{Options, Probes, Status};

use crate::guest::forced_mode;
use crate::workload::{StandIns, deadline};

/// Locked by each test, in any checkout: what one loads onto the CPUs would disturb what another measures. Those that `.ci/test` runs
/// beside others share it.
fn alone() -> Result<File> {
    let path = std::env::temp_dir().join("gpucause-test-alone");
    let file = File::create(&path).with_context(|| path.display().to_string())?;
    let beside = std::env::var_os("GPUCAUSE_TEST_BESIDE").is_some();
    let locked = if beside { file.lock_shared() } else { file.lock() };
    locked.with_context(|| path.display().to_string())?;
    Ok(file)
}

/// Running probes. They see the whole host, so every question names a process.
pub(crate) struct Observed {
    probes: Arc<Probes>,
    _alone: File,
}

/// Tests of a process without options share one: a load takes half a second, and a minute where a CPU is emulated. It goes with the
/// process.
static SHARED: Mutex<Option<Arc<Probes>>> = Mutex::new(None);

/// Detaches what is shared: left to the kernel, each of its links would wait for a grace period of its own.
extern "C" fn end_shared() {
    drop(SHARED.lock().unwrap_or_else(PoisonError::into_inner).take());
}

fn load(options: Options) -> Result<Probes> {
    let options = Options { mode: options.mode.or_else(forced_mode), ..options };
    Probes::start(options).context("these tests need root and a kernel with BTF")
}

impl Observed {
    pub(crate) fn start(options: Options) -> Result<Self> {
        let alone = alone()?;
        let is_shared = format!("{options:?}") == format!("{:?}", Options::default());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(probes) = shared.as_ref().filter(|_| is_shared) {
            return Ok(Self { probes: Arc::clone(probes), _alone: alone });
        }
        *shared = None;
        let probes = Arc::new(load(options)?);
        if is_shared {
            *shared = Some(Arc::clone(&probes));
            #[expect(unsafe_code, reason = "nothing of std runs at the end of a process")]
            // SAFETY: the function takes nothing and does not unwind into its caller.
            unsafe {
                libc::atexit(end_shared)
            };
        }
        drop(shared);
        Ok(Self { probes, _alone: alone })
    }

    /// Probes that no other test has: maps are empty, and what is set stays in the test.
    pub(crate) fn start_own(options: Options) -> Result<Self> {
        let alone = alone()?;
        end_shared();
        Ok(Self { probes: Arc::new(load(options)?), _alone: alone })
    }

    pub(crate) fn status(&self) -> Status {
        self.probes.status()
    }

    pub(crate) fn set_budget(&self, budget: Option<f64>) {
        self.probes.set_budget(budget, 0.0);
    }

    pub(crate) fn set_limits(&self, budget: f64, counting: f64) {
        self.probes.set_budget(Some(budget), counting);
    }

    pub(crate) fn sampler(&self) -> &Sampler {
        self.probes.sampler()
    }

    pub(crate) fn set_enabled(&self, enabled: bool) {
        self.probes.set_enabled(enabled);
    }

    /// Returns the status of each host-wide program.
    pub(crate) fn programs(&self) -> Vec<ProgramStatus> {
        self.probes.status().programs
    }

    /// Makes sure that these programs run, as they do on every kernel that has their tracepoints; that a kernel lacks one is
    /// reported here rather than by what is missing from the accounts.
    pub(crate) fn expect_programs(&self, names: &[&str]) -> Result<()> {
        let programs = self.programs();
        for name in names {
            let found = programs.iter().find(|status| status.program == *name);
            let verdict = &found.with_context(|| format!("no program {name}"))?.verdict;
            ensure!(*verdict == ProgramVerdict::Attached, "program {name}: {verdict:?}");
        }
        Ok(())
    }

    /// Waits until this stand-in library, which a process maps, has probes.
    pub(crate) fn wait_for(&self, stand_ins: &StandIns, library: &str) -> Result<()> {
        let path = stand_ins.dir().join(library);
        let attached = |path: &Path| {
            let libraries = self.probes.status().libraries;
            libraries
                .iter()
                .any(|known| known.path == path && known.verdict == LibraryVerdict::Attached)
        };
        until(
            || Ok(attached(&path).then_some(())),
            || {
                format!(
                    "{} has no probes; known: {:#?}",
                    path.display(),
                    self.probes.status().libraries
                )
            },
        )
    }

    /// Waits until `libcudart.so.12` has probes.
    pub(crate) fn wait_for_runtime(&self, stand_ins: &StandIns) -> Result<()> {
        self.wait_for(stand_ins, "libcudart.so.12")
    }

    pub(crate) fn snapshot(&self) -> Result<Snapshot> {
        Ok(self.probes.snapshot()?)
    }

    /// Every image that ran under this process number, oldest first.
    pub(crate) fn images(&self, pid: u32) -> Result<Vec<ProcessSnapshot>> {
        let mut images = self.snapshot()?.processes;
        images.retain(|process| process.tgid.0 == pid);
        images.sort_by_key(|process| process.first_seen);
        Ok(images)
    }

    /// The only image that ran under this process number.
    pub(crate) fn process(&self, pid: u32) -> Result<ProcessSnapshot> {
        let mut images = self.images(pid)?;
        match (images.pop(), images.is_empty()) {
            (Some(only), true) => Ok(only),
            (None, _) => bail!("process {pid} is not known"),
            (Some(_), false) => bail!("process {pid} has {} images", images.len() + 1),
        }
    }

    pub(crate) fn counter(&self, counter: SelfCounter) -> Result<u64> {
        let counters = self.snapshot()?.counters;
        let found = counters.into_iter().find(|&(known, _)| known == counter);
        Ok(found.with_context(|| format!("no counter {}", counter.label()))?.1)
    }

    pub(crate) fn usage(&self, map: &str) -> Result<MapUsage> {
        let maps = self.snapshot()?.maps;
        maps.into_iter().find(|usage| usage.map == map).with_context(|| format!("no map {map}"))
    }

    pub(crate) fn handle_name(&self, id: ProcId, handle: u64) -> Result<Option<HandleName>> {
        Ok(self.probes.handle_name(id, handle)?)
    }

    pub(crate) fn time_kernel(&self, id: ProcId, function: u64) -> Result<bool> {
        Ok(self.probes.time_kernel(id, function)?)
    }

    pub(crate) fn recorder(&self) -> Result<Recorder, RecorderError> {
        self.probes.recorder()
    }

    pub(crate) fn remove(&self, ids: &HashSet<ProcId>) -> Result<()> {
        Ok(self.probes.remove(ids)?)
    }
}

/// Polls until there is an answer; `what` says what is missing when it does not come in time.
pub(crate) fn until<T>(
    mut check: impl FnMut() -> Result<Option<T>>,
    what: impl FnOnce() -> String,
) -> Result<T> {
    let started = Instant::now();
    loop {
        if let Some(found) = check()? {
            return Ok(found);
        }
        if started.elapsed() >= deadline() {
            bail!("not within {:?}: {}", deadline(), what());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// How many calls of each op the histograms of a process hold, cold and warm together.
pub(crate) fn counted(process: &ProcessSnapshot) -> BTreeMap<OpId, u64> {
    let mut counted = BTreeMap::new();
    for call in &process.calls {
        *counted.entry(call.op).or_default() += call.durations.count();
    }
    counted
}
