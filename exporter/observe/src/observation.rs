//! All that is known of a host at one time: the input of pages, chains, tables and recordings. Immutable.

use crate::clock::WallClock;
use crate::gpus::View;
use crate::kernel_launches::KernelLaunches;
use crate::process_details::ProcessDetails;
use crate::throttling::Throttled;
use crate::wait_names::Waits;
use crate::workers::is_worker;
use gpucause_abi::op::OpId;
use gpucause_abi::snapshot::{ProcessSnapshot, Snapshot};
use gpucause_abi::{Nanos, ProcId};
use gpucause_engine::observation::{ObservationState, Period};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// All of a host at one time.
#[derive(Debug, Clone)]
pub struct Observation {
    /// State of the observation, and since when it holds.
    pub state: ObservationState,
    /// The snapshot of the kernel maps, without the processes whose retention is over.
    pub snapshot: Arc<Snapshot>,
    /// Details of the processes from `/proc`.
    pub details: HashMap<ProcId, Arc<ProcessDetails>>,
    /// The state of each probe.
    pub probes: Vec<ProbeState>,
    /// How long each library was mapped before its probes were attached.
    pub attach_gaps: Vec<AttachGap>,
    /// Cost of a hit of a call probe, where that was measured.
    pub hit_cost: Option<Nanos>,
    /// Cost of a call that the program leaves at entry, where that was measured.
    pub entry_cost: Option<Nanos>,
    /// Additional cost of a hit on an instruction that the kernel single-steps.
    pub step_cost: Option<Nanos>,
    /// Share of the time in which launches are probed.
    pub duty_ratio: f64,
    /// Notices of newly mapped files that were lost.
    pub mmap_events_lost: u64,
    /// Live processes, aggregated ones among them, without workers.
    pub processes_live: u64,
    /// Processes aggregated into `other`: ended ones removed early by [`Retention`](crate::series::retention::Retention), and live ones
    /// beyond the [`CardinalityLimit`](crate::series::cardinality_limit::CardinalityLimit).
    pub processes_aggregated: u64,
    /// Live processes that the configuration leaves out; they are not in the snapshot.
    pub processes_excluded: u64,
    /// The sum of the aggregated processes.
    pub overflow: Option<ProcessSnapshot>,
    /// The sums of workers that are gone, by the process that they worked for.
    pub former_workers: HashMap<ProcId, ProcessSnapshot>,
    /// Whom the threads of each process waited for, by name.
    pub waits: HashMap<ProcId, Waits>,
    /// Times that a name was added to `other`, in preemption and in blocked waits.
    pub wait_names_aggregated: (u64, u64),
    /// The operations of each process that are part of `other`.
    pub aggregated_ops: AggregatedOps,
    /// Operations that were added to `other` so far.
    pub ops_aggregated: u64,
    /// The groups that processes are exported in; empty where each has series of its own.
    pub groups: Vec<Group>,
    /// For how long the processes were out of CPU quota, where that is known.
    pub throttled: HashMap<ProcId, Throttled>,
    /// Launches of each process, by kernel.
    pub kernels: HashMap<ProcId, KernelLaunches>,
    /// Times that a kernel's launches were added to `other`.
    pub kernel_names_aggregated: u64,
    /// UUIDs of the GPUs that each process uses, or used while it lived; joined by commas.
    pub gpu_uuids: HashMap<ProcId, Arc<str>>,
    /// Data about the GPUs themselves.
    pub gpus: View,
    /// When the programs were loaded, on the monotonic clock: the beginning of the daemon-wide counters.
    pub since: Nanos,
    /// Converts monotonic times to wall time.
    pub clock: WallClock,
}

impl Observation {
    /// Makes the observation of a daemon that has seen nothing but the kernel maps.
    #[must_use]
    pub fn new(snapshot: Snapshot, since: Nanos, clock: WallClock) -> Self {
        let processes_live = live(&snapshot.processes);
        Self {
            state: Period::attached(clock.unix_seconds(since)).into(),
            snapshot: Arc::new(snapshot),
            details: HashMap::new(),
            probes: Vec::new(),
            attach_gaps: Vec::new(),
            hit_cost: None,
            entry_cost: None,
            step_cost: None,
            duty_ratio: 1.0,
            mmap_events_lost: 0,
            processes_live,
            processes_aggregated: 0,
            processes_excluded: 0,
            overflow: None,
            former_workers: HashMap::new(),
            waits: HashMap::new(),
            wait_names_aggregated: (0, 0),
            aggregated_ops: AggregatedOps::new(),
            groups: Vec::new(),
            ops_aggregated: 0,
            throttled: HashMap::new(),
            kernels: HashMap::new(),
            kernel_names_aggregated: 0,
            gpu_uuids: HashMap::new(),
            gpus: View::default(),
            since,
            clock,
        }
    }
}

/// How many of these live. Workers do not count, as they do not against `limits.live_processes`.
pub(crate) fn live(processes: &[ProcessSnapshot]) -> u64 {
    let live = processes.iter().filter(|own| own.ended.is_none() && !is_worker(own));
    live.count() as u64
}

/// The state of a probe.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProbeState {
    /// Name of the probe.
    pub probe: String,
    /// Path of the library it is on; empty for a probe in the kernel.
    pub library: String,
    /// `ok`, `unsupported`, `broken` and the like: a word from a fixed set.
    pub verdict: &'static str,
}

/// How long a library was in use before its probes were attached.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttachGap {
    /// Path of the library.
    pub library: String,
    /// From its mapping to the attach.
    pub gap: Nanos,
}

/// One group on a page.
#[derive(Debug, Clone)]
pub struct Group {
    /// Id of the waits, kernels, chains and details of the group, which are kept beside those of its members.
    pub id: ProcId,
    /// The `pid` label: `all`, or the GPUs.
    pub pid: Arc<str>,
    /// The `comm` label.
    pub comm: Arc<str>,
    /// Its processes.
    pub members: Vec<ProcId>,
    /// The sum of those that are gone.
    pub former: ProcessSnapshot,
    /// When the first of those began that it was made of.
    pub since: Nanos,
}

/// The operations that are aggregated, by the latest image of their process, or by their group.
pub type AggregatedOps = HashMap<ProcId, Arc<HashSet<OpId>>>;
