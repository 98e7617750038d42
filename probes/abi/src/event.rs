//! Single events recorded by the kernel programs: the ring's slots, the recording settings, and domain types.
//!
//! Each event takes the next index, which determines slot and lap. A slot's `turn` is odd while it is written, even when
//! readable, and increases with each lap: a reader that sees the same even turn before and after copying has a consistent
//! event.

use crate::c_record::{CRecord, records};
use crate::op::{CopyKind, OpId};
use crate::record::{COMM_LEN, DEVICE_LEN};
use crate::snapshot::{Comm, DeviceName};
use crate::state::{BlockOperation, Phase, Reason, Relation, shared_enum};
use crate::{Nanos, ProcId, Tgid, Tid};

/// Words of the kind-specific body.
pub const EVENT_WORDS: usize = 3;
/// Most frames of a stack: the kernel's limit.
pub const STACK_FRAMES: usize = 127;
/// `stack` of a call without stack.
pub const NO_STACK: u32 = u32::MAX;

/// Flag of a call: first launch of a kernel function.
pub const EVENT_COLD: u8 = 1;
/// Flag of a call: made by the thread itself, not by another traced call.
pub const EVENT_OUTERMOST: u8 = 2;
/// Flag of a call: `value` is a number of bytes.
pub const EVENT_BYTES: u8 = 4;
/// Flag of a call: `value` is the handle of a kernel.
pub const EVENT_KERNEL: u8 = 8;
/// Shift of the copy kind, counted from 1 in three bits; 0 for none.
pub const EVENT_COPY_SHIFT: u32 = 4;
/// Flag of a call: sampled, shorter than `call_ns`.
pub const EVENT_SAMPLED: u8 = 0x80;
/// Flag of an off-CPU interval: of a thread that makes no traced calls.
pub const EVENT_HELPER: u8 = 1;
/// Flag of an off-CPU interval: the thread waited for a lock.
pub const EVENT_LOCK: u8 = 2;

shared_enum! {
    /// Kind of an event.
    EventKind, "EVENT" {
        /// A traced call that returned.
        Call = "call",
        /// A thread was off the CPU.
        Offcpu = "offcpu",
        /// A process is observed from now on.
        Seen = "seen",
        /// An observed process forked this one.
        Forked = "forked",
        /// The process executed another program; the image ends.
        Execed = "execed",
        /// The process ended.
        Exited = "exited",
        /// A block I/O request completed.
        Block = "block",
        /// A thread freed memory of the host before it got some.
        Reclaim = "reclaim",
        /// A TCP segment was sent again.
        TcpRetransmit = "tcp_retransmit",
        /// The kernel killed the process for lack of memory.
        OomKill = "oom_kill",
    }
}

records! {
    /// A slot of the ring. The body is one of the records below, by `kind`; of other kinds it is empty.
    EventRecord as "event" {
        /// Twice the lap plus 1 while it is written, plus 2 when it can be read; 0 before the first lap.
        turn: u32,
        /// One more than the last lap whose event was dropped because the slot was in use.
        given_up: u32,
        /// On the monotonic clock.
        start_ns: u64,
        duration_ns: u64,
        tgid: u32,
        /// 0 where no thread is known.
        tid: u32,
        proc_id: u32,
        /// An `EVENT_` kind.
        kind: u8,
        flags: u8,
        /// The op of a call; reason and phase (second byte) of an off-CPU interval; a `BLOCK_` operation.
        what: u16,
        body: [u64; EVENT_WORDS],
    }

    /// Body of a call.
    CallBody as "call_body" { off_cpu_ns: u64, value: u64, code: u32, stack: u32 }

    /// Body of a completed request.
    BlockBody as "block_body" { device: [u8; DEVICE_LEN], bytes: u64 }

    /// Body of the birth and end of processes.
    LifeBody as "life_body" { comm: [u8; COMM_LEN], parent_id: u32, pad: u32 }

    /// Selection of recorded events. Written by user space.
    RecordingRecord as "recording" {
        /// 1 while anything is recorded.
        on: u32,
        /// One in so many calls that are shorter than `call_ns`; 0 for none.
        sample: u32,
        /// Calls that take so long are recorded.
        call_ns: u64,
        /// Off-CPU intervals that take so long are recorded.
        offcpu_ns: u64,
        /// 1 when only processes in the map `recorded` are.
        filtered: u32,
        /// 1 when calls of `call_ns` or more record their stack.
        stacks: u32,
        /// 1 when all outermost calls that take or give back device memory are recorded.
        allocations: u32,
        /// 1 when off-CPU intervals of threads that make no traced calls are.
        helpers: u32,
    }

    /// Counters of the ring. Written by the programs.
    RingState as "ring_state" {
        /// Events that have reserved or missed a slot.
        head: u64,
        /// Calls without a stack: the map was full or the stack unavailable.
        events_without_stack: u64,
        /// Calls without Python frames: the map was full.
        events_without_python_stack: u64,
    }
}

impl RecordingRecord {
    /// Nothing is recorded.
    pub const OFF: Self = Self {
        on: 0,
        sample: 0,
        call_ns: 0,
        offcpu_ns: 0,
        filtered: 0,
        stacks: 0,
        allocations: 0,
        helpers: 0,
    };
}

/// One event as the kernel recorded it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawEvent {
    /// When it began, on the monotonic clock.
    pub start: Nanos,
    /// How long it took; 0 for what takes no time.
    pub duration: Nanos,
    /// The process.
    pub tgid: Tgid,
    /// The thread, where it is known.
    pub tid: Option<Tid>,
    /// The image that the process ran.
    pub process: ProcId,
    /// Kind and details.
    pub detail: Detail,
}

/// Kind and details of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// A traced call returned.
    Call(RawCall),
    /// An off-CPU interval with one reason and counterpart; waits for a CPU are split by the running task.
    OffCpu(RawOffCpu),
    /// The process is observed from now on: it made its first traced call, or is an older child of one that did.
    Seen(Image),
    /// An observed process forked it.
    Forked(Image),
    /// It executed another program, which ended this image.
    Execed(Image),
    /// It ended.
    Exited(Image),
    /// A disk completed a request. The thread is the one that submitted it.
    Block {
        /// The disk.
        device: DeviceName,
        /// Operation of the request.
        operation: BlockOperation,
        /// On how many bytes; 0 when it failed.
        bytes: u64,
    },
    /// The thread freed memory of the host before it got some.
    Reclaim,
    /// A TCP segment was sent again.
    TcpRetransmit,
    /// The kernel killed the process for lack of memory.
    OomKill,
}

/// A traced call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawCall {
    /// The function.
    pub op: OpId,
    /// The call returned this code; 0 for success, and for what goes on after the call.
    pub code: u32,
    /// True if it was the first launch of a kernel function.
    pub cold: bool,
    /// True if the thread made it itself: no other traced call made it on the way.
    pub outermost: bool,
    /// True if it was sampled, being shorter than the threshold.
    pub sampled: bool,
    /// How long its own thread was off the CPU meanwhile.
    pub off_cpu: Nanos,
    /// Bytes copied, sent, allocated or freed, of an outermost call that succeeded.
    pub bytes: Option<u64>,
    /// Direction of a copy.
    pub copy: Option<CopyKind>,
    /// Handle of the kernel function that was launched.
    pub kernel: Option<u64>,
    /// Id of its stack.
    pub stack: Option<u32>,
}

/// An interval off the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawOffCpu {
    /// Why.
    pub reason: Reason,
    /// Phase that the thread was in.
    pub phase: Phase,
    /// True if the thread makes no traced calls, in a process that does.
    pub helper: bool,
    /// True if it waited for a lock.
    pub for_lock: bool,
    /// The task that had the CPU, or ended the wait; `None` where that is not known.
    pub by: Option<RawParty>,
}

/// Another task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawParty {
    /// Its name: another process's by that of its leader.
    pub comm: Comm,
    /// Its process, if it is a task at all.
    pub tgid: Option<Tgid>,
    /// Its relation to the thread that waited.
    pub relation: Relation,
}

/// Known facts about a process image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Image {
    /// Name of its leader when it was first seen.
    pub comm: Comm,
    /// The process whose worker it is.
    pub parent: Option<ProcId>,
}

impl RawEvent {
    /// Decodes a slot; `None` for kinds or values unknown to this version.
    pub fn decode(record: &EventRecord) -> Option<Self> {
        let detail = match EventKind::from_raw(record.kind)? {
            EventKind::Call => Detail::Call(call(record)),
            EventKind::Offcpu => Detail::OffCpu(off_cpu(record)?),
            EventKind::Seen => Detail::Seen(image(record)),
            EventKind::Forked => Detail::Forked(image(record)),
            EventKind::Execed => Detail::Execed(image(record)),
            EventKind::Exited => Detail::Exited(image(record)),
            EventKind::Block => Detail::Block {
                device: DeviceName(name_in(record)),
                operation: BlockOperation::from_raw(u8::try_from(record.what).ok()?)?,
                bytes: record.body[2],
            },
            EventKind::Reclaim => Detail::Reclaim,
            EventKind::TcpRetransmit => Detail::TcpRetransmit,
            EventKind::OomKill => Detail::OomKill,
        };
        Some(Self {
            start: Nanos(record.start_ns),
            duration: Nanos(record.duration_ns),
            tgid: Tgid(record.tgid),
            tid: (record.tid != 0).then_some(Tid(record.tid)),
            process: ProcId(record.proc_id),
            detail,
        })
    }

    /// When it was over.
    pub const fn end(&self) -> Nanos {
        Nanos(self.start.0.saturating_add(self.duration.0))
    }
}

/// The two halves of a word of the body, in memory order.
fn halves(word: u64) -> [u32; 2] {
    zerocopy::transmute!(word)
}

fn name_in(record: &EventRecord) -> [u8; COMM_LEN] {
    let [first, second, _] = record.body;
    zerocopy::transmute!([first, second])
}

fn call(record: &EventRecord) -> RawCall {
    let is = |flag: u8| record.flags & flag != 0;
    let [off_cpu_ns, value, last] = record.body;
    let [code, stack] = halves(last);
    let copy = (record.flags >> EVENT_COPY_SHIFT) & 7;
    RawCall {
        op: OpId(record.what),
        code,
        cold: is(EVENT_COLD),
        outermost: is(EVENT_OUTERMOST),
        sampled: is(EVENT_SAMPLED),
        off_cpu: Nanos(off_cpu_ns),
        bytes: is(EVENT_BYTES).then_some(value),
        copy: copy.checked_sub(1).and_then(CopyKind::from_raw),
        kernel: is(EVENT_KERNEL).then_some(value),
        stack: (stack != NO_STACK).then_some(stack),
    }
}

fn off_cpu(record: &EventRecord) -> Option<RawOffCpu> {
    let [reason, phase] = record.what.to_le_bytes();
    let comm = Comm(name_in(record));
    let [tgid, relation] = halves(record.body[2]);
    let relation = Relation::from_raw(u8::try_from(relation).ok()?)?;
    let by = RawParty { comm, tgid: (tgid != 0).then_some(Tgid(tgid)), relation };
    Some(RawOffCpu {
        reason: Reason::from_raw(reason)?,
        phase: Phase::from_raw(phase)?,
        helper: record.flags & EVENT_HELPER != 0,
        for_lock: record.flags & EVENT_LOCK != 0,
        by: (comm.0[0] != 0).then_some(by),
    })
}

fn image(record: &EventRecord) -> Image {
    let [parent, _] = halves(record.body[2]);
    Image { comm: Comm(name_in(record)), parent: (parent != 0).then_some(ProcId(parent)) }
}

const _: () = assert!(size_of::<EventRecord>() == 64, "a slot fills a line of the cache");
const _: () = assert!(size_of::<CallBody>() == 8 * EVENT_WORDS);
const _: () = assert!(size_of::<BlockBody>() == 8 * EVENT_WORDS);
const _: () = assert!(size_of::<LifeBody>() == 8 * EVENT_WORDS);
const _: () = assert!(size_of::<crate::record::OtherTaskRecord>() == 8 * EVENT_WORDS);
const _: () = assert!(COMM_LEN == 16 && DEVICE_LEN == COMM_LEN, "names fill two words");
const _: () = assert!(CopyKind::COUNT < 8, "the kind of a copy has three bits");

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(kind: EventKind) -> EventRecord {
        EventRecord {
            turn: 2,
            given_up: 0,
            start_ns: 1_000,
            duration_ns: 500,
            tgid: 7,
            tid: 8,
            proc_id: 9,
            kind: kind as u8,
            flags: 0,
            what: 0,
            body: [0; EVENT_WORDS],
        }
    }

    fn word(bytes: &[u8]) -> u64 {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_ne_bytes(word)
    }

    fn pair(first: u32, second: u32) -> u64 {
        word(&[first.to_ne_bytes(), second.to_ne_bytes()].concat())
    }

    #[test]
    fn a_call_reports_its_value_by_kind() {
        let copy = (CopyKind::D2h as u8 + 1) << EVENT_COPY_SHIFT;
        let copied = EventRecord {
            flags: EVENT_OUTERMOST | EVENT_BYTES | copy,
            what: 3,
            body: [40, 4096, pair(2, NO_STACK)],
            ..record(EventKind::Call)
        };
        let event = RawEvent::decode(&copied).unwrap();
        assert_eq!((event.end(), event.tid), (Nanos(1_500), Some(Tid(8))));
        let Detail::Call(call) = event.detail else { panic!("{event:?}") };
        assert_eq!((call.bytes, call.copy, call.kernel), (Some(4096), Some(CopyKind::D2h), None));
        assert_eq!((call.op, call.code, call.stack), (OpId(3), 2, None));
        assert!(call.outermost && !call.cold && !call.sampled);
        let launch = EventRecord {
            flags: EVENT_COLD | EVENT_KERNEL | EVENT_SAMPLED,
            body: [0, 0x5eed, pair(0, 12)],
            ..record(EventKind::Call)
        };
        let Some(Detail::Call(call)) = RawEvent::decode(&launch).map(|event| event.detail) else {
            panic!("no call")
        };
        assert_eq!((call.bytes, call.copy, call.kernel), (None, None, Some(0x5eed)));
        assert!(call.cold && call.sampled && !call.outermost && call.stack == Some(12));
    }

    #[test]
    fn an_interval_reports_who_had_the_cpu() {
        let what = u16::from_le_bytes([Reason::Preempted as u8, Phase::Launch as u8]);
        let body = [word(b"fluent-b"), word(b"it"), pair(77, Relation::Other as u32)];
        let known = EventRecord { what, body, ..record(EventKind::Offcpu) };
        let Some(Detail::OffCpu(interval)) = RawEvent::decode(&known).map(|event| event.detail)
        else {
            panic!("no interval")
        };
        let by = interval.by.unwrap();
        assert_eq!((by.comm.to_text().as_str(), by.tgid), ("fluent-bit", Some(Tgid(77))));
        assert_eq!((interval.reason, interval.phase), (Reason::Preempted, Phase::Launch));
        let unknown = EventRecord { what: 200, ..known };
        assert_eq!(RawEvent::decode(&unknown), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_event_or_none(
            (kind, flags, what) in any::<(u8, u8, u16)>(), body in any::<[u64; EVENT_WORDS]>(),
            times in any::<(u64, u64)>(),
        ) {
            let (start_ns, duration_ns) = times;
            let record = EventRecord { kind, flags, what, body, start_ns, duration_ns, ..record(EventKind::Call) };
            let event = RawEvent::decode(&record);
            prop_assert!(event.is_none() || usize::from(kind) < EventKind::COUNT);
            if let Some(event) = event {
                prop_assert!(event.end() >= event.start);
            }
        }
    }
}
