//! Selects the chains of a report.

use gpucause_engine::chain::{Cause, Chain, Effect, Severity};

/// The user's selection. Timestamps are in seconds since the Unix epoch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChainFilter {
    /// Processes that are victim or one of the culprits; all where there is none.
    pub pids: Vec<u32>,
    /// Least severity, reached in the period.
    pub severity: Option<Severity>,
    /// Earliest time at which a chain was last seen.
    pub from: Option<f64>,
    /// Latest time at which a chain was first seen.
    pub until: Option<f64>,
}

impl ChainFilter {
    /// Returns true if a chain is selected.
    pub fn has(&self, chain: &Chain) -> bool {
        (self.is_victim(chain)
            || culprits(chain).any(|(pid, _)| pid.is_some_and(|pid| self.pids.contains(&pid))))
            && self.severity.is_none_or(|least| chain.severity_in(self.period()) >= least)
            && self.from.is_none_or(|from| chain.last_seen >= from)
            && self.until.is_none_or(|until| chain.first_seen <= until)
    }

    /// The asked period, by its begin and end.
    pub(crate) fn period(&self) -> (f64, f64) {
        let (begin, end) = Chain::ALWAYS;
        (self.from.unwrap_or(begin), self.until.unwrap_or(end))
    }

    /// Sets the begin of the filter where it has none.
    pub(crate) fn or_since(self, since: f64) -> Self {
        Self { from: self.from.or(Some(since)), ..self }
    }

    /// Returns true if the victim is a selected process.
    pub(crate) fn is_victim(&self, chain: &Chain) -> bool {
        self.pids.is_empty() || self.pids.contains(&chain.victim.pid)
    }

    /// The selected chains, and the number of the others.
    pub(crate) fn of(&self, mut chains: Vec<Chain>) -> (Vec<Chain>, usize) {
        let all = chains.len();
        chains.retain(|chain| self.has(chain));
        let left_out = all - chains.len();
        (chains, left_out)
    }
}

/// Names of the culprit of a chain, and of what else took a considerable part of what was lost, with the PID of each unless several
/// processes have the name.
pub(crate) fn culprits(chain: &Chain) -> impl Iterator<Item = (Option<u32>, &str)> {
    let least = chain.lost_seconds * LEAST_LOSS;
    let others = chain.losses.iter().filter(move |own| own.seconds > 0.0 && own.seconds >= least);
    let culprit = chain.culprit.iter().filter_map(|own| Some((Some(own.local_pid()?), &*own.comm)));
    culprit.chain(others.map(|own| (own.pid, &*own.comm)))
}

/// Returns true if a chain is worth reporting: it took time, or a call hangs, or a process was killed, or its cause takes no time.
pub(crate) fn is_reportable(chain: &Chain) -> bool {
    let least = if chain.cause == Cause::Unexplained { LEAST_SECONDS } else { f64::MIN_POSITIVE };
    !chain.cause.takes_time()
        || matches!(chain.effect, Effect::Hang | Effect::ProcessKilled)
        || chain.attributed_seconds() >= least
}

/// Share of what a chain lost from which a competitor is one of its culprits.
const LEAST_LOSS: f64 = 0.1;

/// Less is shown as 0.0 s.
const LEAST_SECONDS: f64 = 0.05;
