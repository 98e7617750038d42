//! How large an effect is, and how much of it the victim's thread was off the CPU for which reason.

mod launch_gap;
mod rate_drop;
mod tail;

use gpucause_abi::record::REASONS;
use gpucause_abi::state::{Phase, Reason, State};
use gpucause_abi::{Nanos, Tid};

use crate::case::Subject;
use crate::chain::{Effect, Evidence};
use crate::delta::{Delta, ThreadDelta};
use crate::history::History;
use crate::settings::Settings;

/// An effect that was measured on one process.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Measured {
    /// Which.
    pub(crate) effect: Effect,
    /// Its size: time beyond what it would have taken.
    pub(crate) excess: Nanos,
    /// Off-CPU time that is part of the excess, by reason.
    pub(crate) offcpu: [Nanos; REASONS],
    /// What the victim was doing: waits in other phases have no part in it.
    pub(crate) phases: Phases,
    /// The thread, when it is one's.
    pub(crate) tid: Option<Tid>,
    /// The window that it was measured in.
    pub(crate) long: bool,
    /// Its numbers.
    pub(crate) evidence: Evidence,
}

/// Off-CPU time of a thread, by reason, without futex waits in which other threads of the process worked for the GPU: one
/// that waits for them, as the main thread of PyTorch does for those of autograd, loses nothing by it.
fn own_waits(
    delta: &Delta<'_>,
    thread: &ThreadDelta,
    time: impl Fn(Reason) -> Nanos,
) -> [Nanos; REASONS] {
    let mut offcpu = [Nanos(0); REASONS];
    for (own, &reason) in offcpu.iter_mut().zip(Reason::ALL) {
        *own = time(reason);
    }
    let handed_over = &mut offcpu[Reason::Futex as usize];
    *handed_over = handed_over.less(delta.worked_by_others(thread));
    offcpu
}

/// A set of phases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phases {
    /// One.
    Only(Phase),
    /// All that lie between launches, and waiting for the GPU does not.
    BetweenLaunches,
    /// All but waiting for the GPU.
    Feeding,
}

impl Phases {
    /// Whether a phase is in the set.
    pub(crate) fn contain(self, phase: Phase) -> bool {
        match self {
            Self::Only(only) => phase == only,
            Self::BetweenLaunches => !matches!(phase, Phase::Launch | Phase::Sync),
            Self::Feeding => phase != Phase::Sync,
        }
    }

    /// Whether a wait in a phase has part in it: beside those in the phases themselves the waits that are lost while the
    /// thread waits for the GPU.
    pub(crate) fn contain_wait(self, phase: Phase, reason: Reason) -> bool {
        let lost = phase == Phase::Sync && State::Off(reason).is_lost_in(phase);
        self.contain(phase) || (lost && !matches!(self, Self::Only(_)))
    }
}

impl Measured {
    /// The off-CPU time of some reasons that is part of the effect.
    pub(crate) fn offcpu(&self, reasons: &[Reason]) -> Nanos {
        total(reasons.iter().map(|&reason| self.offcpu[reason as usize]))
    }

    /// The share of the effect that `time` explains, 0 to 1.
    pub(crate) fn explained_by(&self, time: Nanos) -> f64 {
        ratio(time, self.excess).min(1.0)
    }

    /// The accounts of the window that it was measured in.
    pub(crate) fn delta<'s, 'a>(&self, subject: &'s Subject<'a>) -> &'s Delta<'a> {
        if self.long { &subject.long } else { &subject.short }
    }
}

/// Their sum; the largest number when it is more than that.
pub(crate) fn total(times: impl Iterator<Item = Nanos>) -> Nanos {
    Nanos(times.fold(0, |all, time| all.saturating_add(time.0)))
}

/// `part / whole`, and 0 for a whole that is nothing.
pub(crate) fn ratio(part: Nanos, whole: Nanos) -> f64 {
    if whole.0 == 0 { 0.0 } else { part.0 as f64 / whole.0 as f64 }
}

/// Every effect that is to be seen in a process's windows.
pub(crate) fn measure(
    subject: &Subject<'_>,
    history: &History,
    settings: &Settings,
) -> Vec<Measured> {
    let tails = tail::measure(subject, settings);
    let gaps = launch_gap::measure(subject, settings);
    let drop = rate_drop::measure(subject, history, settings);
    tails.into_iter().chain(gaps).chain(drop).collect()
}
