//! The flight recorder: single events stay in the kernel's ring, where the newest write over the oldest, and nobody reads them
//! until a causal chain of high severity appears, or SIGUSR2 comes. Then those of the last seconds become a trace file.

mod folder;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use gpucause_abi::Nanos;
use gpucause_engine::chain::{Cause, Chain, Severity};
use gpucause_investigations::trace::{CLOCK_ERROR, Start, Writer};
use gpucause_probes::host_clock::clock_error;
use gpucause_probes::recorder::{Dump, Recorder, RecorderError, RecorderSettings};
use tokio::signal::unix::Signal;
use tokio::time::MissedTickBehavior;

use crate::chains::{LOOK_EVERY, moment};
use crate::clock::{WallClock, monotonic_now};
use crate::daemon::Daemon;
use crate::observation::Observation;
use crate::record::chronicle::{Chronicle, Written};
use crate::server::{Source as _, node_name};
use crate::version;
use folder::Folder;

/// A chain that is less severe than this makes no file.
const LEAST_SEVERITY: Severity = Severity::High;
/// A file can be no larger: as much as the ring holds, and the accounts of a busy host.
const MOST_BYTES: u64 = 64 << 20;

/// How it is to record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlightSettings {
    /// Where the files go.
    pub dir: PathBuf,
    /// How far a file goes back, and between two files of the same cause.
    pub time: Duration,
    /// Files that are kept.
    pub max_files: usize,
}

/// Files so far, by what became of them.
#[derive(Debug, Default)]
pub struct FlightRecords {
    written: AtomicU64,
    suppressed: AtomicU64,
    failed: AtomicU64,
}

impl FlightRecords {
    /// How many there were of each outcome.
    #[must_use]
    pub fn told(&self) -> [(&'static str, u64); 3] {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("written", count(&self.written)),
            ("suppressed", count(&self.suppressed)),
            ("failed", count(&self.failed)),
        ]
    }
}

/// What is remembered from file to file.
#[derive(Debug, Default)]
struct Memory {
    /// Chains that were attended to, by their ids.
    attended: HashSet<String>,
    /// When the last file of a cause was begun.
    begun: HashMap<Cause, Instant>,
    stackless: u64,
}

/// What files are made of, taken at once, however long they take to be written.
struct Scene {
    now: Nanos,
    clock: WallClock,
    dump: Dump,
    observation: Option<Arc<Observation>>,
}

/// Writes a file when there is something to write about.
#[derive(Debug)]
pub struct FlightRecorder {
    time: Duration,
    folder: Folder,
    node: String,
    recorder: Recorder,
    /// When it began to record.
    since: Nanos,
    daemon: Arc<Daemon>,
    records: Arc<FlightRecords>,
    memory: Mutex<Memory>,
}

impl FlightRecorder {
    /// Whether files can be made in a folder.
    ///
    /// # Errors
    /// When they cannot.
    pub fn check(dir: &Path) -> anyhow::Result<()> {
        Folder::check(dir).with_context(|| format!("--flight-recorder.dir {}", dir.display()))
    }

    /// Has events kept from now on.
    ///
    /// # Errors
    /// When this kernel has no means for it.
    pub fn start(settings: FlightSettings, daemon: &Arc<Daemon>) -> Result<Self, RecorderError> {
        let recorder = daemon.recorder()?;
        recorder.set(&RecorderSettings::default())?;
        let since = monotonic_now();
        let FlightSettings { dir, time, max_files } = settings;
        let folder = Folder::new(dir, max_files);
        // One that ended while it wrote leaves a part.
        folder.remove_partial();
        let records = Arc::default();
        daemon.tell_of_flights(&records);
        Ok(Self {
            time,
            folder,
            node: node_name(),
            recorder,
            since,
            daemon: Arc::clone(daemon),
            records,
            memory: Mutex::default(),
        })
    }

    /// Writes whenever there is something to write about, on a thread of its own; never ends by itself.
    pub async fn follow(self, mut asked: Signal) {
        let own = Arc::new(self);
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_asked = tokio::select! {
                _ = ticks.tick() => false,
                Some(()) = asked.recv() => true,
            };
            let recorder = Arc::clone(&own);
            let attending = tokio::task::spawn_blocking(move || {
                if is_asked { recorder.record(&[None]) } else { recorder.attend() }
            });
            if let Err(error) = attending.await {
                tracing::error!(%error, "the flight recorder failed");
            }
        }
    }

    /// Makes a file about each chain that is new.
    fn attend(&self) {
        let chains = self.daemon.chains();
        let mut memory = self.memory();
        memory.attended.retain(|id| chains.iter().any(|chain| chain.id == *id));
        let mut fresh = Vec::new();
        for chain in chains.iter().filter(|chain| chain.severity >= LEAST_SEVERITY) {
            if !memory.attended.insert(chain.id.clone()) {
                continue;
            }
            let recent = memory.begun.get(&chain.cause).is_some_and(|at| at.elapsed() < self.time);
            if recent {
                self.records.suppressed.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            memory.begun.insert(chain.cause, Instant::now());
            fresh.push(Some(chain));
        }
        drop(memory);
        self.record(&fresh);
        self.make_room_for_stacks();
    }

    /// To be held for no longer than it takes to look something up.
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel forgets no stack by itself. Looked for only once there was no room for one.
    fn make_room_for_stacks(&self) {
        let made = self.recorder.stackless().and_then(|stackless| {
            let before = std::mem::replace(&mut self.memory().stackless, stackless);
            if stackless > before {
                self.recorder.forget_stacks()?;
            }
            Ok(())
        });
        if let Err(error) = made {
            tracing::debug!(%error, "slow calls may be without stacks");
        }
    }

    /// Makes a file about each chain, or about none in particular.
    fn record(&self, chains: &[Option<&Chain>]) {
        if chains.is_empty() {
            return;
        }
        let scene = self.scene();
        for chain in chains {
            let written = match &scene {
                Ok(scene) => self.write(scene, *chain),
                Err(error) => Err(anyhow::anyhow!("{error:#}")),
            };
            match written {
                Ok(path) => {
                    self.records.written.fetch_add(1, Ordering::Relaxed);
                    let chain_id = chain.map(|chain| &*chain.id);
                    tracing::info!(path = %path.display(), chain_id, "flight record written");
                }
                Err(error) => {
                    self.records.failed.fetch_add(1, Ordering::Relaxed);
                    tracing::error!("a flight record was not written: {error:#}");
                }
            }
        }
    }

    fn scene(&self) -> anyhow::Result<Scene> {
        let now = monotonic_now();
        let dump = self.recorder.last(self.time)?;
        let observation = self.daemon.observe_any().context("the accounts cannot be read")?;
        Ok(Scene { now, clock: WallClock::now(), dump, observation })
    }

    fn write(&self, scene: &Scene, chain: Option<&Chain>) -> anyhow::Result<PathBuf> {
        let occasion = chain.map_or("SIGUSR2", |chain| &*chain.id);
        let unix_seconds = scene.clock.unix_seconds(scene.now);
        let place = self.folder.place(&self.node, unix_seconds, occasion);
        let written = self.fill(&place.partial, scene, occasion);
        if written.is_err() {
            self.folder.remove_partial();
        }
        written?;
        self.folder.keep(&place)?;
        Ok(place.path)
    }

    /// What a file says of itself: it does not go further back than it is complete.
    fn heading(&self, scene: &Scene, occasion: &str) -> Start {
        let Scene { now, clock, dump, .. } = scene;
        let asked = u64::try_from(self.time.as_nanos()).unwrap_or(u64::MAX);
        let complete = dump.complete_since.unwrap_or_default().max(self.since);
        let since = Nanos(now.0.saturating_sub(asked)).max(complete);
        let settings = RecorderSettings::default();
        let told = [
            ("flight_record_of", occasion.to_owned()),
            ("calls_from_ns", settings.calls_from.0.to_string()),
            ("off_cpu_from_ns", settings.off_cpu_from.0.to_string()),
        ];
        let clock_error = clock_error().map(|error| (CLOCK_ERROR, error.0.to_string()));
        let told = told.into_iter().chain(clock_error);
        Start {
            node: self.node.clone(),
            recorder: format!("gpucause {}", version::VERSION),
            started_ns: clock.unix_nanos(since),
            details: told.map(|(name, value)| (name.to_owned(), value)).collect(),
            size_limit: Some(MOST_BYTES),
            overwrite: true,
        }
    }

    fn fill(&self, path: &Path, scene: &Scene, occasion: &str) -> anyhow::Result<()> {
        let writer = Writer::create(path, &self.heading(scene, occasion))?;
        let mut chronicle = Chronicle::new(writer, scene.clock);
        chronicle.writer.set_lost_events(scene.dump.missed);
        // First, since it says what the processes are called.
        if let Some(observation) = &scene.observation {
            let moment = moment(observation, HashMap::new());
            chronicle.look(&self.recorder, &self.daemon, (observation, moment))?;
        }
        chronicle.events(&self.recorder, &scene.dump.events)?;
        let Written { nameless, .. } = chronicle.finish()?;
        if nameless > 0 {
            tracing::warn!(
                stacks = nameless,
                "stacks of a flight record are without the names of functions"
            );
        }
        Ok(())
    }
}
