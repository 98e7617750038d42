//! Which chains a report is asked for.

use gpucause_engine::chain::{Cause, Chain, Effect, Severity};

/// What the user asked for. Moments are in seconds since the Unix epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Wanted {
    /// Chains that have no part in this process are left out: it is neither victim nor culprit.
    pub pid: Option<u32>,
    /// Less severe chains are left out.
    pub severity: Option<Severity>,
    /// What was last seen before this moment is left out.
    pub from: Option<f64>,
    /// What began after this moment is left out.
    pub until: Option<f64>,
}

impl Wanted {
    /// Whether a chain is asked for.
    #[must_use]
    pub fn has(&self, chain: &Chain) -> bool {
        let is_culprit = |pid| chain.culprit.as_ref().is_some_and(|own| own.pid == pid);
        self.pid.is_none_or(|pid| chain.victim.pid == pid || is_culprit(pid))
            && self.severity.is_none_or(|least| chain.severity >= least)
            && self.from.is_none_or(|from| chain.last_seen >= from)
            && self.until.is_none_or(|until| chain.first_seen <= until)
    }

    /// The chains that are asked for, and how many are not.
    pub(crate) fn of(&self, mut chains: Vec<Chain>) -> (Vec<Chain>, usize) {
        let all = chains.len();
        chains.retain(|chain| self.has(chain));
        let left_out = all - chains.len();
        (chains, left_out)
    }
}

/// Whether a chain says anything: what took no time is no finding, unless a call does not return, or the cause takes none.
pub(crate) fn says_something(chain: &Chain) -> bool {
    let least = if chain.cause == Cause::Unexplained { LEAST_SECONDS } else { f64::MIN_POSITIVE };
    !chain.cause.takes_time()
        || matches!(chain.effect, Effect::Hang | Effect::ProcessKilled)
        || chain.attributed_seconds() >= least
}

/// What rounds to 0.0 s.
const LEAST_SECONDS: f64 = 0.05;
