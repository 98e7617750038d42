//! Numbers over many events, and how much of the truth they are.

use std::sync::Arc;

use gpucause_abi::op::Api;
use gpucause_abi::state::{Reason, Role};

use super::ProcessIndex;

/// How much of what happened the numbers are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completeness {
    /// All of it.
    Exact,
    /// Counts and sums of all of it, percentiles of this many events that were kept, which are no fair sample.
    Sample {
        /// Events that were kept.
        stored: u64,
    },
}

/// Durations of many calls or waits, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Durations {
    /// How many there were.
    pub count: u64,
    /// Their sum.
    pub sum_ns: u64,
    /// Half were no longer: nearest rank. `None` where no event was kept.
    pub p50_ns: Option<u64>,
    /// 99 in 100 were no longer: nearest rank.
    pub p99_ns: Option<u64>,
    /// The longest.
    pub max_ns: u64,
    /// What count, sum and percentiles are made of.
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
    /// Whether these are first launches of a kernel function; `None` where that is not told apart.
    pub cold: Option<bool>,
    /// How long they took.
    pub durations: Durations,
    /// Calls that were off the CPU at some time, where that was measured.
    pub stalled: Option<u64>,
    /// For how long, in nanoseconds.
    pub off_cpu_ns: Option<u64>,
}

/// Off-CPU time of one process or thread.
#[derive(Debug, Clone, PartialEq)]
pub struct WaitStatistics {
    /// The process.
    pub process: ProcessIndex,
    /// The thread, where it is told apart.
    pub tid: Option<u32>,
    /// What part the threads play, where that is told apart.
    pub role: Option<Role>,
    /// Why; `None` where the recorder does not tell.
    pub reason: Option<Reason>,
    /// How long.
    pub durations: Durations,
}
