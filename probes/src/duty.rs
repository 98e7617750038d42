//! For which share of the time calls of class launch are watched, so that probes take no more of a thread than the budget
//! allows. Decides only: what is measured comes from outside, and others do as it says.
//!
//! The thread that makes most calls is judged, by the hits of call probes that it caused times what a hit costs. Probes on calls
//! of other classes stay; what they take is left to launches no more.

use std::time::Duration;

use gpucause_abi::Nanos;

/// Windows in a row that must be over the budget before launches go unwatched: a program that starts, or a burst, is seen whole.
const PATIENCE: u32 = 3;
/// Part of the budget that the load must be below, for so many windows, before launches are watched all the time again.
const RELIEF: f64 = 0.8;
const RELIEF_WINDOWS: u32 = 2;
/// What is left of an earlier load in the next window at least: one that comes and goes would be watched when it is away.
const DECAY: f64 = 0.7;
/// Part of the budget that goes to taking probes away and putting them back.
pub const CHANGE_SHARE: f64 = 0.2;
/// Launches are watched for at least this share of the time, whatever that costs.
pub const LEAST_RATIO: f64 = 0.02;

/// What the busiest thread did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// How long the hits were counted for.
    pub elapsed: Duration,
    /// For how much of it launches were watched.
    pub watched: Duration,
    /// Hits on calls of class launch.
    pub launches: u64,
    /// Hits on others.
    pub others: u64,
    /// What one hit takes.
    pub hit_cost: Nanos,
}

impl Window {
    /// Share of the watched time that launches' hits took.
    fn launch_load(&self) -> f64 {
        share(self.launches, self.hit_cost, self.watched)
    }

    fn other_load(&self) -> f64 {
        share(self.others, self.hit_cost, self.elapsed)
    }
}

fn share(hits: u64, cost: Nanos, of: Duration) -> f64 {
    if of.is_zero() { 0.0 } else { hits as f64 * cost.as_secs_f64() / of.as_secs_f64() }
}

/// The decision so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Duty {
    budget: Option<f64>,
    /// Share of a thread's time that probes on launches take while they are watched.
    load: f64,
    /// The same of the other calls.
    others: f64,
    sheds: bool,
    /// Windows in a row that speak for a change.
    votes: u32,
}

impl Duty {
    /// Without a budget launches are watched all the time. A budget is the share of a thread's time that probes may take.
    #[must_use]
    pub const fn new(budget: Option<f64>) -> Self {
        Self { budget, load: 0.0, others: 0.0, sheds: false, votes: 0 }
    }

    /// Goes by another budget; what was measured is kept.
    pub fn set_budget(&mut self, budget: Option<f64>) {
        self.budget = budget;
        self.sheds &= budget.is_some();
        self.votes = 0;
    }

    /// What probes may take.
    #[must_use]
    pub const fn budget(&self) -> Option<f64> {
        self.budget
    }

    /// Whether launches are watched for part of the time only.
    #[must_use]
    pub const fn sheds(&self) -> bool {
        self.sheds
    }

    /// The share of the time for which launches are to be watched.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        match self.budget {
            Some(budget) if self.sheds && self.load > 0.0 => {
                let spare = budget * (1.0 - CHANGE_SHARE) - self.others;
                (spare / self.load).clamp(LEAST_RATIO, 1.0)
            }
            _ => 1.0,
        }
    }

    /// Takes what was measured in a window.
    pub fn judge(&mut self, window: &Window) {
        let Some(budget) = self.budget else { return };
        self.others = window.other_load();
        self.load = match self.sheds {
            true => window.launch_load().max(self.load * DECAY),
            false => window.launch_load(),
        };
        let total = self.load + self.others;
        // Where launches are not what costs, to look away from them helps nothing.
        let (speaks, needed) = match self.sheds {
            true => (total < budget * RELIEF || self.load < budget * LEAST_RATIO, RELIEF_WINDOWS),
            false => (total > budget && self.load >= budget * LEAST_RATIO, PATIENCE),
        };
        self.votes = if speaks { self.votes + 1 } else { 0 };
        if self.votes >= needed {
            self.sheds = !self.sheds;
            self.votes = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const COST: Nanos = Nanos(1_000);
    const BUDGET: f64 = 0.02;

    fn window(watched_ms: u64, launches_per_second: u64) -> Window {
        Window {
            elapsed: Duration::from_secs(4),
            watched: Duration::from_millis(watched_ms),
            launches: launches_per_second * watched_ms / 1_000,
            others: 0,
            hit_cost: COST,
        }
    }

    fn judged(budget: Option<f64>, windows: &[Window]) -> Duty {
        let mut duty = Duty::new(budget);
        windows.iter().for_each(|window| duty.judge(window));
        duty
    }

    #[test]
    fn a_burst_of_two_windows_is_watched_whole_and_the_third_is_too_much() {
        let fast = window(1_000, 200_000);
        assert_eq!(judged(Some(BUDGET), &[fast; 2]).ratio(), 1.0);
        assert!((judged(Some(BUDGET), &[fast; 3]).ratio() - 0.08).abs() < 1e-9);
        let slow = window(1_000, 1_000);
        assert_eq!(judged(Some(BUDGET), &[fast, fast, slow, fast, fast]).ratio(), 1.0);
    }

    #[test]
    fn without_a_budget_everything_is_watched() {
        assert_eq!(judged(None, &[window(1_000, 10_000_000); 9]).ratio(), 1.0);
        let mut duty = judged(Some(BUDGET), &[window(1_000, 200_000); 3]);
        duty.set_budget(None);
        assert_eq!((duty.ratio(), duty.sheds()), (1.0, false));
    }

    #[test]
    fn other_calls_leave_less_to_launches_and_cannot_take_all() {
        let with = |others| Window { others, ..window(1_000, 200_000) };
        assert!((judged(Some(BUDGET), &[with(40_000); 3]).ratio() - 0.03).abs() < 1e-9);
        assert_eq!(judged(Some(BUDGET), &[with(400_000); 3]).ratio(), LEAST_RATIO);
    }

    #[test]
    fn calls_that_are_no_launches_blind_nobody_to_launches() {
        let others = Window { launches: 64, others: 400_000, ..window(1_000, 0) };
        assert_eq!(judged(Some(BUDGET), &[others; 9]).ratio(), 1.0);
    }

    #[test]
    fn a_load_that_pauses_for_a_window_is_not_taken_for_gone() {
        let (fast, idle) = (window(400, 200_000), window(400, 0));
        let mut duty = judged(Some(BUDGET), &[fast; 3]);
        duty.judge(&idle);
        assert!(duty.ratio() < 0.2, "{}", duty.ratio());
        for _ in 0..20 {
            duty.judge(&idle);
        }
        assert_eq!((duty.ratio(), duty.sheds()), (1.0, false));
    }

    proptest! {
        /// In the long run probes take what the budget allows, or launches are hardly watched any more.
        #[test]
        fn a_steady_load_keeps_the_budget(
            launches in 0u64..5_000_000, others in 0u64..1_000_000, cost in 100u64..20_000, budget in 0.001f64..0.5,
        ) {
            let hit_cost = Nanos(cost);
            let mut duty = Duty::new(Some(budget));
            let seconds = 4u64;
            for _ in 0..50 {
                let watched = Duration::from_secs(seconds).mul_f64(duty.ratio());
                duty.judge(&Window {
                    elapsed: Duration::from_secs(seconds),
                    watched,
                    launches: (launches as f64 * watched.as_secs_f64()) as u64,
                    others: others * seconds,
                    hit_cost,
                });
                prop_assert!((LEAST_RATIO..=1.0).contains(&duty.ratio()));
            }
            let per_second = |calls: u64| calls as f64 * hit_cost.as_secs_f64();
            let (load, fixed) = (per_second(launches), per_second(others));
            let taken = duty.ratio() * load + fixed;
            let negligible = load < budget * LEAST_RATIO * 1.01;
            prop_assert!(
                taken <= budget * 1.01 || duty.ratio() <= LEAST_RATIO || negligible,
                "{} taken of {budget}, at {}", taken, duty.ratio()
            );
            prop_assert!(load + fixed >= budget * RELIEF || duty.ratio() == 1.0);
        }

        #[test]
        fn who_launches_more_is_watched_no_longer(a in 0u64..1_000_000, b in 0u64..1_000_000) {
            let ratio = |rate| judged(Some(BUDGET), &[window(1_000, rate); 3]).ratio();
            prop_assert!(ratio(a.max(b)) <= ratio(a.min(b)));
        }
    }
}
