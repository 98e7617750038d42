//! Activity of threads between two snapshots, including threads that ended.

use gpucause_abi::snapshot::{DispatcherSnapshot, ProcessSnapshot, TimeAccount};
use gpucause_abi::state::{Phase, Reason, State};
use gpucause_abi::{Nanos, Tid};

use crate::baseline::{ProcessBaseline, ThreadBaseline};
use crate::times::{less, share, total};

/// Waits for work, a message or a time.
const IDLE: [Reason; 5] = [Reason::Futex, Reason::Poll, Reason::Net, Reason::Sleep, Reason::Other];

/// An account may exceed the window by this factor, since threads are not read at the same time; beyond it is discarded.
const JITTER: f64 = 1.25;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ThreadDelta {
    pub(crate) tid: Tid,
    /// Sum of `time`; at most the window.
    pub(crate) wall: Nanos,
    pub(crate) time: TimeAccount,
    /// Total time in launches so far: decides which thread feeds the GPU when none does in the window.
    pub(crate) fed: Nanos,
}

impl ThreadDelta {
    /// Time in a state, over the wanted phases.
    pub(crate) fn in_state(&self, state: State, wanted: impl Fn(Phase) -> bool) -> Nanos {
        let phases = Phase::ALL.iter().filter(|&&phase| wanted(phase));
        Nanos(phases.map(|&phase| self.time.at(phase, state).0).sum())
    }

    pub(crate) fn in_phase(&self, phase: Phase) -> Nanos {
        in_phase(&self.time, phase)
    }

    /// Returns true if it was seen to launch work.
    pub(crate) fn launched(&self) -> bool {
        launching(&self.time).0 > 0
    }

    /// Time in which it had something to do: all but waits for others, and being suspended.
    pub(crate) fn busy(&self) -> Nanos {
        let is_idle =
            |reason: &&Reason| IDLE.contains(reason) || State::Off(**reason).is_suspended();
        let outside = |&reason| self.in_state(State::Off(reason), |phase| phase != Phase::Sync);
        self.wall.less(total(Reason::ALL.iter().filter(is_idle).map(outside)))
    }

    /// The account of a window; `None` if it is too long for it.
    pub(super) fn of(tid: Tid, time: TimeAccount, fed: Nanos, window: Nanos) -> Option<Self> {
        let wall = time.total();
        if wall.0 as f64 > window.0 as f64 * JITTER {
            return None;
        }
        if wall <= window {
            return Some(Self { tid, wall, time, fed });
        }
        let time = share(time, window.0 as f64 / wall.0 as f64);
        Some(Self { tid, wall: time.total(), time, fed })
    }
}

fn in_phase(time: &TimeAccount, phase: Phase) -> Nanos {
    Nanos(State::all().fold(0, |all, state| all.saturating_add(time.at(phase, state).0)))
}

fn launching(time: &TimeAccount) -> Nanos {
    Nanos(in_phase(time, Phase::Launch).0.saturating_add(in_phase(time, Phase::Graph).0))
}

/// Activity of the thread since `baseline`; one with less time than that is another thread with the same TID.
pub(super) fn since(
    baseline: Option<&ThreadBaseline>,
    now: &DispatcherSnapshot,
    window: Nanos,
) -> Option<ThreadDelta> {
    let baseline = baseline.filter(|baseline| baseline.tid == now.tid && baseline.wall <= now.wall);
    let time = baseline.map_or(now.time, |baseline| baseline.time.until(now.time));
    ThreadDelta::of(now.tid, time, launching(&now.time), window)
}

/// Activity of the threads that ended in the window: the account of the process without the live threads. Only the sum over them is
/// known, so their mean is used: no thread may lose more than its wall time.
pub(super) fn ended(
    baseline: Option<&ProcessBaseline>,
    now: &ProcessSnapshot,
    live: &[ThreadDelta],
    window: Nanos,
) -> Option<ThreadDelta> {
    let gone = |thread: &&ThreadBaseline| now.dispatchers.iter().all(|t| t.tid != thread.tid);
    let mut gone = baseline.into_iter().flat_map(|baseline| &baseline.threads).filter(gone);
    let fed = |thread: &ThreadBaseline| launching(&thread.time.unpacked());
    let last = gone.clone().max_by_key(|thread| fed(thread));
    if last.is_none() && now.ended.is_none() {
        return None;
    }
    let all = now.dispatcher_time;
    let mut rest = baseline.map_or(all, |baseline| baseline.dispatcher_time.until(all));
    for thread in live {
        rest = less(rest, &thread.time);
    }
    let known = gone.by_ref().count().max(1) as f64;
    let needed = (rest.total().0 as f64 / window.0.max(1) as f64 / JITTER).ceil();
    let tid = last.map_or(Tid(now.tgid.0), |thread| thread.tid);
    let threads = known.max(needed);
    let fed = last.map_or(Nanos(0), fed);
    let mean = share(rest, 1.0 / threads);
    ThreadDelta::of(tid, mean, fed, window).filter(|thread| thread.wall.0 > 0)
}
