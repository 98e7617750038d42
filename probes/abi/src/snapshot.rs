//! User space turns one copy of the kernel maps into these types.

use crate::hist::Histogram;
use crate::measure::Measures;
use crate::op::{CopyKind, Op, OpId};
use crate::record::{FAULTS, PHASES, REASONS, ROLES, STATES, SWITCHES, SelfCounter};
use crate::state::{BlockOperation, Fault, LockKind, Phase, Reason, Relation, Role, State, Switch};
use crate::{Nanos, ProcId, Syscall, Tgid, Tid};

mod launches;
mod names;

pub use launches::{LaunchSampling, LaunchStep, RateEstimate};
pub use names::{Comm, DeviceName};

/// A snapshot of all accounts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    /// When the copy was made, on the monotonic clock.
    pub taken_at: Nanos,
    /// Every process that is or was observed, by [`ProcId`].
    pub processes: Vec<ProcessSnapshot>,
    /// The programs' counters about themselves, and what the reader makes of them.
    pub counters: Vec<(SelfCounter, u64)>,
    /// Fill of every bounded map.
    pub maps: Vec<MapUsage>,
}

/// How full a kernel map is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapUsage {
    /// Name of the map.
    pub map: &'static str,
    /// Entries in it.
    pub entries: u64,
    /// Entries it can hold.
    pub capacity: u64,
    /// Updates it refused.
    pub refused: u64,
}

/// One process image's accounts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProcessSnapshot {
    /// Identity over PID reuse and exec.
    pub id: ProcId,
    /// The process.
    pub tgid: Tgid,
    /// Name of the thread-group leader.
    pub comm: Comm,
    /// The nearest process above this one that makes calls. A worker makes none itself.
    pub parent: Option<ProcId>,
    /// When the process started, on the boot-time clock.
    pub started_boottime: Nanos,
    /// When observation began, on the monotonic clock.
    pub first_seen: Nanos,
    /// True if a thread of it has made a traced call.
    pub dispatches: bool,
    /// When it exited or exec'ed, on the monotonic clock; `None` while it lives.
    pub ended: Option<Nanos>,
    /// True if it ended by exec: the process lives on under another image.
    pub execed: bool,
    /// Its measures, one number each.
    pub measures: Measures,
    /// Call durations by [`CallKind`].
    pub calls: Vec<CallSnapshot>,
    /// Off-CPU time inside calls, by [`CallKind`].
    pub stalls: Vec<StallSnapshot>,
    /// Launches that were counted without being timed.
    pub launches: LaunchSampling,
    /// Other outermost calls that were, by op.
    pub untimed_calls: Vec<(OpId, u64)>,
    /// Error results: op, code, count.
    pub errors: Vec<(OpId, u32, u64)>,
    /// Launches by kernel function handle. A launch by the driver on behalf of the runtime counts as the runtime's alone.
    pub kernels: Vec<(u64, u64)>,
    /// Durations of warm launches by kernel function handle, of those that are timed and since they are.
    pub launch_times: Vec<(u64, Histogram)>,
    /// Bytes copied, by [`CopyKind`].
    pub copied: [u64; CopyKind::COUNT],
    /// Durations of copies by kind and size class; see [`SIZE_CLASSES`](crate::record::SIZE_CLASSES).
    pub copies: Vec<(CopyKind, u16, Histogram)>,
    /// Device memory allocated and freed, in bytes. At its end everything counts as freed.
    pub memory: MemorySnapshot,
    /// Bytes sent into collectives, by op.
    pub collectives: Vec<(OpId, u64)>,
    /// Rank and number of ranks of its last communicator; for one that was made before observation began, the exporter takes them
    /// from its launcher.
    pub rank: Option<(u32, u32)>,
    /// Wall time of all dispatcher threads so far, ended ones included.
    pub dispatcher_time: TimeAccount,
    /// The dispatcher threads that live.
    pub dispatchers: Vec<DispatcherSnapshot>,
    /// The main thread of a worker process while it lives and makes no traced calls: all of its time is in the host phase.
    pub worker: Option<Box<DispatcherSnapshot>>,
    /// Time from one launch's return to the next launch's entry on the same thread.
    pub launch_gap: Histogram,
    /// Whom dispatchers and workers waited for.
    pub waits: Vec<Wait>,
    /// Off-CPU intervals by role and reason.
    pub offcpu: Vec<(Role, Reason, Histogram)>,
    /// Time from runnable to running, by role.
    pub runqueue: Vec<(Role, Histogram)>,
    /// Context switches, `[role][kind]`.
    pub switches: [[u64; SWITCHES]; ROLES],
    /// Use that its threads made of disks and memory, by disk and kind.
    pub host: HostUse,
}

/// Use that a process made of the host's disks and memory while it was observed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostUse {
    /// Block I/O that its threads submitted, by disk and operation.
    pub block_io: Vec<BlockIo>,
    /// Page faults since the process began, without those attributed to earlier images; `None` if unknown.
    pub page_faults: Option<[u64; FAULTS]>,
}

impl HostUse {
    /// Page faults of one kind.
    pub fn page_faults(&self, kind: Fault) -> Option<u64> {
        self.page_faults.map(|faults| faults[kind as usize])
    }
}

/// Completed block I/O on one disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockIo {
    /// The disk, such as `nvme0n1`.
    pub device: DeviceName,
    /// Operation of the requests.
    pub operation: BlockOperation,
    /// From submission to completion, summed over requests.
    pub time: Nanos,
    /// Bytes of requests that succeeded.
    pub bytes: u64,
    /// Requests, failed ones included.
    pub requests: u64,
}

impl ProcessSnapshot {
    /// A process that nothing has been counted of yet.
    pub fn new(id: ProcId, tgid: Tgid, comm: Comm) -> Self {
        Self { id, tgid, comm, ..Self::default() }
    }

    /// Context switches of one role and kind.
    pub fn switches(&self, role: Role, kind: Switch) -> u64 {
        self.switches[role as usize][kind as usize]
    }

    /// Outermost launches of all layers whose duration was measured.
    pub fn timed_launches(&self) -> u64 {
        let launches = self.calls.iter().filter(|call| call.is_launch());
        launches.map(|call| call.durations.count()).sum()
    }

    /// Outermost launches of all layers that were seen: all, unless the process is partly observed.
    pub fn launches(&self) -> u64 {
        self.timed_launches().saturating_add(self.launches.untimed)
    }

    /// Launches of individually tracked kernel functions, and of others.
    pub fn kernel_launches(&self) -> u64 {
        self.kernels.iter().map(|&(_, launches)| launches).sum::<u64>()
            + self.measures.other_launches
    }

    /// Durations of each op's calls, cold ones apart, nested ones with the others.
    pub fn calls_by_op(&self) -> Vec<(OpId, bool, Histogram)> {
        let mut calls: Vec<(OpId, bool, Histogram)> = Vec::with_capacity(self.calls.len());
        for call in &self.calls {
            match calls.iter_mut().rev().find(|own| (own.0, own.1) == (call.op, call.cold)) {
                Some((_, _, durations)) => durations.merge(&call.durations),
                None => calls.push((call.op, call.cold, call.durations.clone())),
            }
        }
        calls
    }

    /// Durations of an op's calls, cold and warm together.
    pub fn call_durations(&self, op: OpId) -> Histogram {
        let mut all = Histogram::default();
        for call in self.calls.iter().filter(|call| call.op == op) {
            all.merge(&call.durations);
        }
        all
    }
}

/// The kernel name that a process passed when it asked for a handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandleName {
    /// The kernel's name in its module: whatever bytes the process passed, at most
    /// [`KERNEL_NAME_LEN`](crate::record::KERNEL_NAME_LEN).
    Text(Box<[u8]>),
    /// The kernel has this other handle, or is called through this function of the host.
    SameAs(u64),
}

/// Device memory of a process, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemorySnapshot {
    /// Taken so far.
    pub allocated: u64,
    /// Given back so far.
    pub freed: u64,
}

impl MemorySnapshot {
    /// In use now.
    pub const fn live(&self) -> u64 {
        self.allocated.saturating_sub(self.freed)
    }
}

/// Wall time by phase and state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimeAccount(pub [[Nanos; STATES]; PHASES]);

impl TimeAccount {
    /// The time in one phase and state.
    pub fn at(&self, phase: Phase, state: State) -> Nanos {
        self.0[phase as usize][state.index()]
    }

    /// The sum of all cells: wall time.
    pub fn total(&self) -> Nanos {
        Nanos(self.0.as_flattened().iter().fold(0, |all, time| all.saturating_add(time.0)))
    }

    /// The time in one state that was lost to the GPU: that of the phases in which [it is](State::is_lost_in).
    pub fn lost(&self, state: State) -> Nanos {
        let lost = Phase::ALL.iter().filter(|&&phase| state.is_lost_in(phase));
        Nanos(lost.fold(0, |all, &phase| all.saturating_add(self.at(phase, state).0)))
    }

    /// The time in one phase for which the thread [was suspended](State::is_suspended).
    pub fn suspended(&self, phase: Phase) -> Nanos {
        let states = State::all().filter(|state| state.is_suspended());
        Nanos(states.fold(0, |all, state| all.saturating_add(self.at(phase, state).0)))
    }

    /// The time that was lost to the GPU, in all states.
    pub fn all_lost(&self) -> Nanos {
        Nanos(State::all().fold(0, |all, state| all.saturating_add(self.lost(state).0)))
    }

    /// Adds another account, cell by cell.
    pub fn merge(&mut self, other: &Self) {
        for (own, added) in self.0.as_flattened_mut().iter_mut().zip(other.0.as_flattened()) {
            own.0 = own.0.saturating_add(added.0);
        }
    }
}

/// A live thread that has a time account.
#[derive(Debug, Clone, PartialEq)]
pub struct DispatcherSnapshot {
    /// The thread.
    pub tid: Tid,
    /// Wall time from its first traced call, or for a worker from when it was first seen, until the snapshot.
    pub wall: Nanos,
    /// Where that time went.
    pub time: TimeAccount,
    /// The outermost call it is in, and for how long.
    pub inflight: Option<(OpId, Nanos)>,
}

/// Time that a dispatcher or worker waited for somebody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// The waiting thread; `None` when aggregated over the threads of a process with very many.
    pub tid: Option<Tid>,
    /// Why they were off the CPU.
    pub reason: Reason,
    /// For preemption and the run queue, the task that had the CPU, `idle` when nobody had; else the task that ended the
    /// wait, `kernel` when that was not a task but a timer or a device. Threads of the same process go by their own
    /// names, other processes by those of their leaders, and what has more names than [`MAX_NAMES`](crate::record::MAX_NAMES) by `other`.
    pub on: Comm,
    /// Phase that the thread was in.
    pub phase: Phase,
    /// How long in all.
    pub total: Nanos,
    /// How much of a wait for a lock the other held it; of another futex wait, how long a thread of the same process had not
    /// idled before it ended the wait. Of a wait for another process, what that owes: all where it makes room or serves a file, else what
    /// it computed meanwhile. Of a page fault, all that reads a file.
    pub held: Nanos,
    /// How much of a wait for the work of a thread of the same process that thread waited for locks.
    pub behind: Nanos,
    /// The thread that held the lock, where that is one of the same process.
    pub holder: Option<Tid>,
    /// Kind of the lock, if it is one of the kernel.
    pub lock: Option<LockKind>,
    /// The system call, for [`Reason::Other`].
    pub syscall: Option<Syscall>,
    /// The last process of that name, if it was one.
    pub tgid: Option<Tgid>,
    /// Relation of that process to this one.
    pub relation: Relation,
}

impl Wait {
    /// A wait in the thread's own code for no process.
    pub fn host(reason: Reason, on: Comm, total: Nanos) -> Self {
        let (phase, relation, none) = (Phase::Host, Relation::None, Nanos(0));
        Self {
            tid: None,
            reason,
            on,
            phase,
            total,
            held: none,
            behind: none,
            holder: None,
            lock: None,
            syscall: None,
            tgid: None,
            relation,
        }
    }
}

/// Durations of one op's calls.
#[derive(Debug, Clone, PartialEq)]
pub struct CallSnapshot {
    /// The op.
    pub op: OpId,
    /// True if these are first launches of a kernel function.
    pub cold: bool,
    /// True if these were made within other traced calls, as by the runtime in the driver.
    pub nested: bool,
    /// From entry to return.
    pub durations: Histogram,
    /// Durations of calls that left the CPU meanwhile.
    pub stalled: Histogram,
}

/// Identity of a process's calls: op, coldness, and whether they were nested.
pub type CallKind = (OpId, bool, bool);

impl CallSnapshot {
    /// Outermost calls that never left the CPU.
    pub fn unstalled(op: OpId, cold: bool, durations: Histogram) -> Self {
        Self { op, cold, nested: false, durations, stalled: Histogram::default() }
    }

    /// Which calls these are.
    pub const fn kind(&self) -> CallKind {
        (self.op, self.cold, self.nested)
    }

    /// Returns true if these are outermost calls that hand the GPU kernels to run.
    pub fn is_launch(&self) -> bool {
        !self.nested && self.op.op().is_some_and(Op::is_launch)
    }
}

/// Off-CPU time that overlapped one op's calls, cold and nested ones apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StallSnapshot {
    /// The op.
    pub op: OpId,
    /// True if these are first launches of a kernel function.
    pub cold: bool,
    /// True if these were made within other traced calls.
    pub nested: bool,
    /// Calls with any off-CPU time between entry and return.
    pub calls: u64,
    /// Overlapping off-CPU time by [`Reason`].
    pub offcpu: [Nanos; REASONS],
}

impl StallSnapshot {
    /// Which calls these are of.
    pub const fn kind(&self) -> CallKind {
        (self.op, self.cold, self.nested)
    }
}
