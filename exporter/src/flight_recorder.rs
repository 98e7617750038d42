//! The flight recorder: single events stay in the kernel's ring, where the newest overwrite the oldest. When a causal chain of high
//! severity appears, on SIGUSR2, or when a client asks, those of the last seconds are written to a trace file.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use gpucause_abi::Nanos;
use gpucause_engine::chain::{Cause, Severity};
use gpucause_observe::chains::{EVALUATE_EVERY, engine_input};
use gpucause_observe::clock::{WallClock, monotonic_now};
use gpucause_observe::host_name::node_name;
use gpucause_observe::observation::Observation;
use gpucause_probes::host_clock::clock_error;
use gpucause_probes::recorder::{Dump, Recorder, RecorderError, RecorderSettings};
use gpucause_trace::trace::{CLOCK_ERROR, Start, WriteError, Writer};
use parking_lot::{Mutex, MutexGuard};
use tokio::signal::unix::Signal;
use tokio::time::MissedTickBehavior;

use crate::daemon::Daemon;
use crate::flights::{FlightFile, FlightRecords, FlightRequest, FlightSettings};
use crate::routes::Source as _;
use crate::trace_recorder::{TraceRecorder, Written};
use crate::version;

/// A less severe chain makes no file.
const MIN_SEVERITY: Severity = Severity::High;
/// Size limit of a file: the content of the ring and the accounts of a busy host.
const MAX_BYTES: u64 = 64 << 20;
/// Why there is a file that is not about a chain: part of its name.
const SIGNAL: &str = "SIGUSR2";
const REQUEST: &str = "request";

/// The next action of a recorder.
enum Due {
    Evaluation,
    Signal,
    Request(FlightRequest),
}

/// State that is kept from file to file.
#[derive(Debug, Default)]
struct History {
    /// Ids of chains that were handled.
    handled: HashSet<String>,
    /// When the last file of a cause was begun.
    begun: HashMap<Cause, Instant>,
    events_without_stack: u64,
}

/// The content of files, read at one time.
struct Capture {
    now: Nanos,
    clock: WallClock,
    dump: Dump,
    observation: Option<Arc<Observation>>,
}

/// Writes a file about each new severe chain, and on request.
#[derive(Debug)]
pub struct FlightRecorder {
    time: Duration,
    node: String,
    recorder: Recorder,
    /// When recording began.
    since: Nanos,
    daemon: Arc<Daemon>,
    records: Arc<FlightRecords>,
    history: Mutex<History>,
}

impl FlightRecorder {
    /// Records events from now on.
    ///
    /// # Errors
    /// When this kernel cannot.
    pub fn start(settings: FlightSettings, daemon: &Arc<Daemon>) -> Result<Self, RecorderError> {
        let recorder = daemon.recorder()?;
        recorder.set(&RecorderSettings::default())?;
        let since = monotonic_now();
        let FlightSettings { dir, time, max_files } = settings;
        let records = Arc::new(FlightRecords::in_dir(dir, max_files));
        // Left by a daemon that ended while it wrote.
        records.folder.remove_partial();
        daemon.export_flights(&records);
        Ok(Self {
            time,
            node: node_name(),
            recorder,
            since,
            daemon: Arc::clone(daemon),
            records,
            history: Mutex::default(),
        })
    }

    /// Writes files about new chains, and one for each signal and each request of a client; never returns.
    pub async fn follow(self, mut signals: Signal) {
        let mut requests = self.records.accept_requests();
        let own = Arc::new(self);
        let mut ticks = tokio::time::interval(EVALUATE_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let due = tokio::select! {
                _ = ticks.tick() => Due::Evaluation,
                Some(()) = signals.recv() => Due::Signal,
                Some(request) = requests.recv() => Due::Request(request),
            };
            let recorder = Arc::clone(&own);
            let written = tokio::task::spawn_blocking(move || match due {
                Due::Evaluation => recorder.record_new_chains(),
                Due::Signal => drop(recorder.record(&[SIGNAL])),
                Due::Request(request) => recorder.answer(request),
            });
            if let Err(error) = written.await {
                tracing::error!(%error, "the flight recorder failed");
            }
        }
    }

    fn answer(&self, request: FlightRequest) {
        let written = self.record(&[REQUEST]).pop();
        request.answer(written.unwrap_or_else(|| Err("there is none".to_owned())));
    }

    /// Writes a file about each new chain.
    fn record_new_chains(&self) {
        let chains = self.daemon.chains();
        let mut history = self.history();
        history.handled.retain(|id| chains.iter().any(|chain| chain.id == *id));
        let mut fresh = Vec::new();
        for chain in chains.iter().filter(|chain| chain.severity >= MIN_SEVERITY) {
            if !history.handled.insert(chain.id.clone()) {
                continue;
            }
            let recent = history.begun.get(&chain.cause).is_some_and(|at| at.elapsed() < self.time);
            if recent {
                self.records.suppressed.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            history.begun.insert(chain.cause, Instant::now());
            fresh.push(&*chain.id);
        }
        drop(history);
        self.record(&fresh);
        self.forget_stacks_when_full();
    }

    /// Not to be locked while a file is written.
    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock()
    }

    /// The kernel keeps all stacks: they are removed once its map was full.
    fn forget_stacks_when_full(&self) {
        let forgotten = self.recorder.events_without_stack().and_then(|events_without_stack| {
            let before =
                std::mem::replace(&mut self.history().events_without_stack, events_without_stack);
            if events_without_stack > before {
                self.recorder.clear_stacks()?;
            }
            Ok(())
        });
        if let Err(error) = forgotten {
            tracing::debug!(%error, "slow calls may have no stacks");
        }
    }

    /// Writes a file for each reason, such as the id of a chain.
    fn record(&self, reasons: &[&str]) -> Vec<Result<FlightFile, String>> {
        if reasons.is_empty() {
            return Vec::new();
        }
        let capture = self.capture();
        let write = |reason: &&str| {
            let written = match &capture {
                Ok(capture) => self.write(capture, reason).map_err(|error| format!("{error:#}")),
                Err(error) => Err(format!("{error:#}")),
            };
            match &written {
                Ok(file) => {
                    self.records.written.fetch_add(1, Ordering::Relaxed);
                    tracing::info!(file = file.name, reason, "flight record written");
                }
                Err(error) => {
                    self.records.failed.fetch_add(1, Ordering::Relaxed);
                    self.daemon.show_problem(format!("cannot write a flight record: {error}"));
                    tracing::error!("cannot write a flight record: {error}");
                }
            }
            written
        };
        reasons.iter().map(write).collect()
    }

    fn capture(&self) -> anyhow::Result<Capture> {
        let now = monotonic_now();
        let dump = self.recorder.last(self.time)?;
        let observation = self.daemon.observe_any().context("the accounts cannot be read")?;
        Ok(Capture { now, clock: WallClock::now(), dump, observation })
    }

    fn write(&self, capture: &Capture, reason: &str) -> anyhow::Result<FlightFile> {
        let unix_seconds = capture.clock.unix_seconds(capture.now);
        let destination = self.records.folder.destination(&self.node, unix_seconds, reason);
        let written = self.fill(&destination.partial, capture, reason);
        if written.is_err() {
            self.records.folder.remove_partial();
        }
        written?;
        Ok(self.records.folder.publish(&destination)?)
    }

    /// The start of a file, which does not go further back than its events are complete.
    fn start_of(&self, capture: &Capture, reason: &str) -> Start {
        let Capture { now, clock, dump, .. } = capture;
        let length = u64::try_from(self.time.as_nanos()).unwrap_or(u64::MAX);
        let complete = dump.complete_since.unwrap_or_default().max(self.since);
        let since = Nanos(now.0.saturating_sub(length)).max(complete);
        let settings = RecorderSettings::default();
        let details = [
            ("flight_record_of", reason.to_owned()),
            ("calls_from_ns", settings.calls_from.0.to_string()),
            ("off_cpu_from_ns", settings.off_cpu_from.0.to_string()),
        ];
        let clock_error = clock_error().map(|error| (CLOCK_ERROR, error.0.to_string()));
        let details = details.into_iter().chain(clock_error);
        Start {
            node: self.node.clone(),
            recorder: format!("gpucause {}", version::VERSION),
            started_ns: clock.unix_nanos(since),
            details: details.map(|(name, value)| (name.to_owned(), value)).collect(),
            size_limit: Some(MAX_BYTES),
            overwrite: true,
        }
    }

    fn fill(&self, path: &Path, capture: &Capture, reason: &str) -> anyhow::Result<()> {
        let writer = Writer::create(path, &self.start_of(capture, reason))?;
        let mut trace = TraceRecorder::new(writer, capture.clock);
        trace.writer.set_lost_events(capture.dump.missed);
        // First, since it has the names of the processes.
        if let Some(observation) = &capture.observation {
            let input = engine_input(observation, HashMap::new());
            trace.add_snapshot(&self.recorder, &self.daemon, (observation, input))?;
        }
        trace.add_events(&self.recorder, &capture.dump.events)?;
        let Written { finished, unsymbolized, .. } = trace.finish()?;
        if finished.needs_wal {
            return Err(WriteError::InUse(finished.path).into());
        }
        if unsymbolized > 0 {
            tracing::warn!(
                stacks = unsymbolized,
                "stacks of a flight record have no function names"
            );
        }
        Ok(())
    }
}
