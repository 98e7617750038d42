//! Accounts rebuilt from events, for recordings without accounts: what a node would have shown for these events.
//!
//! Only exact quantities are rebuilt: durations of calls, bytes copied and allocated, errors, off-CPU intervals. Time accounts need
//! complete data and stay empty.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::time::Duration;

use gpucause_abi::hist::{Histogram, SLOTS, slot_of};
use gpucause_abi::measure::Measures;
use gpucause_abi::op::{Class, CopyKind, op_of_symbol};
use gpucause_abi::record::REASONS;
use gpucause_abi::snapshot::{
    BlockIo, CallKind, CallSnapshot, Comm, DeviceName, HostUse, ProcessSnapshot, Snapshot,
    StallSnapshot,
};
use gpucause_abi::state::{BlockOperation, Reason, Role};
use gpucause_abi::{Nanos, ProcId, Tgid};

use gpucause_trace::recording::{
    Call, Event, Filter, Kind, NodeIndex, Process, Recording, RecordingError,
};

/// The accounts at one time.
#[derive(Debug, Clone, PartialEq)]
pub struct TimedSnapshot {
    /// The time, in nanoseconds since the Unix epoch by the node's clock.
    pub unix_ns: i64,
    /// The accounts. Their clock is zero when the first event begins.
    pub snapshot: Snapshot,
}

/// Calls `each` with the accounts of one node in intervals of `every`, and at the end, until it breaks.
///
/// # Errors
/// When the recording is damaged. `each` got the snapshots before the damage.
pub fn rebuild(
    recording: &dyn Recording,
    node: NodeIndex,
    every: Duration,
    each: &mut dyn FnMut(TimedSnapshot) -> ControlFlow<()>,
) -> Result<(), RecordingError> {
    let every = i64::try_from(every.as_nanos()).unwrap_or(i64::MAX).max(1);
    let mut accounts = Accounts::of(recording, node);
    let mut begun = Begun::new();
    let mut serial = 0;
    let mut due = None;
    let mut broken = false;
    recording.events(&Filter::default(), &mut |event| {
        if event.id.node != node {
            return ControlFlow::Continue(());
        }
        let mut next = *due.get_or_insert_with(|| {
            accounts.origin_ns = event.start_ns;
            event.start_ns.saturating_add(every)
        });
        while next <= event.start_ns {
            accounts.end_until(&mut begun, next);
            if each(accounts.snapshot(next)).is_break() {
                broken = true;
                return ControlFlow::Break(());
            }
            // A long pause has nothing to show but the ends of what began before it.
            let pause = event.start_ns.saturating_sub(next) / every;
            let steps = if begun.is_empty() { pause.max(1) } else { 1 };
            next = next.saturating_add(every.saturating_mul(steps));
        }
        due = Some(next);
        serial += 1;
        begun.insert((event.end_ns(), serial), event.clone());
        ControlFlow::Continue(())
    })?;
    let last = begun.last_key_value().map(|(&(end, _), _)| end);
    if let Some(last) = last.filter(|_| !broken) {
        accounts.end_until(&mut begun, last);
        let _ = each(accounts.snapshot(last));
    }
    Ok(())
}

/// Events that have begun, by their ends and in the order of their starts.
type Begun = BTreeMap<(i64, u64), Event>;

/// Durations that are being counted.
#[derive(Debug)]
struct Counting {
    slots: Vec<u64>,
    sum: u64,
    max: u64,
}

impl Default for Counting {
    fn default() -> Self {
        Self { slots: vec![0; SLOTS], sum: 0, max: 0 }
    }
}

impl Counting {
    fn add(&mut self, duration_ns: u64) {
        if let Some(slot) = self.slots.get_mut(slot_of(Nanos(duration_ns))) {
            *slot += 1;
        }
        self.sum = self.sum.saturating_add(duration_ns);
        self.max = self.max.max(duration_ns);
    }

    fn histogram(&self) -> Histogram {
        Histogram::from_slots(Nanos(self.sum), Nanos(self.max), self.slots.iter().copied())
    }
}

/// Calls of one op, cold ones apart.
#[derive(Debug, Default)]
struct Calls {
    all: Counting,
    stalled: Counting,
    off_cpu_ns: u64,
}

/// Calls and waits of one process so far.
#[derive(Debug)]
struct Account {
    base: ProcessSnapshot,
    /// When the first event that has ended began.
    first_seen: Option<Nanos>,
    calls: BTreeMap<CallKind, Calls>,
    off_cpu: BTreeMap<Reason, Counting>,
}

/// Accounts of a node's processes so far.
#[derive(Debug)]
struct Accounts {
    origin_ns: i64,
    by_process: HashMap<u32, Account>,
}

fn comm(text: &str) -> Comm {
    Comm(fixed(text))
}

fn fixed<const LEN: usize>(text: &str) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    for (byte, own) in bytes.iter_mut().zip(text.bytes()) {
        *byte = own;
    }
    bytes
}

fn account(index: u32, process: &Process) -> Account {
    let mut base = ProcessSnapshot::new(ProcId(index), Tgid(process.pid), comm(&process.comm));
    base.rank = process.rank.map(|rank| (rank, 0));
    Account { base, first_seen: None, calls: BTreeMap::new(), off_cpu: BTreeMap::new() }
}

impl Accounts {
    fn of(recording: &dyn Recording, node: NodeIndex) -> Self {
        let processes = (0u32..).zip(recording.processes());
        let own = processes.filter(|(_, process)| process.node == node);
        let by_process = own.map(|(index, process)| (index, account(index, process))).collect();
        Self { origin_ns: 0, by_process }
    }

    fn since_start(&self, unix_ns: i64) -> Nanos {
        Nanos(u64::try_from(unix_ns.saturating_sub(self.origin_ns)).unwrap_or_default())
    }

    fn end_until(&mut self, begun: &mut Begun, until_ns: i64) {
        while let Some(first) = begun.first_entry().filter(|own| own.key().0 <= until_ns) {
            self.end(&first.remove());
        }
    }

    fn end(&mut self, event: &Event) {
        let (start, end) = (self.since_start(event.start_ns), self.since_start(event.end_ns()));
        let Some(account) = self.by_process.get_mut(&event.process.0) else { return };
        account.first_seen = Some(account.first_seen.map_or(start, |first| first.min(start)));
        match &event.kind {
            Kind::Call(call) => account.end_call(call, event.duration_ns),
            Kind::OffCpu(wait) => {
                let reason = wait.reason.unwrap_or(Reason::Other);
                account.off_cpu.entry(reason).or_default().add(event.duration_ns);
            }
            Kind::BlockIo { operation, bytes, device } => {
                let device = DeviceName(fixed(device.as_deref().unwrap_or("unknown")));
                account.end_io(device, *operation, event.duration_ns, *bytes);
            }
            Kind::PageAllocation { bytes } => account.base.measures.page_alloc_bytes += bytes,
            Kind::TcpRetransmit => account.base.measures.tcp_retransmits += 1,
            Kind::OomKill => account.base.measures.oom_kills += 1,
            // A thread ends in the same words as its process.
            Kind::Exit if event.tid == account.base.tgid.0 => account.base.ended = Some(end),
            Kind::Exit | Kind::Start | Kind::Other(_) => {}
        }
    }

    fn snapshot(&self, unix_ns: i64) -> TimedSnapshot {
        let mut snapshot = Snapshot { taken_at: self.since_start(unix_ns), ..Snapshot::default() };
        snapshot.processes = self.by_process.values().filter_map(Account::snapshot).collect();
        snapshot.processes.sort_by_key(|process| process.id);
        TimedSnapshot { unix_ns, snapshot }
    }
}

impl Account {
    fn end_call(&mut self, call: &Call, duration_ns: u64) {
        self.base.dispatches = true;
        let Some(id) = op_of_symbol(&call.op) else { return };
        let cold = call.cold == Some(true);
        let calls = self.calls.entry((id, cold, !call.outermost)).or_default();
        calls.all.add(duration_ns);
        if let Some(off_cpu) = call.off_cpu_ns.filter(|&ns| ns > 0) {
            calls.stalled.add(duration_ns);
            calls.off_cpu_ns += off_cpu;
        }
        if call.code != 0 {
            let code = call.code.cast_unsigned();
            match self.base.errors.iter_mut().find(|(op, own, _)| *op == id && *own == code) {
                Some((_, _, count)) => *count += 1,
                None => self.base.errors.push((id, code, 1)),
            }
        }
        let (Some(bytes), true, 0) = (call.bytes, call.outermost, call.code) else { return };
        match id.op().map(|op| op.class) {
            Some(Class::Alloc) => self.base.memory.allocated += bytes,
            Some(Class::Free) => self.base.memory.freed += bytes,
            Some(Class::Memcpy) => {
                let label = call.copy.unwrap_or("default");
                if let Some(kind) = CopyKind::ALL.iter().find(|kind| kind.label() == label) {
                    self.base.copied[*kind as usize] += bytes;
                }
            }
            _ => {}
        }
    }

    fn end_io(&mut self, device: DeviceName, operation: BlockOperation, took: u64, bytes: u64) {
        let disks = &mut self.base.host.block_io;
        let known = |own: &&mut BlockIo| own.device == device && own.operation == operation;
        match disks.iter_mut().find(known) {
            Some(own) => {
                own.time.0 += took;
                own.bytes += bytes;
                own.requests += 1;
            }
            None => {
                let time = Nanos(took);
                disks.push(BlockIo { device, operation, time, bytes, requests: 1 });
            }
        }
    }

    /// Nothing before its first event.
    fn snapshot(&self) -> Option<ProcessSnapshot> {
        let mut process = self.base.clone();
        process.first_seen = self.first_seen.unwrap_or_default();
        for (&(op, cold, nested), own) in &self.calls {
            let stalled = own.stalled.histogram();
            if stalled.count() > 0 {
                // A call's event tells for how long, not why.
                let mut offcpu = [Nanos(0); REASONS];
                offcpu[Reason::Other as usize] = Nanos(own.off_cpu_ns);
                process.stalls.push(StallSnapshot {
                    op,
                    cold,
                    nested,
                    calls: stalled.count(),
                    offcpu,
                });
            }
            let durations = own.all.histogram();
            process.calls.push(CallSnapshot { op, cold, nested, durations, stalled });
        }
        let role = if process.dispatches { Role::Dispatcher } else { Role::Helper };
        for (&reason, times) in &self.off_cpu {
            process.offcpu.push((role, reason, times.histogram()));
        }
        let is_empty = process.calls.is_empty()
            && process.offcpu.is_empty()
            && process.host == HostUse::default()
            && process.measures == Measures::default();
        (!is_empty).then_some(process)
    }
}

#[cfg(test)]
mod tests;
