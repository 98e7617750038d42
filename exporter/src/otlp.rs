//! Causal chains as log records of OTLP: each new, changed and ended chain goes to a spool, and from there to a collector.

mod answer;
mod args;
mod backoff;
mod changes;
mod counts;
mod endpoint;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod headers;
mod probe;
mod record;
mod sender;
mod settings;
mod spool;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gpucause_engine::chain::{Chain, Victim};
use opentelemetry_proto::tonic::resource::v1::Resource;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};

use changes::Changes;
use counts::Counters;
use sender::Sender;
use spool::Spool;

pub use args::OtlpArgs;
pub use counts::OtlpCounts;
pub use endpoint::Endpoint;
pub use headers::HeadersError;
pub(crate) use probe::probe;
pub use settings::{OtlpSettings, SettingsError};

/// Data about a victim's process beside the chain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Process {
    /// Its rank in its job.
    pub rank: Option<u32>,
    /// Names and values, as [`ProcessDetails::named`](gpucause_observe::process_details::ProcessDetails::named) has them.
    pub details: Vec<(String, String)>,
}

/// The chains that were logged, and their resources: a process that has ended is not known any more.
#[derive(Debug, Default)]
struct Logged {
    changes: Changes,
    resources: HashMap<String, Resource>,
}

/// How records are sent.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// A record waits this long for others to be sent with.
    pub send_every: Duration,
    /// Time to connect, and for a request and its answer.
    pub timeout: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { send_every: Duration::from_secs(5), timeout: Duration::from_secs(10) }
    }
}

/// Logs chains.
#[derive(Debug)]
pub struct ChainLog {
    node: String,
    spool_dir: Option<PathBuf>,
    pace: Pace,
    settings: watch::Sender<OtlpSettings>,
    logged: Mutex<Logged>,
    /// `None` before there is an endpoint.
    spool: Mutex<Option<Spool>>,
    counters: Arc<Counters>,
    pushed: Notify,
    closed: watch::Sender<bool>,
}

impl ChainLog {
    /// A log of this node, which has no endpoint yet. Records wait in the folder, or in at most 1 MiB of memory.
    #[must_use]
    pub fn new(node: String, spool_dir: Option<PathBuf>) -> Self {
        let (logged, spool, counters, pushed) = Default::default();
        let (settings, closed) = (watch::Sender::default(), watch::Sender::default());
        let pace = Pace::default();
        Self { node, spool_dir, pace, settings, logged, spool, counters, pushed, closed }
    }

    /// With another pace.
    #[must_use]
    pub fn with_pace(self, pace: Pace) -> Self {
        Self { pace, ..self }
    }

    /// Applies other settings from now on. Opens the spool with the first endpoint.
    pub fn configure(&self, settings: &OtlpSettings) {
        if settings.endpoint.is_some() {
            let mut spool = self.spool();
            spool.get_or_insert_with(|| self.open(settings)).set_limit(settings.spool_bytes);
        }
        let is_other = self.settings.send_if_modified(|current| {
            let is_other = current != settings;
            current.clone_from(settings);
            is_other
        });
        if let Some(warning) = settings.warning().filter(|_| is_other) {
            tracing::warn!("{warning}");
        }
    }

    fn open(&self, settings: &OtlpSettings) -> Spool {
        let counters = || Arc::clone(&self.counters);
        let Some(dir) = &self.spool_dir else {
            tracing::warn!(
                "chains that wait for the OTLP endpoint are lost when the exporter ends: set --otlp.spool-dir"
            );
            return Spool::in_memory(counters());
        };
        Spool::open(dir, settings.spool_bytes, counters()).unwrap_or_else(|error| {
            let path = dir.display();
            tracing::error!(%path, %error, "cannot use the OTLP spool; chains wait in memory");
            Spool::in_memory(counters())
        })
    }

    /// Logs the chains that are new, changed or ended since the last call. `process` finds the process of a victim. Blocks: it writes
    /// files.
    pub fn record(&self, chains: &[Chain], process: impl Fn(&Victim) -> Option<Process>) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.record_at(chains, now.as_secs_f64(), process);
    }

    /// Does the same as [`record`](Self::record) at a time in seconds since the Unix epoch.
    pub fn record_at(
        &self,
        chains: &[Chain],
        now: f64,
        process: impl Fn(&Victim) -> Option<Process>,
    ) {
        if self.settings.borrow().endpoint.is_none() {
            return;
        }
        let mut logged = self.logged();
        let Logged { changes, resources } = &mut *logged;
        let mut records = Vec::new();
        for chain in chains {
            let Some(change) = changes.of(chain, now) else { continue };
            let process = process(&chain.victim);
            if process.is_some() || !resources.contains_key(&chain.id) {
                let resource = record::resource(&self.node, chain, process.as_ref());
                resources.insert(chain.id.clone(), resource);
            }
            let resource = resources.get(&chain.id).cloned().unwrap_or_default();
            records.push(record::encoded(&self.node, resource, chain, change, now));
        }
        changes.retain(chains);
        resources.retain(|id, _| changes.has(id));
        drop(logged);
        if records.is_empty() {
            return;
        }
        if let Some(spool) = self.spool().as_mut() {
            records.iter().for_each(|record| spool.push(record));
        }
        self.pushed.notify_one();
    }

    /// Returns the counts of the records; `None` before there is an endpoint.
    #[must_use]
    pub fn counts(&self) -> Option<OtlpCounts> {
        // Not by the spool: that may be waiting for a disk.
        let is_used = self.settings.borrow().endpoint.is_some();
        let counts = self.counters.counts();
        (is_used || counts != OtlpCounts::default()).then_some(counts)
    }

    /// Sends records until the log is [closed](Self::close).
    pub async fn run(self: Arc<Self>) {
        Sender::new(self).run().await;
    }

    /// Sends what waits once more, then ends [`run`](Self::run).
    pub fn close(&self) {
        self.closed.send_replace(true);
    }

    fn spool(&self) -> MutexGuard<'_, Option<Spool>> {
        self.spool.lock()
    }

    fn logged(&self) -> MutexGuard<'_, Logged> {
        self.logged.lock()
    }
}

#[cfg(test)]
mod tests;
