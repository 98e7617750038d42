//! The messages. Tags are never used for another thing; what is new gets a new one.

use prost::Message;

/// A look. The lists of labels come first: all numbers of enums below are positions in them.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Look {
    #[prost(message, required, tag = "1")]
    pub(super) labels: Labels,
    #[prost(uint64, tag = "2")]
    pub(super) taken_at: u64,
    #[prost(message, repeated, tag = "4")]
    pub(super) processes: Vec<Process>,
    #[prost(message, repeated, tag = "5")]
    pub(super) counters: Vec<Counter>,
    #[prost(message, repeated, tag = "6")]
    pub(super) maps: Vec<Map>,
    #[prost(message, repeated, tag = "7")]
    pub(super) throttled_gpus: Vec<ThrottledGpu>,
    #[prost(message, repeated, tag = "8")]
    pub(super) throttled_cgroups: Vec<Pair>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Labels {
    /// `api name`; of an op that has no name, its number.
    #[prost(string, repeated, tag = "1")]
    pub(super) ops: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(super) counters: Vec<String>,
    #[prost(string, repeated, tag = "3")]
    pub(super) copies: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    pub(super) reasons: Vec<String>,
    #[prost(string, repeated, tag = "5")]
    pub(super) phases: Vec<String>,
    #[prost(string, repeated, tag = "6")]
    pub(super) states: Vec<String>,
    #[prost(string, repeated, tag = "7")]
    pub(super) roles: Vec<String>,
    #[prost(string, repeated, tag = "8")]
    pub(super) switches: Vec<String>,
    #[prost(string, repeated, tag = "9")]
    pub(super) relations: Vec<String>,
    #[prost(string, repeated, tag = "10")]
    pub(super) faults: Vec<String>,
    #[prost(string, repeated, tag = "11")]
    pub(super) block_operations: Vec<String>,
}

/// A count by a key.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Pair {
    #[prost(uint64, tag = "1")]
    pub(super) key: u64,
    #[prost(uint64, tag = "2")]
    pub(super) value: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Counter {
    #[prost(uint32, tag = "1")]
    pub(super) counter: u32,
    #[prost(uint64, tag = "2")]
    pub(super) value: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Map {
    #[prost(string, tag = "1")]
    pub(super) map: String,
    #[prost(uint64, tag = "2")]
    pub(super) entries: u64,
    #[prost(uint64, tag = "3")]
    pub(super) capacity: u64,
    #[prost(uint64, tag = "4")]
    pub(super) refused: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ThrottledGpu {
    #[prost(string, tag = "1")]
    pub(super) uuid: String,
    #[prost(double, tag = "2")]
    pub(super) share: f64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Process {
    #[prost(uint32, tag = "1")]
    pub(super) id: u32,
    #[prost(uint32, tag = "2")]
    pub(super) tgid: u32,
    /// Without the zeros at the end.
    #[prost(bytes = "vec", tag = "3")]
    pub(super) comm: Vec<u8>,
    #[prost(uint32, optional, tag = "4")]
    pub(super) parent: Option<u32>,
    #[prost(uint64, tag = "5")]
    pub(super) started_boottime: u64,
    #[prost(uint64, tag = "6")]
    pub(super) first_seen: u64,
    #[prost(bool, tag = "7")]
    pub(super) dispatches: bool,
    #[prost(uint64, optional, tag = "8")]
    pub(super) ended: Option<u64>,
    #[prost(bool, tag = "9")]
    pub(super) execed: bool,
    #[prost(uint64, tag = "10")]
    pub(super) abandoned_calls: u64,
    #[prost(message, repeated, tag = "11")]
    pub(super) calls: Vec<Call>,
    #[prost(message, repeated, tag = "12")]
    pub(super) stalls: Vec<Stall>,
    #[prost(message, repeated, tag = "13")]
    pub(super) errors: Vec<CallError>,
    #[prost(message, repeated, tag = "14")]
    pub(super) kernels: Vec<Pair>,
    #[prost(uint64, tag = "15")]
    pub(super) other_launches: u64,
    #[prost(message, repeated, tag = "16")]
    pub(super) launch_times: Vec<LaunchTimes>,
    /// By kind of copy.
    #[prost(uint64, repeated, tag = "17")]
    pub(super) copied: Vec<u64>,
    #[prost(message, repeated, tag = "18")]
    pub(super) copies: Vec<Copies>,
    #[prost(uint64, tag = "19")]
    pub(super) memory_allocated: u64,
    #[prost(uint64, tag = "20")]
    pub(super) memory_freed: u64,
    #[prost(message, repeated, tag = "21")]
    pub(super) collectives: Vec<Pair>,
    #[prost(uint32, optional, tag = "22")]
    pub(super) rank: Option<u32>,
    /// With `rank`.
    #[prost(uint32, optional, tag = "23")]
    pub(super) ranks: Option<u32>,
    /// Phase by phase, the states of each; so are those of threads.
    #[prost(uint64, repeated, tag = "24")]
    pub(super) dispatcher_time: Vec<u64>,
    #[prost(message, repeated, tag = "25")]
    pub(super) dispatchers: Vec<Dispatcher>,
    #[prost(message, optional, tag = "26")]
    pub(super) worker: Option<Dispatcher>,
    #[prost(message, optional, tag = "27")]
    pub(super) launch_gap: Option<Histogram>,
    #[prost(uint64, tag = "28")]
    pub(super) ended_waits: u64,
    #[prost(message, repeated, tag = "29")]
    pub(super) waits: Vec<Wait>,
    #[prost(message, repeated, tag = "30")]
    pub(super) offcpu: Vec<OffCpu>,
    #[prost(message, repeated, tag = "31")]
    pub(super) runqueue: Vec<RunQueue>,
    /// Role by role, the kinds of each.
    #[prost(uint64, repeated, tag = "32")]
    pub(super) switches: Vec<u64>,
    #[prost(message, optional, tag = "33")]
    pub(super) host: Option<HostUse>,
    #[prost(message, optional, tag = "34")]
    pub(super) launches: Option<Launches>,
}

/// How launches are observed; without it, in full.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Launches {
    /// The label of the step.
    #[prost(string, tag = "1")]
    pub(super) step: String,
    #[prost(uint32, tag = "2")]
    pub(super) one_in: u32,
    #[prost(double, tag = "3")]
    pub(super) share: f64,
    #[prost(uint64, tag = "4")]
    pub(super) untimed: u64,
    #[prost(uint64, tag = "5")]
    pub(super) estimated: u64,
    #[prost(uint64, tag = "6")]
    pub(super) unobserved: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Histogram {
    #[prost(uint64, tag = "1")]
    pub(super) sum: u64,
    #[prost(uint64, tag = "2")]
    pub(super) max: u64,
    /// How many slots lie between each slot in use and the one before.
    #[prost(uint32, repeated, tag = "3")]
    pub(super) gaps: Vec<u32>,
    #[prost(uint64, repeated, tag = "4")]
    pub(super) counts: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Call {
    #[prost(uint32, tag = "1")]
    pub(super) op: u32,
    #[prost(bool, tag = "2")]
    pub(super) cold: bool,
    #[prost(message, optional, tag = "3")]
    pub(super) durations: Option<Histogram>,
    #[prost(message, optional, tag = "4")]
    pub(super) stalled: Option<Histogram>,
    #[prost(bool, tag = "5")]
    pub(super) nested: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Stall {
    #[prost(uint32, tag = "1")]
    pub(super) op: u32,
    #[prost(bool, tag = "2")]
    pub(super) cold: bool,
    #[prost(uint64, tag = "3")]
    pub(super) calls: u64,
    /// By reason.
    #[prost(uint64, repeated, tag = "4")]
    pub(super) offcpu: Vec<u64>,
    #[prost(bool, tag = "5")]
    pub(super) nested: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CallError {
    #[prost(uint32, tag = "1")]
    pub(super) op: u32,
    #[prost(uint32, tag = "2")]
    pub(super) code: u32,
    #[prost(uint64, tag = "3")]
    pub(super) count: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LaunchTimes {
    #[prost(uint64, tag = "1")]
    pub(super) handle: u64,
    #[prost(message, optional, tag = "2")]
    pub(super) durations: Option<Histogram>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Copies {
    #[prost(uint32, tag = "1")]
    pub(super) kind: u32,
    #[prost(uint32, tag = "2")]
    pub(super) size: u32,
    #[prost(message, optional, tag = "3")]
    pub(super) durations: Option<Histogram>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Dispatcher {
    #[prost(uint32, tag = "1")]
    pub(super) tid: u32,
    #[prost(uint64, tag = "2")]
    pub(super) wall: u64,
    #[prost(uint64, repeated, tag = "3")]
    pub(super) time: Vec<u64>,
    #[prost(uint32, optional, tag = "4")]
    pub(super) inflight_op: Option<u32>,
    /// With `inflight_op`.
    #[prost(uint64, tag = "5")]
    pub(super) inflight_age: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Wait {
    #[prost(uint32, optional, tag = "1")]
    pub(super) tid: Option<u32>,
    #[prost(uint32, tag = "2")]
    pub(super) reason: u32,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) on: Vec<u8>,
    #[prost(uint32, tag = "4")]
    pub(super) phase: u32,
    #[prost(uint64, tag = "5")]
    pub(super) total: u64,
    #[prost(uint64, tag = "6")]
    pub(super) held: u64,
    #[prost(uint32, optional, tag = "7")]
    pub(super) tgid: Option<u32>,
    #[prost(uint32, tag = "8")]
    pub(super) relation: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct OffCpu {
    #[prost(uint32, tag = "1")]
    pub(super) role: u32,
    #[prost(uint32, tag = "2")]
    pub(super) reason: u32,
    #[prost(message, optional, tag = "3")]
    pub(super) durations: Option<Histogram>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RunQueue {
    #[prost(uint32, tag = "1")]
    pub(super) role: u32,
    #[prost(message, optional, tag = "2")]
    pub(super) durations: Option<Histogram>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HostUse {
    #[prost(message, repeated, tag = "1")]
    pub(super) block_io: Vec<BlockIo>,
    #[prost(bool, tag = "2")]
    pub(super) page_faults_known: bool,
    /// By kind of fault.
    #[prost(uint64, repeated, tag = "3")]
    pub(super) page_faults: Vec<u64>,
    #[prost(uint64, tag = "4")]
    pub(super) page_alloc_bytes: u64,
    #[prost(uint64, tag = "5")]
    pub(super) direct_reclaim: u64,
    #[prost(uint64, tag = "6")]
    pub(super) tcp_retransmits: u64,
    #[prost(uint64, tag = "7")]
    pub(super) oom_kills: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct BlockIo {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) device: Vec<u8>,
    #[prost(uint32, tag = "2")]
    pub(super) operation: u32,
    #[prost(uint64, tag = "3")]
    pub(super) time: u64,
    #[prost(uint64, tag = "4")]
    pub(super) bytes: u64,
    #[prost(uint64, tag = "5")]
    pub(super) requests: u64,
}
