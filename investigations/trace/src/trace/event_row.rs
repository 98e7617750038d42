//! Events as the writer takes them, and their columns.

use gpucause_abi::op::Api;
use gpucause_abi::state::Reason;

use super::store::ProcessRef;
use crate::recording::{Call, Event, Kind, OffCpu, StackId, Task};

/// An [`Event`] to be written, with borrowed texts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NewEvent<'a> {
    /// Start in nanoseconds since the Unix epoch.
    pub start_ns: i64,
    /// Duration in nanoseconds; 0 for an instant.
    pub duration_ns: u64,
    /// The process.
    pub process: ProcessRef,
    /// The thread.
    pub tid: u32,
    /// The kind of event.
    pub kind: NewKind<'a>,
    /// The call stack, where one was taken.
    pub stack: Option<StackId>,
}

/// [`Kind`] with borrowed texts.
pub type NewKind<'a> = Kind<&'a str>;
/// [`Call`] with borrowed texts.
pub type NewCall<'a> = Call<&'a str>;
/// [`OffCpu`] with borrowed texts.
pub type NewOffCpu<'a> = OffCpu<&'a str>;
/// [`Task`] with borrowed texts.
pub type NewTask<'a> = Task<&'a str>;

impl<'a> NewEvent<'a> {
    pub(crate) fn of(event: &'a Event, process: ProcessRef, stack: Option<StackId>) -> Self {
        let Event { start_ns, duration_ns, tid, ref kind, id: _, process: _, stack: _ } = *event;
        Self { start_ns, duration_ns, process, tid, kind: kind.borrowed(), stack }
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

/// An event's columns, before texts are replaced by their numbers. `None` becomes NULL.
#[derive(Debug, Default)]
pub struct Columns<'a> {
    /// The kind of event, as its column has it.
    pub kind: &'static str,
    /// API and name of a call.
    pub op: Option<(Api, &'a str)>,
    /// True for a call within no other.
    pub outermost: Option<bool>,
    /// True for the first launch of a kernel.
    pub cold: Option<bool>,
    /// Return value of a call.
    pub code: Option<i32>,
    /// Nanoseconds that a call was off the CPU.
    pub off_cpu_ns: Option<u64>,
    /// Bytes that were copied, allocated, read or written.
    pub bytes: Option<u64>,
    /// Direction of a copy, or operation of a request.
    pub direction: Option<&'static str>,
    /// Name of a kernel or device.
    pub object: Option<&'a str>,
    /// Reason of a wait.
    pub reason: Option<&'static str>,
    /// The task that had the CPU, or ended the wait.
    pub task: Option<NewTask<'a>>,
}

impl<'a> Columns<'a> {
    /// The columns of an event.
    #[must_use]
    pub fn of(event: &NewKind<'a>) -> Self {
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
                Columns { reason, task: by, ..plain(kind::OFF_CPU) }
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
