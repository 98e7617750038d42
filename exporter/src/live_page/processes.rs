//! Recent activity of processes in numbers: the rows of the page and the answer of `/api/v1/processes`.

use gpucause_abi::Nanos;
use gpucause_engine::activity::{Activities, Activity};
use serde::Serialize;

use crate::time_shares::Parts;
use gpucause_investigations::untrusted_text::line;

/// The processes that make traced calls.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Processes {
    /// Length of the time that the numbers are of, in seconds; `None` before there are two evaluations.
    pub window_seconds: Option<f64>,
    /// Live processes, also those that are not listed because they are aggregated into `other`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live: Option<u64>,
    /// True if the processes are from a file with single events and no accounts: launches are then those that were recorded, and where time
    /// went is unknown.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub events_only: bool,
    /// By PID.
    pub processes: Vec<ProcessRow>,
}

/// One process.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProcessRow {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// True if it ended in this time.
    pub has_ended: bool,
    /// For how long it was observed in this time.
    pub seconds: f64,
    /// Outermost launches, cold and warm.
    pub launches: u64,
    /// Launches per second.
    pub launches_per_second: f64,
    /// The share of them that was timed: the next three are of those. `None` without launches.
    pub timed_share: Option<f64>,
    /// Median of warm launches.
    pub p50_seconds: Option<f64>,
    /// 99th percentile of warm launches.
    pub p99_seconds: Option<f64>,
    /// How many times the median the 99th percentile is.
    pub spread: Option<f64>,
    /// Time of dispatcher threads, all parts together.
    pub dispatcher_seconds: f64,
    /// Dispatcher time that was lost.
    pub lost_seconds: f64,
    /// Lost share of the time of dispatcher threads.
    pub lost_share: Option<f64>,
    /// Where that time went.
    pub parts: Parts,
}

impl ProcessRow {
    /// Makes a row of the activity of a process.
    pub(crate) fn of(own: &Activity) -> Self {
        let (p50, p99) = (own.warm.quantile(0.5), own.warm.quantile(0.99));
        let spread = p50.zip(p99).filter(|(p50, _)| p50.0 > 0);
        let parts = Parts::from(&own.time);
        Self {
            pid: own.pid.0,
            comm: line(&own.comm.to_text()),
            has_ended: own.has_ended,
            seconds: own.span.as_secs_f64(),
            launches: own.launches,
            launches_per_second: own.launches_per_second(),
            timed_share: (own.launches > 0).then(|| own.timed as f64 / own.launches as f64),
            p50_seconds: p50.map(Nanos::as_secs_f64),
            p99_seconds: p99.map(Nanos::as_secs_f64),
            spread: spread.map(|(p50, p99)| p99.0 as f64 / p50.0 as f64),
            dispatcher_seconds: parts.total().as_secs_f64(),
            lost_seconds: parts.lost_time().as_secs_f64(),
            lost_share: parts.lost(),
            parts,
        }
    }

    /// Adds another process. Percentiles do not add up.
    pub(crate) fn absorb(&mut self, other: &Self) {
        self.launches += other.launches;
        self.launches_per_second += other.launches_per_second;
        (self.timed_share, self.p50_seconds, self.p99_seconds, self.spread) = Default::default();
        self.parts.add(&other.parts);
        self.dispatcher_seconds = self.parts.total().as_secs_f64();
        self.lost_seconds = self.parts.lost_time().as_secs_f64();
        self.lost_share = self.parts.lost();
    }
}

impl Processes {
    /// Makes rows of the activities of all processes.
    pub(crate) fn of(activities: Option<&Activities>, live: Option<u64>) -> Self {
        let Some(Activities { window: (from, until), processes }) = activities else {
            return Self { live, ..Self::default() };
        };
        Self {
            window_seconds: Some(Nanos(until.0.saturating_sub(from.0)).as_secs_f64()),
            live,
            events_only: false,
            processes: processes.iter().map(ProcessRow::of).collect(),
        }
    }
}
