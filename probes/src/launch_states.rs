//! How launches of each process are observed now, and what is estimated of those that nobody observed: written by whoever changes
//! probes, read by whoever copies accounts.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpucause_abi::snapshot::{LaunchSampling, LaunchStep};
use gpucause_abi::{Nanos, ProcId};

/// By process; those that are not in it are observed in full, and always were.
#[derive(Debug, Default)]
pub(crate) struct LaunchStates(Mutex<HashMap<ProcId, State>>);

#[derive(Debug, Clone, Copy, Default)]
struct State {
    step: LaunchStep,
    /// Of all times that have ended.
    estimated: f64,
    unobserved: u64,
    away: Option<Away>,
    /// Whether the process has: nothing changes any more.
    ended: bool,
}

/// Launches are not observed since then, and were made at this rate before.
#[derive(Debug, Clone, Copy)]
struct Away {
    since: Nanos,
    per_second: f64,
}

impl State {
    fn until(&self, now: Nanos) -> (f64, u64) {
        let Some(away) = self.away else { return (self.estimated, self.unobserved) };
        let elapsed = now.less(away.since);
        (self.estimated + away.per_second * elapsed.as_secs_f64(), self.unobserved + elapsed.0)
    }
}

impl LaunchStates {
    /// What is known of a process at this moment, or when it ended, but the launches that were counted.
    pub(crate) fn of(&self, id: ProcId, now: Nanos) -> LaunchSampling {
        let states = self.states();
        let Some(state) = states.get(&id) else { return LaunchSampling::default() };
        let (estimated, unobserved) = state.until(now);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "not negative, and far less than the type holds"
        )]
        let estimated = estimated as u64;
        LaunchSampling { step: state.step, untimed: 0, estimated, unobserved: Nanos(unobserved) }
    }

    /// The least share of the time for which launches of any live process are observed.
    pub(crate) fn least_share(&self) -> f64 {
        self.least(|step| match step {
            LaunchStep::PartTime { share, .. } => share,
            _ => 1.0,
        })
    }

    /// The least share of any live process's launches that are timed now.
    pub(crate) fn least_timed_share(&self) -> f64 {
        self.least(LaunchStep::timed_share)
    }

    fn least(&self, share: impl Fn(LaunchStep) -> f64) -> f64 {
        let states = self.states();
        let live = states.values().filter(|state| !state.ended);
        live.map(|state| share(state.step)).fold(1.0, f64::min)
    }

    /// Launches are observed in this way from now on.
    pub(crate) fn set_step(&self, id: ProcId, step: LaunchStep) {
        if step != LaunchStep::Full || self.states().contains_key(&id) {
            self.states().entry(id).or_default().step = step;
        }
    }

    /// Launches, which were made at this rate, are not observed from now on.
    pub(crate) fn leave(&self, id: ProcId, now: Nanos, per_second: f64) {
        self.states().entry(id).or_default().away.get_or_insert(Away { since: now, per_second });
    }

    /// They are observed again.
    pub(crate) fn come_back(&self, id: ProcId, now: Nanos) {
        if let Some(state) = self.states().get_mut(&id) {
            (state.estimated, state.unobserved) = state.until(now);
            state.away = None;
        }
    }

    /// The process has ended. Whoever asks about it knows when.
    pub(crate) fn end(&self, id: ProcId) {
        if let Some(state) = self.states().get_mut(&id) {
            state.ended = true;
        }
    }

    /// Forgets processes.
    pub(crate) fn forget(&self, ids: &HashSet<ProcId>) {
        self.states().retain(|id, _| !ids.contains(id));
    }

    fn states(&self) -> MutexGuard<'_, HashMap<ProcId, State>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_grow_at_the_rate_before_while_away_and_stay_when_back() {
        let (states, id, second) = (LaunchStates::default(), ProcId(1), 1_000_000_000);
        assert_eq!(states.of(id, Nanos(0)), LaunchSampling::default());
        states.leave(id, Nanos(second), 1_000.0);
        states.leave(id, Nanos(2 * second), 5.0);
        let at = |seconds| {
            let sampling = states.of(id, Nanos(seconds * second));
            (sampling.estimated, sampling.unobserved.0 / second)
        };
        assert_eq!((at(1), at(3)), ((0, 0), (2_000, 2)));
        states.come_back(id, Nanos(4 * second));
        assert_eq!(at(9), (3_000, 3));
        states.leave(id, Nanos(10 * second), 1.0);
        assert_eq!(at(12), (3_002, 5));
        states.set_step(id, LaunchStep::Sampled { one_in: 4 });
        assert_eq!(states.least_timed_share(), 0.25);
        states.end(id);
        assert_eq!((at(12), states.least_timed_share()), ((3_002, 5), 1.0));
        states.forget(&HashSet::from([id]));
        assert_eq!(at(12), (0, 0));
    }
}
