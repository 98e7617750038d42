//! What happened to one process between two snapshots. Counters that went back, as after a restart, count as nothing.

mod thread;

use std::collections::HashMap;

use gpucause_abi::Nanos;
use gpucause_abi::hist::Histogram;
use gpucause_abi::op::{Api, Class, CopyKind, OpId};
use gpucause_abi::record::REASONS;
use gpucause_abi::snapshot::{CallSnapshot, DispatcherSnapshot, ProcessSnapshot, Wait};
use gpucause_abi::state::Reason;

use crate::effect::total;

pub(crate) use thread::ThreadDelta;

/// Accounts of one process over one window.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Delta {
    /// Length of the window.
    pub(crate) wall: Nanos,
    /// Calls by op and coldness.
    pub(crate) calls: Vec<CallDelta>,
    /// Copies by kind and size class.
    pub(crate) copies: Vec<(CopyKind, u16, Histogram)>,
    /// Device memory taken and given back, in bytes.
    pub(crate) allocated: u64,
    /// Bytes given back.
    pub(crate) freed: u64,
    /// Times that the kernel chose the process to be killed for lack of memory.
    pub(crate) oom_kills: u64,
    /// From launch to launch.
    pub(crate) launch_gap: Histogram,
    /// Whom dispatchers and workers waited for.
    pub(crate) waits: Vec<Wait>,
    /// Dispatcher threads, those that ended in the window as one.
    pub(crate) threads: Vec<ThreadDelta>,
    /// The main thread of a worker.
    pub(crate) worker: Option<ThreadDelta>,
}

/// Calls of one op.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CallDelta {
    pub(crate) op: OpId,
    pub(crate) cold: bool,
    /// All of them.
    pub(crate) durations: Histogram,
    /// Those that were off the CPU at some time.
    pub(crate) stalled: Histogram,
    /// Off-CPU time inside them, by reason.
    pub(crate) offcpu: [Nanos; REASONS],
}

/// The entry that belongs to one of a later list, where it was last or elsewhere.
fn entry<T>(earlier: &[T], index: usize, same: impl Fn(&T) -> bool) -> Option<&T> {
    earlier
        .get(index)
        .filter(|&item| same(item))
        .or_else(|| earlier.iter().find(|&item| same(item)))
}

impl Delta {
    /// What `now` has more than `before`; all of it when there is no before.
    pub(crate) fn between(
        before: Option<&ProcessSnapshot>,
        now: &ProcessSnapshot,
        wall: Nanos,
    ) -> Self {
        let nothing = ProcessSnapshot::new(now.id, now.tgid, now.comm);
        let earlier = before.unwrap_or(&nothing);
        let copies = now.copies.iter().enumerate().map(|(index, (kind, class, durations))| {
            let same = |(k, c, _): &(CopyKind, u16, Histogram)| (k, c) == (kind, class);
            let earlier = entry(&earlier.copies, index, same);
            (*kind, *class, earlier.map_or_else(|| durations.clone(), |e| durations.since(&e.2)))
        });
        let of_thread = |(index, thread): (usize, &DispatcherSnapshot)| {
            let earlier = entry(&earlier.dispatchers, index, |earlier| earlier.tid == thread.tid);
            thread::since(earlier, thread, wall)
        };
        let mut threads: Vec<_> =
            now.dispatchers.iter().enumerate().filter_map(of_thread).collect();
        threads.extend(thread::ended(before, now, &threads, wall));
        let calls = now.calls.iter().enumerate();
        let calls = calls.map(|(index, call)| CallDelta::of(earlier, now, index, call));
        let worker = now.worker.as_ref();
        Self {
            wall,
            calls: calls.filter(|call| !call.durations.slots.is_empty()).collect(),
            copies: copies.filter(|(_, _, durations)| !durations.slots.is_empty()).collect(),
            allocated: now.memory.allocated.saturating_sub(earlier.memory.allocated),
            freed: now.memory.freed.saturating_sub(earlier.memory.freed),
            oom_kills: now.host.oom_kills.saturating_sub(earlier.host.oom_kills),
            launch_gap: now.launch_gap.since(&earlier.launch_gap),
            waits: waits_since(earlier, now),
            threads,
            worker: worker.and_then(|now| thread::since(earlier.worker.as_ref(), now, wall)),
        }
    }

    /// Number of calls of a class, as the layer saw them that saw most: the runtime calls the driver, and both may be
    /// observed.
    pub(crate) fn count(&self, class: Class, wanted: impl Fn(&str) -> bool) -> u64 {
        let of_api = |api: Api| {
            self.calls
                .iter()
                .filter(|call| {
                    call.op
                        .op()
                        .is_some_and(|op| op.api == api && op.class == class && wanted(op.name))
                })
                .fold(0, |all: u64, call| all.saturating_add(call.durations.count()))
        };
        Api::ALL.iter().map(|&api| of_api(api)).max().unwrap_or(0)
    }

    /// Time in calls of a class, as the layer saw it that saw most.
    pub(crate) fn time_in(&self, class: Class, wanted: impl Fn(&str) -> bool) -> Nanos {
        let of_api = |api: Api| {
            self.calls
                .iter()
                .filter(|call| {
                    call.op
                        .op()
                        .is_some_and(|op| op.api == api && op.class == class && wanted(op.name))
                })
                .fold(0, |all: u64, call| all.saturating_add(call.durations.sum.0))
        };
        Nanos(Api::ALL.iter().map(|&api| of_api(api)).max().unwrap_or(0))
    }

    /// Kernels and graphs handed to the GPU.
    pub(crate) fn launches(&self) -> u64 {
        let graphs = |name: &str| matches!(name, "cudaGraphLaunch" | "cuGraphLaunch");
        self.count(Class::Launch, |_| true).saturating_add(self.count(Class::Graph, graphs))
    }

    /// The threads that hand work to the GPU; when none does, the one that has done so most.
    pub(crate) fn feeders(&self) -> impl Iterator<Item = &ThreadDelta> {
        let nobody = !self.threads.iter().any(ThreadDelta::feeds);
        let main = self.threads.iter().filter(|thread| nobody && thread.fed.0 > 0);
        let main = main.max_by_key(|thread| thread.fed);
        self.threads.iter().filter(|thread| thread.feeds()).chain(main)
    }

    /// The feeding thread that has most of what is asked for.
    pub(crate) fn victim(&self, amount: impl Fn(&ThreadDelta) -> Nanos) -> Option<&ThreadDelta> {
        let feeders = self.feeders().map(|thread| (amount(thread), thread));
        feeders
            .filter(|(amount, _)| amount.0 > 0)
            .max_by_key(|&(amount, _)| amount)
            .map(|best| best.1)
    }

    /// The thread that has spent most time in launches.
    pub(crate) fn main_feeder(&self) -> Option<&ThreadDelta> {
        self.feeders().max_by_key(|thread| thread.fed)
    }

    /// Time in which other threads of the process worked for the GPU: one that waits for them loses nothing by it.
    pub(crate) fn worked_by_others(&self, thread: &ThreadDelta) -> Nanos {
        let others = self.threads.iter().filter(|other| other.feeds() && other.tid != thread.tid);
        total(others.map(ThreadDelta::worked))
    }
}

impl CallDelta {
    fn of(
        before: &ProcessSnapshot,
        now: &ProcessSnapshot,
        index: usize,
        call: &CallSnapshot,
    ) -> Self {
        let (op, cold) = (call.op, call.cold);
        let same = |other: &CallSnapshot| (other.op, other.cold) == (op, cold);
        let earlier = entry(&before.calls, index, same);
        let stall = |process: &ProcessSnapshot| {
            let stall = process.stalls.iter().find(|stall| (stall.op, stall.cold) == (op, cold));
            stall.map_or([Nanos(0); REASONS], |stall| stall.offcpu)
        };
        let durations = change(earlier.map(|earlier| &earlier.durations), &call.durations);
        // Ops that were not called in the window are most of a process's.
        if durations.slots.is_empty() {
            let (stalled, offcpu) = Default::default();
            return Self { op, cold, durations, stalled, offcpu };
        }
        let stalled = change(earlier.map(|earlier| &earlier.stalled), &call.stalled);
        let mut offcpu = stall(now);
        for (time, earlier) in offcpu.iter_mut().zip(stall(before)) {
            *time = time.less(earlier);
        }
        Self { op, cold, durations, stalled, offcpu }
    }
}

/// Values that came after `before`.
fn change(before: Option<&Histogram>, now: &Histogram) -> Histogram {
    match before {
        None => now.clone(),
        Some(before) if before.sum == now.sum && before.slots == now.slots => Histogram::default(),
        Some(before) => now.since(before),
    }
}

fn waits_since(before: &ProcessSnapshot, now: &ProcessSnapshot) -> Vec<Wait> {
    let key = |wait: &Wait| (wait.reason as u8, wait.phase as u8, wait.on);
    let earlier: HashMap<_, _> = before.waits.iter().map(|wait| (key(wait), wait)).collect();
    let since = |wait: &Wait| {
        let (total, held) =
            earlier.get(&key(wait)).map_or((Nanos(0), Nanos(0)), |e| (e.total, e.held));
        let total = wait.total.less(total);
        Wait { total, held: wait.held.less(held).min(total), ..*wait }
    };
    now.waits.iter().map(since).filter(|wait| wait.total.0 > 0).collect()
}

/// Reasons for which a thread that could run has no CPU.
pub(crate) const NO_CPU: [Reason; 2] = [Reason::Preempted, Reason::Runqueue];
