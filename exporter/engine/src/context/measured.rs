//! Effects measured on a process.

use gpucause_abi::record::REASONS;
use gpucause_abi::state::Reason;
use gpucause_abi::{Nanos, Tid};

use super::Process;
use crate::chain::{Effect, Evidence};
use crate::delta::Delta;
use crate::phases::Phases;
use crate::times::{ratio, total};

/// An effect measured on one process.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Measured {
    pub(crate) effect: Effect,
    /// Its size: time beyond the usual.
    pub(crate) excess: Nanos,
    /// Off-CPU time that is part of the excess, by reason.
    pub(crate) offcpu: [Nanos; REASONS],
    /// Phases of the effect: waits in other phases are not part of it.
    pub(crate) phases: Phases,
    /// The thread, if measured on a single one.
    pub(crate) tid: Option<Tid>,
    /// True if it was measured in the long window.
    pub(crate) long: bool,
    pub(crate) evidence: Evidence,
}

impl Measured {
    /// Off-CPU time that is part of the effect, for some reasons.
    pub(crate) fn offcpu(&self, reasons: &[Reason]) -> Nanos {
        total(reasons.iter().map(|&reason| self.offcpu[reason as usize]))
    }

    /// The share of the effect that `time` explains, 0 to 1.
    pub(crate) fn explained_by(&self, time: Nanos) -> f64 {
        ratio(time, self.excess).min(1.0)
    }

    /// The window that it was measured in.
    pub(crate) fn delta<'s, 'a>(&self, process: &'s Process<'a>) -> &'s Delta<'a> {
        if self.long { &process.long } else { &process.short }
    }
}
