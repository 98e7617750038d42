//! The subset of a snapshot that deltas need: several are kept of every process.

use std::collections::HashMap;
use std::sync::Arc;

use gpucause_abi::hist::Histogram;
use gpucause_abi::measure::Measures;
use gpucause_abi::op::{CopyKind, OpId};
use gpucause_abi::record::{PHASES, STATES};
use gpucause_abi::snapshot::{
    BlockIo, CallKind, CallSnapshot, Comm, DispatcherSnapshot, LaunchSampling, ProcessSnapshot,
    StallSnapshot, TimeAccount, Wait,
};
use gpucause_abi::{Nanos, ProcId, Tgid, Tid};

use crate::input::EngineInput;

/// A previous snapshot.
#[derive(Debug)]
pub(crate) struct Baseline {
    pub(crate) at: Nanos,
    /// Total time for which the CPU limit of its cgroup had throttled each process.
    pub(crate) throttled_cgroups: HashMap<ProcId, Nanos>,
    pub(crate) processes: HashMap<ProcId, ProcessBaseline>,
}

impl Baseline {
    /// Shares with the previous baseline the lists that have not changed: several are kept, and most processes of a large host are idle.
    /// The snapshot itself is shared by others: a copy of the whole for what is taken from it would need 12 MiB for 1,000 processes.
    pub(crate) fn new(input: &EngineInput, previous: Option<&Self>) -> Self {
        let snapshot = &input.snapshot;
        let process = |own: &ProcessSnapshot| {
            let previous = previous.and_then(|previous| previous.processes.get(&own.id));
            (own.id, ProcessBaseline::new(own, previous))
        };
        Self {
            at: snapshot.taken_at,
            throttled_cgroups: input.throttled_cgroups.clone(),
            processes: snapshot.processes.iter().map(process).collect(),
        }
    }
}

/// Accounts of a process in a previous snapshot. Lists keep the order of the snapshot.
#[derive(Debug)]
pub(crate) struct ProcessBaseline {
    pub(crate) identity: Identity,
    pub(crate) calls: Arc<[CallBaseline]>,
    pub(crate) stalls: Arc<[StallSnapshot]>,
    pub(crate) launches: LaunchSampling,
    pub(crate) untimed_calls: Box<[(OpId, u64)]>,
    pub(crate) errors: Box<[(OpId, u32, u64)]>,
    pub(crate) copies: Box<[(CopyKind, u16, Histogram)]>,
    pub(crate) waits: Arc<[Wait]>,
    pub(crate) threads: Box<[ThreadBaseline]>,
    pub(crate) worker: Option<Box<ThreadBaseline>>,
    pub(crate) dispatcher_time: PackedTime,
    pub(crate) launch_gap: Histogram,
    pub(crate) measures: Measures,
    pub(crate) block_io: Box<[BlockIo]>,
    /// Device memory allocated in total, in bytes.
    pub(crate) allocated: u64,
}

/// The previous list where it has not changed, else a new one.
fn shared<T: PartialEq<U>, U>(
    previous: Option<&Arc<[T]>>,
    now: &[U],
    new: impl FnOnce(&[U]) -> Arc<[T]>,
) -> Arc<[T]> {
    let previous = previous.filter(|own| own[..] == *now);
    previous.map_or_else(|| new(now), Arc::clone)
}

impl ProcessBaseline {
    /// Shares with the previous one what has not changed.
    pub(crate) fn new(process: &ProcessSnapshot, previous: Option<&Self>) -> Self {
        Self {
            identity: process.into(),
            calls: shared(previous.map(|own| &own.calls), &process.calls, |calls| {
                calls.iter().map(|call| call.into()).collect()
            }),
            stalls: shared(previous.map(|own| &own.stalls), &process.stalls, |own| own.into()),
            launches: process.launches,
            untimed_calls: process.untimed_calls.as_slice().into(),
            errors: process.errors.as_slice().into(),
            copies: process.copies.as_slice().into(),
            waits: shared(previous.map(|own| &own.waits), &process.waits, |own| own.into()),
            threads: process.dispatchers.iter().map(ThreadBaseline::from).collect(),
            worker: process.worker.as_deref().map(|worker| Box::new(worker.into())),
            dispatcher_time: (&process.dispatcher_time).into(),
            launch_gap: process.launch_gap.clone(),
            measures: process.measures,
            block_io: process.host.block_io.as_slice().into(),
            allocated: process.memory.allocated,
        }
    }
}

/// See [`CallSnapshot`].
#[derive(Debug)]
pub(crate) struct CallBaseline {
    pub(crate) kind: CallKind,
    pub(crate) durations: Histogram,
    /// `None` when empty, as for most ops.
    pub(crate) stalled: Option<Box<Histogram>>,
}

impl From<&CallSnapshot> for CallBaseline {
    fn from(call: &CallSnapshot) -> Self {
        let stalled = (call.stalled.count() > 0).then(|| Box::new(call.stalled.clone()));
        Self { kind: call.kind(), durations: call.durations.clone(), stalled }
    }
}

impl PartialEq<CallSnapshot> for CallBaseline {
    fn eq(&self, now: &CallSnapshot) -> bool {
        let stalled = self.stalled.as_deref();
        self.kind == now.kind()
            && self.durations == now.durations
            && stalled.map_or(now.stalled.count() == 0, |stalled| *stalled == now.stalled)
    }
}

/// See [`DispatcherSnapshot`].
#[derive(Debug)]
pub(crate) struct ThreadBaseline {
    pub(crate) tid: Tid,
    pub(crate) wall: Nanos,
    pub(crate) time: PackedTime,
}

impl From<&DispatcherSnapshot> for ThreadBaseline {
    fn from(thread: &DispatcherSnapshot) -> Self {
        Self { tid: thread.tid, wall: thread.wall, time: (&thread.time).into() }
    }
}

/// A time account without its empty cells: most are empty.
#[derive(Debug, Clone)]
pub(crate) struct PackedTime(Box<[Cell]>);

/// Bytes instead of a `u64`: no padding.
#[derive(Debug, Clone)]
struct Cell {
    index: u8,
    nanos: [u8; 8],
}

const _: () = assert!(PHASES * STATES <= 1 << u8::BITS);

impl From<&TimeAccount> for PackedTime {
    fn from(time: &TimeAccount) -> Self {
        let is_used = |time: &Nanos| time.0 > 0;
        let all = time.0.as_flattened();
        let mut cells = Vec::with_capacity(all.iter().filter(|time| is_used(time)).count());
        let used = (0..).zip(all).filter(|(_, time)| is_used(time));
        cells.extend(used.map(|(index, time)| Cell { index, nanos: time.0.to_ne_bytes() }));
        Self(cells.into())
    }
}

impl PackedTime {
    /// The increase from this to `now`, cell by cell.
    pub(crate) fn until(&self, mut now: TimeAccount) -> TimeAccount {
        let cells = now.0.as_flattened_mut();
        for Cell { index, nanos } in &self.0 {
            if let Some(cell) = cells.get_mut(usize::from(*index)) {
                *cell = cell.less(Nanos(u64::from_ne_bytes(*nanos)));
            }
        }
        now
    }

    pub(crate) fn unpacked(&self) -> TimeAccount {
        let mut time = TimeAccount::default();
        let cells = time.0.as_flattened_mut();
        for Cell { index, nanos } in &self.0 {
            if let Some(cell) = cells.get_mut(usize::from(*index)) {
                *cell = Nanos(u64::from_ne_bytes(*nanos));
            }
        }
        time
    }
}

/// Identity of a process for a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) pid: Tgid,
    pub(crate) comm: Comm,
    pub(crate) dispatches: bool,
    pub(crate) first_seen: Nanos,
    pub(crate) ended: Option<Nanos>,
}

impl From<&ProcessSnapshot> for Identity {
    fn from(process: &ProcessSnapshot) -> Self {
        let ProcessSnapshot { tgid: pid, comm, dispatches, first_seen, ended, .. } = *process;
        Self { pid, comm, dispatches, first_seen, ended }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delta::Delta;
    use gpucause_abi::Tgid;
    use gpucause_abi::op::OPS;
    use gpucause_abi::snapshot::Comm;
    use gpucause_abi::state::{Phase, Reason, Relation};
    use proptest::prelude::*;

    const SECOND: Nanos = Nanos(1_000_000_000);

    /// A process that has a value in every account.
    fn busy() -> ProcessSnapshot {
        let comm = Comm([b'p'; 16]);
        let mut process = ProcessSnapshot::new(ProcId(1), Tgid(7), comm);
        let mut histogram = Histogram::default();
        (histogram.sum, histogram.max) = (SECOND, SECOND);
        histogram.slots = [(300, 9)].into_iter().collect();
        let named = |name: &str| OpId(OPS.iter().position(|op| op.name == name).unwrap() as u16);
        let op = named("cudaMalloc");
        let (durations, stalled) = (histogram.clone(), histogram.clone());
        process.calls = vec![CallSnapshot { op, cold: false, nested: false, durations, stalled }];
        let offcpu = [SECOND; Reason::COUNT];
        process.stalls = vec![StallSnapshot { op, cold: false, nested: false, calls: 9, offcpu }];
        process.errors = vec![(op, 2, 5)];
        process.copies = vec![(CopyKind::D2h, 3, histogram.clone())];
        (process.memory.allocated, process.measures.oom_kills) = (1 << 30, 1);
        let mut time = TimeAccount::default();
        time.0[Phase::Launch as usize][0] = SECOND;
        let thread = |tid| DispatcherSnapshot { tid: Tid(tid), wall: SECOND, time, inflight: None };
        (process.dispatchers, process.worker) = (vec![thread(7)], Some(Box::new(thread(8))));
        process.dispatcher_time = time;
        (process.launch_gap, process.measures.ended_waits) = (histogram, SECOND);
        process.waits = vec![Wait {
            tid: Some(Tid(7)),
            reason: Reason::Futex,
            phase: Phase::Host,
            relation: Relation::from_raw(0).unwrap(),
            on: comm,
            tgid: None,
            total: SECOND,
            held: SECOND,
            behind: SECOND,
            holder: None,
            lock: None,
            syscall: None,
        }];
        process
    }

    fn account() -> impl Strategy<Value = TimeAccount> {
        let cell = prop_oneof![3 => Just(0), 1 => any::<u64>()];
        prop::collection::vec(cell, PHASES * STATES).prop_map(|cells| {
            let mut account = TimeAccount::default();
            for (cell, ns) in account.0.as_flattened_mut().iter_mut().zip(cells) {
                *cell = Nanos(ns);
            }
            account
        })
    }

    proptest! {
        #[test]
        fn packed_time_unpacks_to_the_same_and_is_subtracted_cell_by_cell(baseline in account(), now in account()) {
            let packed = PackedTime::from(&baseline);
            prop_assert_eq!(packed.unpacked(), baseline);
            let until = packed.until(now);
            let both = now.0.as_flattened().iter().zip(baseline.0.as_flattened());
            let expected: Vec<_> = both.map(|(now, baseline)| now.less(*baseline)).collect();
            prop_assert_eq!(until.0.as_flattened(), expected.as_slice());
        }
    }

    #[test]
    fn a_process_equal_to_its_baseline_did_nothing() {
        let baseline = ProcessBaseline::new(&busy(), None);
        let now = busy();
        let delta = Delta::between(Some(&baseline), &now, SECOND);
        assert!(delta.calls().is_empty());
        assert_eq!(delta.refused_allocations(), 0);
        assert!(delta.copies().all(|(_, _, count, time)| (count, time) == (0, Nanos(0))));
        assert_eq!((delta.allocated(), delta.measures().oom_kills), (0, 0));
        assert!(delta.threads().iter().all(|thread| thread.wall == Nanos(0)));
        assert!(delta.worker().is_none_or(|worker| worker.wall == Nanos(0)));
        assert_eq!(delta.launch_gap().count, 0);
        assert_eq!(delta.measures().ended_waits, Nanos(0));
        assert!(delta.waits().is_empty());

        // Without a baseline all of it counts.
        let delta = Delta::between(None, &now, Nanos(2 * SECOND.0));
        assert_eq!((delta.calls().len(), delta.refused_allocations()), (1, 5));
        assert_eq!((delta.copies().count(), delta.waits().len()), (1, 1));
        assert_eq!((delta.launch_gap().count, delta.measures().ended_waits), (9, SECOND));
        let called = delta.calls().first().unwrap();
        assert_eq!(called.offcpu(), [SECOND; Reason::COUNT]);
    }

    #[test]
    fn lists_of_a_process_that_did_nothing_are_shared_and_others_are_not() {
        let first = ProcessBaseline::new(&busy(), None);
        let idle = ProcessBaseline::new(&busy(), Some(&first));
        let is_shared = |own: &ProcessBaseline| {
            let calls = Arc::ptr_eq(&own.calls, &first.calls);
            (calls, Arc::ptr_eq(&own.stalls, &first.stalls), Arc::ptr_eq(&own.waits, &first.waits))
        };
        assert_eq!(is_shared(&idle), (true, true, true));
        let mut now = busy();
        now.calls[0].stalled.max.0 += 1;
        assert_eq!(is_shared(&ProcessBaseline::new(&now, Some(&first))), (false, true, true));
        now.stalls[0].calls += 1;
        now.waits.clear();
        assert_eq!(is_shared(&ProcessBaseline::new(&now, Some(&first))), (false, false, false));
    }

    #[test]
    fn off_cpu_time_in_calls_of_the_baseline_is_not_part_of_the_window() {
        let baseline = ProcessBaseline::new(&busy(), None);
        let mut now = busy();
        now.calls[0].durations.sum.0 += 5;
        now.stalls[0].offcpu[0].0 += 3;
        let delta = Delta::between(Some(&baseline), &now, SECOND);
        let call = delta.calls().first().unwrap();
        let mut offcpu = [Nanos(0); Reason::COUNT];
        offcpu[0] = Nanos(3);
        assert_eq!((call.sum, call.offcpu()), (Nanos(5), offcpu));
    }
}
