//! The data that the server serves.

use gpucause_observe::host_name::node_name;
use gpucause_page::family::Sink;

use crate::collector::Scope;
use crate::config::MetricsSettings;
use crate::flights::FlightRecords;
use crate::live_page::{Problem, Processes};
use gpucause_engine::activity::TimelinePoint;
use gpucause_engine::chain::Chain;
use gpucause_engine::observation::ObservationState;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// Provides metric families and chains. Called from several threads.
pub trait Source: Send + Sync + 'static {
    /// The names of the collectors that a scrape can select. Must not block.
    fn collectors(&self) -> Vec<&'static str>;

    /// The level of a scrape that names none, and who gets classic buckets. Must not block.
    fn metrics(&self) -> MetricsSettings {
        MetricsSettings::default()
    }

    /// Writes the families that a scrape asks for. May block.
    ///
    /// # Errors
    /// When there is no page, or it cannot be written; the page itself reports collectors that failed.
    fn scrape(&self, scope: &Scope, page: &mut dyn Sink) -> Result<(), ScrapeError>;

    /// The detected causal chains, the worst first. Must not block for long.
    fn chains(&self) -> Vec<Chain>;

    /// PIDs of the observed processes, where known. Must not block.
    fn processes(&self) -> Option<Vec<u32>> {
        None
    }

    /// Names of those that have not ended, by PID. Must not block.
    fn names(&self) -> BTreeMap<u32, String> {
        BTreeMap::new()
    }

    /// Returns what is known now as a trace file; `None` of what is a recording itself. May block.
    ///
    /// # Errors
    /// When the accounts cannot be read, or memory does not suffice.
    fn snapshot(&self) -> Option<Result<Vec<u8>, ScrapeError>> {
        None
    }

    /// Returns the recent activity of the observed processes. Must not block for long.
    fn process_rows(&self) -> Processes {
        Processes::default()
    }

    /// Returns what all processes did in each of the last evaluations, oldest first. Must not block for long.
    fn timeline(&self) -> Vec<TimelinePoint> {
        Vec::new()
    }

    /// The flight recorder's files, where there is one. Must not block.
    fn flights(&self) -> Option<Arc<FlightRecords>> {
        None
    }

    /// The last thing that went wrong. Must not block.
    fn problem(&self) -> Option<Problem> {
        None
    }

    /// The name of the observed host. Must not block.
    fn node(&self) -> String {
        node_name()
    }

    /// The trace file that all of this is read from, if it is one. Must not block.
    fn file(&self) -> Option<String> {
        None
    }

    /// Returns whether processes are observed, and since when. Must not block.
    fn observation(&self) -> ObservationState;

    /// Returns the readiness of the daemon. Must not block.
    fn ready(&self) -> Readiness;
}

/// The readiness of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// Ready.
    Ready,
    /// Probes are disabled.
    Disabled,
    /// Not ready, for this reason.
    NotReady(String),
}

/// Why there is no page, or no snapshot.
#[derive(Debug, thiserror::Error)]
#[error("cannot produce the page: {0}")]
pub struct ScrapeError(#[source] pub Box<dyn std::error::Error + Send + Sync>);

impl From<io::Error> for ScrapeError {
    fn from(error: io::Error) -> Self {
        Self(Box::new(error))
    }
}
