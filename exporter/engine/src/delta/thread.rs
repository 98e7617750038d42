//! What threads did between two snapshots, those that ended meanwhile included.

use gpucause_abi::snapshot::{DispatcherSnapshot, ProcessSnapshot, TimeAccount};
use gpucause_abi::state::{Phase, State};
use gpucause_abi::{Nanos, Tid};

use crate::past::{Before, ThreadBefore};

/// By how much an account may be longer than the window before it is no account of the window: threads are not read at
/// the same moment.
const JITTER: f64 = 1.25;

/// Time of one thread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ThreadDelta {
    pub(crate) tid: Tid,
    /// Sum of `time`, at most the window.
    pub(crate) wall: Nanos,
    pub(crate) time: TimeAccount,
    /// Time in launches so far: who feeds the GPU when nobody does at the moment.
    pub(crate) fed: Nanos,
}

impl ThreadDelta {
    /// Time in a state, over the phases that are asked for.
    pub(crate) fn in_state(&self, state: State, wanted: impl Fn(Phase) -> bool) -> Nanos {
        let phases = Phase::ALL.iter().filter(|&&phase| wanted(phase));
        Nanos(phases.map(|&phase| self.time.at(phase, state).0).sum())
    }

    /// Time in a phase, running or not.
    pub(crate) fn in_phase(&self, phase: Phase) -> Nanos {
        in_phase(&self.time, phase)
    }

    /// Whether it handed work to the GPU.
    pub(crate) fn feeds(&self) -> bool {
        launching(&self.time).0 > 0
    }

    /// Time in which the GPU had this thread's work or was getting it: running, or waiting for the GPU.
    pub(crate) fn worked(&self) -> Nanos {
        let running = self.in_state(State::Running, |phase| phase != Phase::Sync);
        Nanos(running.0 + self.in_phase(Phase::Sync).0)
    }

    /// The account of a window, unless it cannot be one of it.
    pub(super) fn of(tid: Tid, time: TimeAccount, fed: Nanos, window: Nanos) -> Option<Self> {
        let wall = time.total();
        if wall.0 as f64 > window.0 as f64 * JITTER {
            return None;
        }
        if wall <= window {
            return Some(Self { tid, wall, time, fed });
        }
        let time = scaled(time, window.0 as f64 / wall.0 as f64);
        Some(Self { tid, wall: time.total(), time, fed })
    }
}

fn in_phase(time: &TimeAccount, phase: Phase) -> Nanos {
    Nanos(State::all().fold(0, |all, state| all.saturating_add(time.at(phase, state).0)))
}

fn launching(time: &TimeAccount) -> Nanos {
    Nanos(in_phase(time, Phase::Launch).0.saturating_add(in_phase(time, Phase::Graph).0))
}

fn scaled(mut time: TimeAccount, by: f64) -> TimeAccount {
    time.0.iter_mut().flatten().for_each(|cell| *cell = cell.share(by));
    time
}

fn less(mut time: TimeAccount, earlier: &TimeAccount) -> TimeAccount {
    for (cell, earlier) in time.0.iter_mut().flatten().zip(earlier.0.iter().flatten()) {
        *cell = cell.less(*earlier);
    }
    time
}

/// What the thread did since `before`; a thread with less time than that is another of the same number.
pub(super) fn since(
    before: Option<&ThreadBefore>,
    now: &DispatcherSnapshot,
    window: Nanos,
) -> Option<ThreadDelta> {
    let before = before.filter(|before| before.tid == now.tid && before.wall <= now.wall);
    let time = before.map_or(now.time, |before| before.time.until(now.time));
    ThreadDelta::of(now.tid, time, launching(&now.time), window)
}

/// What the threads did that ended in the window: what the account of the process has beyond those that live. Of several
/// only the sum is known; then it is their mean, so that no thread loses more than it had.
pub(super) fn ended(
    before: Option<&Before>,
    now: &ProcessSnapshot,
    live: &[ThreadDelta],
    window: Nanos,
) -> Option<ThreadDelta> {
    let gone = |thread: &&ThreadBefore| now.dispatchers.iter().all(|t| t.tid != thread.tid);
    let mut gone = before.into_iter().flat_map(|before| &before.threads).filter(gone);
    let fed = |thread: &ThreadBefore| launching(&thread.time.whole());
    let last = gone.clone().max_by_key(|thread| fed(thread));
    if last.is_none() && now.ended.is_none() {
        return None;
    }
    let all = now.dispatcher_time;
    let mut rest = before.map_or(all, |before| before.dispatcher_time.until(all));
    for thread in live {
        rest = less(rest, &thread.time);
    }
    let known = gone.by_ref().count().max(1) as f64;
    let needed = (rest.total().0 as f64 / window.0.max(1) as f64 / JITTER).ceil();
    let tid = last.map_or(Tid(now.tgid.0), |thread| thread.tid);
    let threads = known.max(needed);
    let fed = last.map_or(Nanos(0), fed);
    let mean = if threads > 1.0 { scaled(rest, 1.0 / threads) } else { rest };
    ThreadDelta::of(tid, mean, fed, window).filter(|thread| thread.wall.0 > 0)
}
