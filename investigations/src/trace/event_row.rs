//! An event as it is given to the writer, and what goes into which column.

use gpucause_abi::op::Api;
use gpucause_abi::state::{BlockOperation, Reason};

use super::store::ProcessRef;
use crate::recording::{Event, Kind, StackId};

/// An [`Event`] that is to be written, its names borrowed from whoever tells it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NewEvent<'a> {
    /// When it began, in nanoseconds since the Unix epoch.
    pub start_ns: i64,
    /// How long it took, in nanoseconds; 0 for what takes no time.
    pub duration_ns: u64,
    /// The process.
    pub process: ProcessRef,
    /// The thread.
    pub tid: u32,
    /// What it was.
    pub kind: NewKind<'a>,
    /// Where the thread was, when that was recorded.
    pub stack: Option<StackId>,
}

/// What an event was; see [`Kind`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NewKind<'a> {
    /// A call of a CUDA or NCCL function.
    Call(NewCall<'a>),
    /// The thread was off the CPU.
    OffCpu(NewOffCpu<'a>),
    /// A request to a disk.
    BlockIo {
        /// What was done.
        operation: BlockOperation,
        /// On how many bytes.
        bytes: u64,
        /// On which disk, when that was recorded.
        device: Option<&'a str>,
    },
    /// Pages that the thread took from the kernel.
    PageAllocation {
        /// How much.
        bytes: u64,
    },
    /// A segment that a socket sent again.
    TcpRetransmit,
    /// The kernel killed the process for lack of memory.
    OomKill,
    /// The process began, by fork or as a new image.
    Start,
    /// The process or thread ended.
    Exit,
    /// Anything else, by the name that its recorder gave it.
    Other(&'a str),
}

/// A call of a CUDA or NCCL function; see [`Call`](crate::recording::Call).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NewCall<'a> {
    /// The layer.
    pub api: Api,
    /// The documented name of the function.
    pub op: &'a str,
    /// Whether it was the first launch of a kernel function in its process, where that is known.
    pub cold: Option<bool>,
    /// Whether it was made by the thread itself, not by another traced call on the way.
    pub outermost: bool,
    /// What it returned; 0 is success.
    pub code: i32,
    /// How long its own thread was off the CPU meanwhile, in nanoseconds, where that was measured.
    pub off_cpu_ns: Option<u64>,
    /// Bytes copied, allocated, freed or sent, where it has some.
    pub bytes: Option<u64>,
    /// Direction of a copy: a label of [`CopyKind`](gpucause_abi::op::CopyKind).
    pub copy: Option<&'a str>,
    /// The kernel function that was launched: its readable name, or its handle.
    pub kernel: Option<&'a str>,
}

/// The thread was off the CPU; see [`OffCpu`](crate::recording::OffCpu).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NewOffCpu<'a> {
    /// Why; `None` where the recorder does not tell.
    pub reason: Option<Reason>,
    /// Who had the CPU meanwhile, or who ended the wait.
    pub by: Option<NewParty<'a>>,
}

/// Another task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NewParty<'a> {
    /// Its process, when it is known.
    pub pid: Option<u32>,
    /// Its name.
    pub comm: &'a str,
}

impl<'a> NewEvent<'a> {
    /// The same event, of a process of the file that is being written.
    pub(crate) fn of(event: &'a Event, process: ProcessRef, stack: Option<StackId>) -> Self {
        let Event { start_ns, duration_ns, tid, ref kind, id: _, process: _, stack: _ } = *event;
        Self { start_ns, duration_ns, process, tid, kind: NewKind::of(kind), stack }
    }
}

impl<'a> NewKind<'a> {
    fn of(kind: &'a Kind) -> Self {
        match kind {
            Kind::Call(call) => Self::Call(NewCall {
                api: call.api,
                op: &call.op,
                cold: call.cold,
                outermost: call.outermost,
                code: call.code,
                off_cpu_ns: call.off_cpu_ns,
                bytes: call.bytes,
                copy: call.copy,
                kernel: call.kernel.as_deref(),
            }),
            Kind::OffCpu(wait) => {
                let by = wait.by.as_ref();
                let by = by.map(|by| NewParty { pid: by.pid, comm: &by.comm });
                Self::OffCpu(NewOffCpu { reason: wait.reason, by })
            }
            Kind::BlockIo { operation, bytes, device } => {
                let (operation, bytes, device) = (*operation, *bytes, device.as_deref());
                Self::BlockIo { operation, bytes, device }
            }
            Kind::PageAllocation { bytes } => Self::PageAllocation { bytes: *bytes },
            Kind::TcpRetransmit => Self::TcpRetransmit,
            Kind::OomKill => Self::OomKill,
            Kind::Start => Self::Start,
            Kind::Exit => Self::Exit,
            Kind::Other(name) => Self::Other(name),
        }
    }
}

/// Values of the column `kind`.
pub(super) mod kind {
    pub(in crate::trace) const CALL: &str = "call";
    pub(in crate::trace) const OFF_CPU: &str = "off_cpu";
    pub(in crate::trace) const BLOCK_IO: &str = "block_io";
    pub(in crate::trace) const PAGE_ALLOCATION: &str = "page_allocation";
    pub(in crate::trace) const TCP_RETRANSMIT: &str = "tcp_retransmit";
    pub(in crate::trace) const OOM_KILL: &str = "oom_kill";
    pub(in crate::trace) const START: &str = "start";
    pub(in crate::trace) const EXIT: &str = "exit";
    /// The name is the event's object.
    pub(in crate::trace) const OTHER: &str = "other";
}

/// An event's columns with its names written out. What does not apply is NULL.
#[derive(Debug, Default)]
pub(super) struct Columns<'a> {
    pub(super) kind: &'static str,
    pub(super) op: Option<(Api, &'a str)>,
    pub(super) outermost: Option<bool>,
    pub(super) cold: Option<bool>,
    pub(super) code: Option<i32>,
    pub(super) off_cpu_ns: Option<u64>,
    pub(super) bytes: Option<u64>,
    pub(super) direction: Option<&'a str>,
    pub(super) object: Option<&'a str>,
    pub(super) reason: Option<&'static str>,
    pub(super) party: Option<NewParty<'a>>,
}

impl<'a> Columns<'a> {
    pub(super) fn of(event: &NewKind<'a>) -> Self {
        let plain = |kind| Columns { kind, ..Columns::default() };
        match *event {
            NewKind::Call(call) => {
                let NewCall { api, op, cold, outermost, code, off_cpu_ns, bytes, copy, kernel } =
                    call;
                Columns {
                    op: Some((api, op)),
                    outermost: Some(outermost),
                    cold,
                    code: Some(code),
                    off_cpu_ns,
                    bytes,
                    direction: copy,
                    object: kernel,
                    ..plain(kind::CALL)
                }
            }
            NewKind::OffCpu(NewOffCpu { reason, by }) => {
                let reason = reason.map(Reason::label);
                Columns { reason, party: by, ..plain(kind::OFF_CPU) }
            }
            NewKind::BlockIo { operation, bytes, device } => Columns {
                bytes: Some(bytes),
                direction: Some(operation.label()),
                object: device,
                ..plain(kind::BLOCK_IO)
            },
            NewKind::PageAllocation { bytes } => {
                Columns { bytes: Some(bytes), ..plain(kind::PAGE_ALLOCATION) }
            }
            NewKind::TcpRetransmit => plain(kind::TCP_RETRANSMIT),
            NewKind::OomKill => plain(kind::OOM_KILL),
            NewKind::Start => plain(kind::START),
            NewKind::Exit => plain(kind::EXIT),
            NewKind::Other(name) => Columns { object: Some(name), ..plain(kind::OTHER) },
        }
    }
}
