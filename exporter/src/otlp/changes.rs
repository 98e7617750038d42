//! Which chains are new, changed or ended since they were last logged.

use std::collections::HashMap;

use gpucause_engine::chain::{Chain, Effect, Severity};

/// An ongoing chain is logged again after this time, in seconds, since its cost grows.
const REPEAT_AFTER: f64 = 60.0;

/// The change of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It began.
    New,
    /// It is worse, goes on, or is back.
    Changed,
    /// It was not seen any more.
    Ended,
}

impl State {
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Changed => "changed",
            Self::Ended => "ended",
        }
    }
}

/// How a chain was last logged.
#[derive(Debug)]
struct Logged {
    revision: u64,
    severity: Severity,
    effect: Effect,
    ongoing: bool,
    /// In seconds since the Unix epoch.
    at: f64,
}

/// A chain to be logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) state: State,
    /// Counts from 1 for each chain: together with the chain's id it identifies the record.
    pub(super) revision: u64,
}

/// The chains that were logged.
#[derive(Debug, Default)]
pub(super) struct Changes(HashMap<String, Logged>);

impl Changes {
    /// Returns the change of a chain that is to be logged at this time, in seconds since the Unix epoch; it counts as logged then.
    pub(super) fn of(&mut self, chain: &Chain, now: f64) -> Option<Change> {
        let Chain { severity, effect, .. } = *chain;
        let ongoing = chain.ongoing == Some(true);
        let Some(logged) = self.0.get_mut(&chain.id) else {
            if !ongoing {
                return None;
            }
            let logged = Logged { revision: 1, severity, effect, ongoing, at: now };
            self.0.insert(chain.id.clone(), logged);
            return Some(Change { state: State::New, revision: 1 });
        };
        let is_other = (logged.severity, logged.effect) != (severity, effect);
        // A clock that was set back must not silence a chain.
        let is_due = !(0.0..REPEAT_AFTER).contains(&(now - logged.at));
        let state = match (logged.ongoing, ongoing) {
            (true, false) => State::Ended,
            (false, true) => State::Changed,
            (true, true) if is_other || is_due => State::Changed,
            _ => return None,
        };
        *logged = Logged { revision: logged.revision + 1, severity, effect, ongoing, at: now };
        Some(Change { state, revision: logged.revision })
    }

    /// Returns true if a chain was logged.
    pub(super) fn has(&self, id: &str) -> bool {
        self.0.contains_key(id)
    }

    /// Forgets chains that are not among these.
    pub(super) fn retain(&mut self, chains: &[Chain]) {
        if self.0.len() > chains.len() {
            let ids: std::collections::HashSet<_> = chains.iter().map(|chain| &chain.id).collect();
            self.0.retain(|id, _| ids.contains(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::otlp::tests::chain;
    use proptest::prelude::*;

    fn at(severity: Severity, ongoing: bool) -> Chain {
        Chain { severity, ongoing: Some(ongoing), ..chain("a") }
    }

    #[test]
    fn a_chain_is_logged_when_it_begins_gets_worse_goes_on_and_ends() {
        let mut changes = Changes::default();
        let (low, high) = (at(Severity::Low, true), at(Severity::High, true));
        let ended = at(Severity::High, false);
        let steps = [
            (&low, 0.0, Some(State::New)),
            (&low, 1.5, None),
            (&high, 3.0, Some(State::Changed)),
            (&high, 62.9, None),
            (&high, 63.0, Some(State::Changed)),
            (&ended, 64.0, Some(State::Ended)),
            (&ended, 999.0, None),
            (&high, 1_000.0, Some(State::Changed)),
        ];
        let mut revision = 0;
        for (chain, now, expected) in steps {
            revision += u64::from(expected.is_some());
            let expected = expected.map(|state| Change { state, revision });
            assert_eq!(changes.of(chain, now), expected, "{now}");
        }
    }

    #[test]
    fn a_chain_that_is_known_only_as_ended_is_not_logged() {
        assert_eq!(Changes::default().of(&at(Severity::Low, false), 0.0), None);
    }

    #[test]
    fn chains_that_are_gone_are_forgotten() {
        let mut changes = Changes::default();
        let (a, b) = (chain("a"), chain("b"));
        let _ = (changes.of(&a, 0.0), changes.of(&b, 0.0));
        changes.retain(std::slice::from_ref(&b));
        assert_eq!((changes.0.len(), changes.of(&b, 1.0)), (1, None));
    }

    proptest! {
        /// Each chain begins with `new`, its revisions count from 1, the last record says whether it is ongoing, and it is not
        /// silent for longer than a minute while it is.
        #[test]
        fn the_last_record_of_a_chain_is_its_state(
            steps in prop::collection::vec((0u8..4, any::<bool>(), 0.1f64..40.0), 1..60),
        ) {
            let severities = [Severity::Low, Severity::Medium, Severity::High, Severity::Critical];
            let (mut changes, mut now) = (Changes::default(), 0.0);
            let (mut last, mut logged_at) = (None::<Change>, 0.0);
            for (severity, ongoing, step) in steps {
                now += step;
                let state = at(severities[usize::from(severity)], ongoing);
                if let Some(change) = changes.of(&state, now) {
                    prop_assert_eq!(change.revision, last.map_or(0, |last| last.revision) + 1);
                    prop_assert_eq!(change.state == State::New, last.is_none());
                    (last, logged_at) = (Some(change), now);
                }
                let says_ended = last.is_none_or(|last| last.state == State::Ended);
                prop_assert_eq!(says_ended, !ongoing);
                prop_assert!(!ongoing || now - logged_at < REPEAT_AFTER);
            }
        }
    }
}
