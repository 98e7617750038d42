//! Statistics over many events, and whether they are complete.

use std::sync::Arc;

use gpucause_abi::op::Api;
use gpucause_abi::state::{Reason, Role};

use super::ProcessIndex;

/// Coverage of the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completeness {
    /// Every event.
    Exact,
    /// Counts and sums cover every event, percentiles only the stored ones, which are biased.
    Sample {
        /// Events stored.
        stored: u64,
    },
}

/// Durations of many calls or waits, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Durations {
    /// Number of calls or waits.
    pub count: u64,
    /// Sum in nanoseconds.
    pub sum_ns: u64,
    /// Median by nearest rank, in nanoseconds; `None` where no event was stored.
    pub p50_ns: Option<u64>,
    /// 99th percentile by nearest rank, in nanoseconds.
    pub p99_ns: Option<u64>,
    /// The longest, in nanoseconds.
    pub max_ns: u64,
    /// Coverage of the numbers.
    pub completeness: Completeness,
}

/// Calls of one op by one process.
#[derive(Debug, Clone, PartialEq)]
pub struct CallStatistics {
    /// The process.
    pub process: ProcessIndex,
    /// The layer.
    pub api: Api,
    /// The documented name of the function.
    pub op: Arc<str>,
    /// True for first launches of a kernel function; `None` where they are not counted separately.
    pub cold: Option<bool>,
    /// Their durations.
    pub durations: Durations,
    /// Calls whose thread was off the CPU, where measured.
    pub stalled: Option<u64>,
    /// Off-CPU time within the calls in nanoseconds, where measured.
    pub off_cpu_ns: Option<u64>,
}

/// Off-CPU time of one process or thread.
#[derive(Debug, Clone, PartialEq)]
pub struct WaitStatistics {
    /// The process.
    pub process: ProcessIndex,
    /// The thread; `None` for all threads of the role.
    pub tid: Option<u32>,
    /// The threads' role; `None` where roles are not counted separately.
    pub role: Option<Role>,
    /// Why; `None` where the recorder does not say.
    pub reason: Option<Reason>,
    /// The waits' durations.
    pub durations: Durations,
}
