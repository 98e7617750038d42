//! Input of an evaluation.

use std::collections::HashMap;
use std::sync::Arc;

use gpucause_abi::snapshot::Snapshot;
use gpucause_abi::{Nanos, ProcId};

/// A snapshot and the state of the host at that time.
#[derive(Debug, Clone)]
pub struct EngineInput {
    /// The accounts.
    pub snapshot: Arc<Snapshot>,
    /// When it was taken, in seconds since the Unix epoch.
    pub unix_seconds: f64,
    /// Share of the time since the previous snapshot for which each GPU of the host was clock-throttled, by UUID: 0 for one that
    /// was not. Empty without a source.
    pub throttled_gpus: HashMap<String, f64>,
    /// Total time for which the CPU limit of its cgroup has throttled each process.
    pub throttled_cgroups: HashMap<ProcId, Nanos>,
}

impl EngineInput {
    /// A snapshot without the state of the host.
    pub fn new(snapshot: Arc<Snapshot>, unix_seconds: f64) -> Self {
        let (throttled_gpus, throttled_cgroups) = Default::default();
        Self { snapshot, unix_seconds, throttled_gpus, throttled_cgroups }
    }
}
