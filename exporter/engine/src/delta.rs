//! What happened to one process between two snapshots. Counters that went back, as after a restart, count as nothing.

use gpucause_abi::hist::Histogram;
use gpucause_abi::op::{Api, Class, CopyKind, OpId};
use gpucause_abi::record::REASONS;
use gpucause_abi::snapshot::{DispatcherSnapshot, ProcessSnapshot, TimeAccount, Wait};
use gpucause_abi::state::{Phase, Reason, State};
use gpucause_abi::{Nanos, Tid};

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
    /// Live dispatcher threads.
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

/// Time of one thread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ThreadDelta {
    pub(crate) tid: Tid,
    /// Sum of `time`.
    pub(crate) wall: Nanos,
    pub(crate) time: TimeAccount,
}

impl ThreadDelta {
    /// Time in a state, over the phases that are asked for.
    pub(crate) fn in_state(&self, state: State, wanted: impl Fn(Phase) -> bool) -> Nanos {
        let phases = Phase::ALL.iter().filter(|&&phase| wanted(phase));
        Nanos(phases.map(|&phase| self.time.at(phase, state).0).sum())
    }

    /// Time in a phase, running or not.
    pub(crate) fn in_phase(&self, phase: Phase) -> Nanos {
        Nanos(State::all().map(|state| self.time.at(phase, state).0).sum())
    }

    /// Whether it hands work to the GPU.
    pub(crate) fn feeds(&self) -> bool {
        self.in_phase(Phase::Launch).0 + self.in_phase(Phase::Graph).0 > 0
    }
}

fn less(now: Nanos, before: Nanos) -> Nanos {
    now.less(before)
}

fn thread_since(now: &DispatcherSnapshot, before: Option<&DispatcherSnapshot>) -> ThreadDelta {
    let mut time = now.time;
    if let Some(before) = before {
        for (cell, earlier) in time.0.iter_mut().flatten().zip(before.time.0.iter().flatten()) {
            *cell = less(*cell, *earlier);
        }
    }
    ThreadDelta { tid: now.tid, wall: time.total(), time }
}

impl Delta {
    /// What `now` has more than `before`; all of it when there is no before.
    pub(crate) fn between(
        before: Option<&ProcessSnapshot>,
        now: &ProcessSnapshot,
        wall: Nanos,
    ) -> Self {
        let empty = Histogram::default();
        let copies = now.copies.iter().map(|(kind, class, durations)| {
            let same = |(k, c, _): &&(CopyKind, u16, Histogram)| (k, c) == (kind, class);
            let earlier = before.and_then(|before| before.copies.iter().find(same));
            (*kind, *class, durations.since(earlier.map_or(&empty, |(_, _, hist)| hist)))
        });
        let of_thread = |thread: &DispatcherSnapshot| {
            let same = |earlier: &&DispatcherSnapshot| earlier.tid == thread.tid;
            let earlier = before.and_then(|before| before.dispatchers.iter().find(same));
            thread_since(thread, earlier.filter(|earlier| earlier.wall <= thread.wall))
        };
        let worker = now.worker.as_ref().map(|worker| {
            let earlier = before.and_then(|before| before.worker.as_ref());
            thread_since(worker, earlier.filter(|earlier| earlier.tid == worker.tid))
        });
        Self {
            wall,
            calls: now
                .calls
                .iter()
                .map(|call| call.op)
                .zip(&now.calls)
                .map(|(op, call)| CallDelta::of(before, now, op, call.cold))
                .filter(|call| call.durations.count() > 0)
                .collect(),
            copies: copies.filter(|(_, _, durations)| durations.count() > 0).collect(),
            allocated: now
                .memory
                .allocated
                .saturating_sub(before.map_or(0, |b| b.memory.allocated)),
            freed: now.memory.freed.saturating_sub(before.map_or(0, |b| b.memory.freed)),
            oom_kills: now.host.oom_kills.saturating_sub(before.map_or(0, |b| b.host.oom_kills)),
            launch_gap: now.launch_gap.since(before.map_or(&empty, |before| &before.launch_gap)),
            waits: waits_since(before, now),
            threads: now.dispatchers.iter().map(of_thread).collect(),
            worker,
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
                .map(|call| call.durations.count())
                .sum::<u64>()
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
                .map(|call| call.durations.sum.0)
                .sum::<u64>()
        };
        Nanos(Api::ALL.iter().map(|&api| of_api(api)).max().unwrap_or(0))
    }

    /// Kernels and graphs handed to the GPU.
    pub(crate) fn launches(&self) -> u64 {
        let graphs = |name: &str| matches!(name, "cudaGraphLaunch" | "cuGraphLaunch");
        self.count(Class::Launch, |_| true) + self.count(Class::Graph, graphs)
    }

    /// The feeding thread that has most of what is asked for.
    pub(crate) fn victim(&self, amount: impl Fn(&ThreadDelta) -> Nanos) -> Option<&ThreadDelta> {
        let feeding = self.threads.iter().filter(|thread| thread.feeds());
        feeding.filter(|thread| amount(thread).0 > 0).max_by_key(|thread| amount(thread))
    }
}

impl CallDelta {
    fn of(before: Option<&ProcessSnapshot>, now: &ProcessSnapshot, op: OpId, cold: bool) -> Self {
        let of = |process: &ProcessSnapshot| {
            let call = process.calls.iter().find(|call| (call.op, call.cold) == (op, cold));
            let stall = process.stalls.iter().find(|stall| (stall.op, stall.cold) == (op, cold));
            let (durations, stalled) =
                call.map(|call| (call.durations.clone(), call.stalled.clone())).unwrap_or_default();
            (durations, stalled, stall.map_or([Nanos(0); REASONS], |stall| stall.offcpu))
        };
        let (durations, stalled, offcpu) = of(now);
        let Some(before) = before else { return Self { op, cold, durations, stalled, offcpu } };
        let (durations_before, stalled_before, offcpu_before) = of(before);
        let mut offcpu = offcpu;
        for (time, earlier) in offcpu.iter_mut().zip(offcpu_before) {
            *time = less(*time, earlier);
        }
        Self {
            op,
            cold,
            durations: durations.since(&durations_before),
            stalled: stalled.since(&stalled_before),
            offcpu,
        }
    }
}

fn waits_since(before: Option<&ProcessSnapshot>, now: &ProcessSnapshot) -> Vec<Wait> {
    let since = |wait: &Wait| {
        let key = |wait: &Wait| (wait.reason, wait.phase, wait.on);
        let earlier = before
            .and_then(|before| before.waits.iter().find(|earlier| key(earlier) == key(wait)))
            .map_or((Nanos(0), Nanos(0)), |earlier| (earlier.total, earlier.held));
        Wait { total: less(wait.total, earlier.0), held: less(wait.held, earlier.1), ..*wait }
    };
    now.waits.iter().map(since).filter(|wait| wait.total.0 > 0).collect()
}

/// Reasons for which a thread that could run has no CPU.
pub(crate) const NO_CPU: [Reason; 2] = [Reason::Preempted, Reason::Runqueue];
