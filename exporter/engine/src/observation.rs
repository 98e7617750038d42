//! Periods in which a node observes its processes. "No cause found" is valid only for observed time.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Limit of earlier periods.
const MAX_EARLIER: usize = 64;

/// How much is observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Every launch is timed.
    Attached,
    /// Launches are sampled, or some probes are missing.
    Partial,
    /// Nothing is observed.
    Disabled,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 3] = [Self::Attached, Self::Partial, Self::Disabled];

    /// The label value.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Attached => "attached",
            Self::Partial => "partial",
            Self::Disabled => "disabled",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// A state and its duration. Times are in seconds since the Unix epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Period {
    /// The state.
    pub state: State,
    /// Latest share of launches that is timed, 0 to 1. `None` while probes are missing: how many launches they miss is unknown.
    pub timed_share: Option<f64>,
    /// Start.
    pub since: f64,
    /// End; `None` for the current period.
    #[serde(default)]
    pub until: Option<f64>,
    /// Reason; empty while every launch is timed.
    #[serde(default)]
    pub reason: String,
}

impl Period {
    /// Why nothing is observed yet.
    pub const STARTING: &str = "searching for the CUDA libraries in use";

    /// A current period in which every launch is timed.
    pub const fn attached(since: f64) -> Self {
        Self {
            state: State::Attached,
            timed_share: Some(1.0),
            since,
            until: None,
            reason: String::new(),
        }
    }

    /// A current period in which nothing is observed.
    pub fn disabled(since: f64, reason: impl Into<String>) -> Self {
        let (state, timed_share) = (State::Disabled, Some(0.0));
        Self { state, timed_share, since, until: None, reason: reason.into() }
    }

    /// Returns true if causes are found: a sample shows them, a missing probe may hide them.
    pub fn shows_causes(&self) -> bool {
        self.state != State::Disabled && self.timed_share.is_some()
    }

    /// The part between `from` and `until`, if any.
    pub fn within(&self, from: f64, until: f64) -> Option<Self> {
        let since = self.since.max(from);
        let end = self.until.unwrap_or(until).min(until);
        (since < end).then(|| Self { since, until: Some(end), ..self.clone() })
    }

    /// Merges the following period into this one: the worse state wins, with its reason.
    pub fn absorb(&mut self, next: Self) {
        let least = self.timed_share.zip(next.timed_share).map(|(a, b)| a.min(b));
        if next.state > self.state {
            (self.state, self.reason) = (next.state, next.reason);
        }
        (self.timed_share, self.until) = (least, next.until);
    }
}

/// The observation state of a node with its history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ObservationState {
    /// The current period.
    #[serde(flatten)]
    pub current: Period,
    /// Earlier periods since observation began, oldest first, without gaps. Above the limit of 64 the oldest are merged.
    #[serde(default)]
    pub earlier: Vec<Period>,
}

impl From<Period> for ObservationState {
    fn from(current: Period) -> Self {
        Self { current, earlier: Vec::new() }
    }
}

impl ObservationState {
    /// Ends the current period and starts `next`. With the same state and reason only the share is updated.
    pub fn continue_with(&mut self, next: Period) {
        if next.state == self.current.state && next.reason == self.current.reason {
            self.current.timed_share = next.timed_share;
            return;
        }
        self.current.until = Some(next.since);
        self.earlier.push(std::mem::replace(&mut self.current, next));
        if self.earlier.len() > MAX_EARLIER {
            let second = self.earlier.remove(1);
            self.earlier[0].absorb(second);
        }
    }

    /// Periods between `from` and `until` without gaps, including the time before observation began.
    pub fn over(&self, from: f64, until: f64) -> Vec<Period> {
        let begun = self.earlier.first().unwrap_or(&self.current).since;
        let before = Period {
            until: Some(begun),
            ..Period::disabled(from.min(begun), "observation had not begun")
        };
        let all = [&before].into_iter().chain(&self.earlier).chain([&self.current]);
        all.filter_map(|period| period.within(from, until)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partial(since: f64, share: Option<f64>) -> Period {
        let (state, reason) = (State::Partial, "over budget".into());
        Period { state, timed_share: share, since, until: None, reason }
    }

    fn clipped(periods: &[Period]) -> Vec<(State, f64, f64)> {
        periods.iter().map(|own| (own.state, own.since, own.until.unwrap())).collect()
    }

    #[test]
    fn a_window_is_covered_by_periods_and_begins_before_observation_did() {
        let mut state = ObservationState::from(Period::attached(100.0));
        state.continue_with(Period::disabled(200.0, "SIGUSR1"));
        state.continue_with(Period::attached(250.0));
        use State::{Attached, Disabled};
        assert_eq!(
            clipped(&state.over(50.0, 300.0)),
            [
                (Disabled, 50.0, 100.0),
                (Attached, 100.0, 200.0),
                (Disabled, 200.0, 250.0),
                (Attached, 250.0, 300.0)
            ]
        );
        assert_eq!(clipped(&state.over(260.0, 300.0)), [(Attached, 260.0, 300.0)]);
        assert_eq!(clipped(&state.over(120.0, 200.0)), [(Attached, 120.0, 200.0)]);
    }

    #[test]
    fn another_share_is_the_same_period_and_another_reason_is_not() {
        let mut state = ObservationState::from(partial(1.0, Some(0.5)));
        state.continue_with(partial(2.0, Some(0.25)));
        assert_eq!(state, partial(1.0, Some(0.25)).into());
        state.continue_with(Period { reason: "probes are missing".into(), ..partial(3.0, None) });
        assert_eq!((state.earlier.len(), state.current.since), (1, 3.0));
    }

    #[test]
    fn a_state_that_changes_all_the_time_is_bounded_and_its_oldest_part_has_the_worst_state() {
        let mut state = ObservationState::from(Period::attached(0.0));
        for second in 1..1_000 {
            let since = f64::from(second);
            state.continue_with(match second % 2 {
                0 => Period::attached(since),
                _ => Period::disabled(since, "SIGUSR1"),
            });
        }
        assert_eq!(state.earlier.len(), MAX_EARLIER);
        let all = state.over(0.0, 1_000.0);
        assert!(all.windows(2).all(|two| two[0].until == Some(two[1].since)));
        assert_eq!((all[0].state, all[0].since), (State::Disabled, 0.0));
    }

    #[test]
    fn a_sample_shows_causes_and_missing_probes_or_none_do_not() {
        assert!(Period::attached(0.0).shows_causes() && partial(0.0, Some(0.02)).shows_causes());
        assert!(!partial(0.0, None).shows_causes());
        assert!(!Period::disabled(0.0, "SIGUSR1").shows_causes());
    }

    #[test]
    fn the_current_state_stands_beside_the_earlier_ones_in_json() {
        let state = ObservationState::from(Period::disabled(5.0, "SIGUSR1"));
        let json = serde_json::to_value(&state).unwrap();
        assert_eq!((&json["state"], &json["since"]), (&"disabled".into(), &5.0.into()));
        assert_eq!(serde_json::from_value::<ObservationState>(json).unwrap(), state);
    }
}
