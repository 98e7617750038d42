//! Polls the NVIDIA driver on a thread of its own. The driver may block: no scrape waits for that thread, and the last sample is
//! exported until it is stale.

mod families;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use gpucause_page::foreign::ForeignFamily;
use gpucause_probes::nvml::{Gpu, Library, OpenError};
use parking_lot::{Mutex, MutexGuard};

use crate::clock_watch::{ClockWatch, holds_clock_down};

/// Between two polls of the throttle reasons.
const CLOCKS_EVERY: Duration = Duration::from_secs(1);
/// Polls of the throttle reasons per poll of everything.
const CLOCKS_PER_SAMPLE: u32 = 5;
/// Between two attempts to load the library: a driver may be installed later.
const OPEN_EVERY: Duration = Duration::from_secs(60);
/// Older samples are not exported.
const STALE_AFTER: Duration = Duration::from_secs(15);
/// Without an answer for this time the throttle reasons are unknown.
const CLOCKS_STALE_AFTER: Duration = Duration::from_secs(5);

/// State of the driver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Verdict {
    /// Not polled yet.
    #[default]
    Untried,
    /// It answers.
    Answers,
    /// There is none.
    Absent,
    /// There is one, which does not work.
    Broken,
    /// It has stopped answering.
    Silent,
}

impl Verdict {
    /// The `verdict` label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Untried => "untried",
            Self::Answers => "ok",
            Self::Absent => "unsupported",
            Self::Broken => "broken",
            Self::Silent => "silent",
        }
    }
}

/// The library, and the state of the driver.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NvmlState {
    /// The library, as configured.
    pub library: String,
    /// State of the driver.
    pub verdict: Verdict,
    /// Age of the exported sample; `None` while there is none.
    pub age: Option<Duration>,
}

/// UUIDs of the GPUs that each process computes on, by PID, joined by commas.
pub type GpusByPid = HashMap<u32, Arc<str>>;

/// The driver, under observation.
#[derive(Debug)]
pub struct Nvml {
    library: OsString,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    verdict: Verdict,
    sample: Option<Sample>,
    clocks: ClockWatch,
    clocks_at: Option<Instant>,
    /// True once the log reports that the driver is silent.
    logged_silent: bool,
}

#[derive(Debug)]
struct Sample {
    families: Vec<Arc<ForeignFamily>>,
    gpus_by_pid: Arc<GpusByPid>,
    at: Instant,
}

impl Nvml {
    /// Polls the driver through this library until the last owner of the result drops it.
    #[must_use]
    pub fn start(library: &OsStr) -> Arc<Self> {
        let nvml = Arc::new(Self { library: library.to_owned(), known: Mutex::default() });
        let observed = Arc::downgrade(&nvml);
        let library = library.to_owned();
        let polling = thread::Builder::new()
            .name("nvml".into())
            .spawn(move || poll_until_dropped(&observed, &library));
        if let Err(error) = polling {
            tracing::warn!(%error, "cannot start a thread to poll the NVIDIA driver");
        }
        nvml
    }

    /// The last sample, and the state.
    #[must_use]
    pub fn view(&self, now: Instant) -> (Vec<Arc<ForeignFamily>>, Arc<GpusByPid>, NvmlState) {
        let mut known = self.known();
        let age = known.sample.as_ref().map(|sample| now.saturating_duration_since(sample.at));
        let silent = age.is_some_and(|age| age > STALE_AFTER);
        if silent != known.logged_silent {
            known.logged_silent = silent;
            if silent {
                tracing::warn!(
                    "the NVIDIA driver does not answer; its metrics are missing from the page"
                );
            } else {
                tracing::info!("the NVIDIA driver answers again");
            }
        }
        let fresh = known.sample.as_ref().filter(|_| !silent);
        let state = NvmlState {
            library: self.library.to_string_lossy().into_owned(),
            verdict: if silent { Verdict::Silent } else { known.verdict },
            age: age.filter(|_| !silent),
        };
        let families = fresh.map(|sample| sample.families.clone()).unwrap_or_default();
        let gpus = fresh.map(|sample| Arc::clone(&sample.gpus_by_pid)).unwrap_or_default();
        (families, gpus, state)
    }

    /// The share of the time since the last call in which each GPU was throttled; `None` when unknown.
    pub fn throttled(&self, now: Instant) -> Option<HashMap<String, f64>> {
        let mut known = self.known();
        let at = known.clocks_at?;
        if now.saturating_duration_since(at) > CLOCKS_STALE_AFTER {
            known.clocks.note(now, std::iter::empty());
        }
        Some(known.clocks.shares(now)).filter(|shares| !shares.is_empty())
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock()
    }

    fn store(&self, gpus: &[Gpu], driver: &str) {
        let families = families::of(gpus, driver, &families::host_name());
        let sample = Sample {
            families: families.into_iter().map(Arc::new).collect(),
            gpus_by_pid: Arc::new(gpus_by_pid(gpus)),
            at: Instant::now(),
        };
        let mut known = self.known();
        known.sample = Some(sample);
        known.verdict = Verdict::Answers;
    }

    fn store_clocks(&self, gpus: &[(&str, Option<u64>)]) {
        let now = Instant::now();
        let mut known = self.known();
        // A GPU without throttle reasons counts as not throttled.
        let throttled = gpus.iter().map(|&(gpu, bits)| (gpu, bits.is_some_and(holds_clock_down)));
        known.clocks.note(now, throttled);
        known.clocks_at = Some(now);
    }

    /// Records that the driver is not available.
    fn fail(&self, verdict: Verdict, error: &OpenError) {
        let mut known = self.known();
        if known.verdict != verdict {
            match verdict {
                Verdict::Absent => {
                    tracing::info!(%error, "no NVIDIA driver: its metrics are absent");
                }
                _ => {
                    tracing::warn!(%error, "the NVIDIA driver's metrics are missing from the page");
                }
            }
        }
        *known = Known { verdict, ..Known::default() };
    }
}

fn poll_until_dropped(nvml: &Weak<Nvml>, library: &OsStr) {
    while nvml.strong_count() > 0 {
        if let Err(error) = poll(nvml, library)
            && let Some(nvml) = nvml.upgrade()
        {
            let verdict = match error {
                OpenError::Absent { .. } => Verdict::Absent,
                OpenError::Broken { .. } => Verdict::Broken,
            };
            nvml.fail(verdict, &error);
        }
        let again = Instant::now() + OPEN_EVERY;
        while nvml.strong_count() > 0 && Instant::now() < again {
            thread::sleep(CLOCKS_EVERY);
        }
    }
}

/// Polls until there is no answer.
fn poll(nvml: &Weak<Nvml>, library: &OsStr) -> Result<(), OpenError> {
    let opened = Library::open(library)?;
    let mut session = opened.session()?;
    for tick in 0.. {
        if tick % CLOCKS_PER_SAMPLE == 0 {
            let gpus = session.read();
            let Some(nvml) = nvml.upgrade() else { return Ok(()) };
            if !gpus.iter().any(Gpu::answers) {
                let reason = if session.is_empty() { "it has no GPU" } else { "no GPU answers" };
                return Err(OpenError::Broken {
                    library: library.to_string_lossy().into_owned(),
                    reason: reason.into(),
                });
            }
            nvml.store(&gpus, opened.driver());
        }
        let reasons = session.clock_reasons();
        let Some(nvml) = nvml.upgrade() else { return Ok(()) };
        nvml.store_clocks(&reasons);
        drop(nvml);
        thread::sleep(CLOCKS_EVERY);
    }
    Ok(())
}

/// Processes may use several GPUs, and be named by a GPU more than once.
fn gpus_by_pid(gpus: &[Gpu]) -> GpusByPid {
    let mut by_pid: HashMap<u32, Vec<&str>> = HashMap::new();
    let parts = gpus.iter().flat_map(|gpu| {
        let whole = (gpu.identity.uuid.as_str(), &gpu.processes);
        let parts = gpu.instances.iter().map(|part| (part.uuid.as_str(), &part.processes));
        std::iter::once(whole).chain(parts)
    });
    for (uuid, processes) in parts {
        for &pid in processes {
            let uuids = by_pid.entry(pid).or_default();
            if !uuids.contains(&uuid) {
                uuids.push(uuid);
            }
        }
    }
    by_pid.into_iter().map(|(pid, uuids)| (pid, uuids.join(",").into())).collect()
}

#[cfg(test)]
mod tests;
