//! Number of chains and the time that they took, as metrics count them.

use gpucause_abi::{Nanos, ProcId};

use crate::chain::{Cause, Chain, Effect, Severity};

/// Chain count as exported on metrics: a chain counts once for each severity that it reaches.
#[derive(Debug, Clone, PartialEq)]
pub struct ChainCount {
    /// The victim.
    pub process: ProcId,
    /// The cause.
    pub cause: Cause,
    /// The effect.
    pub effect: Effect,
    /// The severity.
    pub severity: Severity,
    /// How many.
    pub count: u64,
    /// Id of the last of them.
    pub last_id: String,
}

impl ChainCount {
    /// Counts one chain that reaches its severity.
    pub(crate) fn of(process: ProcId, chain: &Chain) -> Self {
        let Chain { cause, effect, severity, .. } = *chain;
        Self { process, cause, effect, severity, count: 1, last_id: chain.id.clone() }
    }
}

/// Dispatcher time that chains attribute to a cause, as exported on metrics. The sum over all causes of a process is at most the
/// wall time, and the lost part at most what the process's time account lost.
#[derive(Debug, Clone, PartialEq)]
pub struct Stall {
    /// The victim.
    pub process: ProcId,
    /// The cause.
    pub cause: Cause,
    /// Time attributed so far, lost or not.
    pub attributed: Nanos,
    /// The part of it that was lost.
    pub lost: Nanos,
    /// Id of the last chain that added to it.
    pub last_id: String,
    /// How much it added.
    pub last_attributed: Nanos,
    /// How much of that was lost.
    pub last_lost: Nanos,
}

impl Stall {
    /// The time that one chain adds.
    pub(crate) fn of(process: ProcId, chain: &Chain, (attributed, lost): (Nanos, Nanos)) -> Self {
        let (cause, last_id) = (chain.cause, chain.id.clone());
        let (last_attributed, last_lost) = (attributed, lost);
        Self { process, cause, attributed, lost, last_id, last_attributed, last_lost }
    }
}
