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
pub(crate) struct Columns<'a> {
    pub(crate) kind: &'static str,
    pub(crate) op: Option<(Api, &'a str)>,
    pub(crate) outermost: Option<bool>,
    pub(crate) cold: Option<bool>,
    pub(crate) code: Option<i32>,
    pub(crate) off_cpu_ns: Option<u64>,
    pub(crate) bytes: Option<u64>,
    pub(crate) direction: Option<&'static str>,
    pub(crate) object: Option<&'a str>,
    pub(crate) reason: Option<&'static str>,
    pub(crate) task: Option<NewTask<'a>>,
}

impl<'a> Columns<'a> {
    pub(crate) fn of(event: &NewKind<'a>) -> Self {
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
