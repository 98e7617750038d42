//! How the calls of each process are observed. Written by launch control, read by snapshots.

mod rung;

use std::collections::{HashMap, HashSet};

use gpucause_abi::record::ASYNC_ONE_IN;
use gpucause_abi::snapshot::{LaunchSampling, LaunchStep, RateEstimate};
use gpucause_abi::{Nanos, ProcId};
use parking_lot::Mutex;

pub(crate) use rung::{ONE_IN, Rung};

/// By process; processes without an entry have always been observed in full.
#[derive(Debug, Default)]
pub(crate) struct LaunchStates(Mutex<HashMap<ProcId, State>>);

#[derive(Debug, Clone, Copy)]
struct State {
    rung: Rung,
    /// Sum over the pauses that have ended, and the begin of the present one.
    unobserved: u64,
    paused: Option<Nanos>,
    /// The last pause that ended: a process may have ended in it, and a snapshot may be of a time in it.
    ended_pause: (Nanos, Nanos),
    rate: Option<RateEstimate>,
    /// True once the process has ended; nothing changes any more.
    ended: bool,
}

impl Default for State {
    fn default() -> Self {
        Self {
            rung: Rung::Full,
            unobserved: 0,
            paused: None,
            ended_pause: (Nanos(0), Nanos(0)),
            rate: None,
            ended: false,
        }
    }
}

impl LaunchStates {
    /// How a process is observed that has existed for this time: from when it was first seen until now, or its end. Without
    /// counted calls.
    pub(crate) fn of(&self, id: ProcId, (first_seen, until): (Nanos, Nanos)) -> LaunchSampling {
        let state = self.0.lock().get(&id).copied().unwrap_or_default();
        let paused = state.paused.map_or(0, |since| until.less(since).0);
        let seconds = until.less(first_seen);
        let (begin, end) = state.ended_pause;
        let later = end.less(begin.max(until)).0;
        let unobserved = Nanos((state.unobserved + paused).saturating_sub(later).min(seconds.0));
        LaunchSampling {
            step: state.rung.step(),
            without_queries: !state.rung.has_queries(),
            async_one_in: if state.rung.samples_asyncs() { ASYNC_ONE_IN as u32 } else { 0 },
            untimed: 0,
            observed: seconds.less(unobserved),
            unobserved,
            rate: state.rate.filter(|_| !state.ended),
        }
    }

    /// The least share of the time for which calls of any live process are observed.
    pub(crate) fn least_share(&self) -> f64 {
        self.least(LaunchStep::observed_share)
    }

    /// The least share of any live process's launches that are timed now.
    pub(crate) fn least_timed_share(&self) -> f64 {
        self.least(LaunchStep::timed_share)
    }

    fn least(&self, share: impl Fn(LaunchStep) -> f64) -> f64 {
        let share = |state: &State| share(state.rung.step());
        self.0.lock().values().filter(|state| !state.ended).map(share).fold(1.0, f64::min)
    }

    /// Sets the rung of a process.
    pub(crate) fn set_rung(&self, id: ProcId, rung: Rung) {
        let mut states = self.0.lock();
        if rung != Rung::Full || states.contains_key(&id) {
            let state = states.entry(id).or_default();
            state.rung = rung;
            if !matches!(rung, Rung::PartTime(_)) {
                state.rate = None;
            }
        }
        drop(states);
    }

    /// Starts a pause. The rate is that of the last seconds, if it is known.
    pub(crate) fn pause(&self, id: ProcId, since: Nanos, rate: Option<RateEstimate>) {
        let mut states = self.0.lock();
        let state = states.entry(id).or_default();
        state.paused.get_or_insert(since);
        state.rate = rate;
        drop(states);
    }

    /// Ends the pause.
    pub(crate) fn resume(&self, id: ProcId, now: Nanos) {
        if let Some(state) = self.0.lock().get_mut(&id)
            && let Some(since) = state.paused.take()
        {
            state.unobserved += now.less(since).0;
            state.ended_pause = (since, now);
        }
    }

    /// Marks the process as ended; callers know when.
    pub(crate) fn end(&self, id: ProcId) {
        if let Some(state) = self.0.lock().get_mut(&id) {
            state.ended = true;
        }
    }

    /// Forgets processes.
    pub(crate) fn forget(&self, ids: &HashSet<ProcId>) {
        self.0.lock().retain(|id, _| !ids.contains(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn time_is_unobserved_in_pauses_and_until_the_end_of_a_process_that_ends_in_one() {
        let (states, id) = (LaunchStates::default(), ProcId(1));
        let at = |seconds| {
            let sampling = states.of(id, (Nanos(SECOND), Nanos(seconds * SECOND)));
            (sampling.observed.0 / SECOND, sampling.unobserved.0 / SECOND)
        };
        assert_eq!((at(1), at(9)), ((0, 0), (8, 0)));
        states.pause(id, Nanos(9 * SECOND), None);
        states.pause(id, Nanos(10 * SECOND), None);
        assert_eq!((at(9), at(12)), ((8, 0), (8, 3)));
        states.resume(id, Nanos(12 * SECOND));
        states.resume(id, Nanos(15 * SECOND));
        assert_eq!(at(14), (10, 3));
        // The first is as of before the pause ended, the second as of before it began.
        assert_eq!((at(11), at(8)), ((8, 2), (7, 0)));
        states.pause(id, Nanos(20 * SECOND), None);
        states.set_rung(id, Rung::PartTime(0.25));
        assert_eq!((states.least_share(), states.least_timed_share()), (0.25, 0.25 / 64.0));
        states.end(id);
        assert_eq!((at(25), states.least_timed_share()), ((16, 8), 1.0));
        states.forget(&HashSet::from([id]));
        assert_eq!(at(25), (24, 0));
    }

    proptest! {
        /// Observed and unobserved time add up to the life of a process, and neither steps back.
        #[test]
        fn time_is_either_observed_or_not(steps in prop::collection::vec((1u64..100, any::<bool>()), 1..50)) {
            let (states, id) = (LaunchStates::default(), ProcId(1));
            let (mut now, mut before) = (0, (Nanos(0), Nanos(0)));
            for (later, pauses) in steps {
                now += later;
                if pauses { states.pause(id, Nanos(now), None) } else { states.resume(id, Nanos(now)) }
                let sampling = states.of(id, (Nanos(0), Nanos(now)));
                prop_assert_eq!(sampling.observed.0 + sampling.unobserved.0, now);
                prop_assert!(sampling.observed >= before.0 && sampling.unobserved >= before.1);
                before = (sampling.observed, sampling.unobserved);
            }
        }
    }
}
