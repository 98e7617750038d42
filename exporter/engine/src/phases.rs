//! Phases that an effect is measured in.

use gpucause_abi::state::{Phase, Reason, State};

/// A set of phases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phases {
    Only(Phase),
    /// All between launches, except waiting for the GPU.
    BetweenLaunches,
    /// All except waiting for the GPU.
    Feeding,
}

impl Phases {
    pub(crate) fn contain(self, phase: Phase) -> bool {
        match self {
            Self::Only(only) => phase == only,
            Self::BetweenLaunches => !matches!(phase, Phase::Launch | Phase::Sync),
            Self::Feeding => phase != Phase::Sync,
        }
    }

    /// Returns true if a wait is part of an effect in these phases: a wait in one of them or, unless they are a single phase, a wait that is
    /// lost during synchronisation.
    pub(crate) fn contain_wait(self, phase: Phase, reason: Reason) -> bool {
        let lost = phase == Phase::Sync && State::Off(reason).is_lost_in(phase);
        self.contain(phase) || (lost && !matches!(self, Self::Only(_)))
    }
}
