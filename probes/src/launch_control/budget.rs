//! Decides how the launches of one process are observed, so that probes take no more of its busiest thread than the budget
//! allows. Pure: measuring and applying happen elsewhere.
//!
//! Steps go from most observed to least; see [`LaunchStep`]. Their cost is computed from the launch count of the busiest
//! thread, which is known at every step.

use std::time::Duration;

use gpucause_abi::Nanos;
use gpucause_abi::record::LoadRecord;
use gpucause_abi::snapshot::LaunchStep;

/// Budgets that consecutive windows over budget may take in total before less is observed, so that a burst or a program
/// start is timed in full. A window counts as many as it took.
const OVERLOAD_BUDGETS: u32 = 3;
/// A step must stay below this part of the budget, for that many windows, before more is observed again.
const RELIEF: f64 = 0.8;
const RELIEF_WINDOWS: u32 = 3;
/// Most that the rate falls from one window to the next, so that an intermittent load is not observed only while it is
/// idle.
const DECAY: f64 = 0.7;
/// Part of the budget for attaching and detaching probes.
pub(crate) const CHANGE_SHARE: f64 = 0.2;
/// What a hit costs in a program with data of its own in the caches, as a multiple of the calibrated cost: a busy program
/// lost 2.2 % of its time where the calibrated cost was 1.6 %, attaching and detaching probes included.
const CACHE_MISSES: f64 = 1.25;
/// What was spent over the budget is saved in about this time, in seconds, and no more than the budget of as long.
const REPAID_IN: f64 = 8.0;
/// Most of the budget that is saved: what remains is observed for long enough to estimate the rest by it.
const MOST_SAVED: f64 = 0.7;
/// Seconds whose budget may be spent in advance: part-time observation spends that of a period at its begin.
const IN_ADVANCE: f64 = 4.0;
/// Launches are observed for at least this share of the time, whatever the cost.
pub(crate) const LEAST_SHARE: f64 = 0.02;
/// Above this share a change is not worthwhile.
const MOST_SHARE: f64 = 0.95;
/// Sampling: one in so many launches is timed.
pub(crate) const ONE_IN: u32 = 64;
/// Share of runtime launches that must call the driver for the driver's probes to replace the runtime's.
const ALL_NESTED: f64 = 0.99;

/// The time that a hit costs a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HitCost {
    /// Entry and return.
    pub(crate) timed: Nanos,
    /// A call that the program leaves at entry.
    pub(crate) counted: Nanos,
}

/// What the busiest thread of a process did in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    /// Length of the window.
    pub(crate) elapsed: Duration,
    /// Time in it for which launches were observed.
    pub(crate) observed: Duration,
    /// The hits.
    pub(crate) load: LoadRecord,
}

/// The state of the decision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LaunchBudget {
    step: LaunchStep,
    /// Outermost launches per second, while observed.
    rate: f64,
    /// Share of launches by the runtime, and whether each calls the driver; known at the first step only.
    runtime_share: f64,
    nests: bool,
    /// Consecutive windows in which more could be observed.
    reliefs: u32,
    /// Budgets that consecutive windows over budget took.
    overloads: u32,
    /// What was spent over the budget and is not saved yet, in seconds; below zero what may be spent in advance.
    overspent: f64,
}

impl Default for LaunchBudget {
    fn default() -> Self {
        Self {
            step: LaunchStep::Full,
            rate: 0.0,
            runtime_share: 0.0,
            nests: false,
            reliefs: 0,
            overloads: 0,
            overspent: 0.0,
        }
    }
}

impl LaunchBudget {
    /// The current step.
    pub(crate) const fn step(&self) -> LaunchStep {
        self.step
    }

    /// Whether the driver's probes see every runtime launch.
    pub(crate) const fn nests(&self) -> bool {
        self.nests
    }

    /// Share of its busiest thread's time that launch probes take while launches are counted.
    pub(crate) fn counting_load(&self, cost: HitCost) -> f64 {
        self.launch_load(LaunchStep::Sampled { one_in: ONE_IN }, cost) * CACHE_MISSES
    }

    /// The same of a thread that makes so many launches a second.
    pub(crate) fn counting_load_at(&self, rate: f64, cost: HitCost) -> f64 {
        Self { rate, ..*self }.counting_load(cost)
    }

    /// Evaluates a window. `budget` is the share of a thread's time that probes may take.
    pub(crate) fn evaluate(
        &mut self,
        window: &Window,
        cost: HitCost,
        budget: Option<f64>,
    ) -> LaunchStep {
        let Some(budget) = budget else {
            *self = Self { rate: self.rate, ..Self::default() };
            return self.step;
        };
        self.measure(window);
        let others =
            per_second(window.load.others.into(), window.elapsed) * cost.timed.as_secs_f64();
        let measured = *self;
        let load = |step| (measured.launch_load(step, cost) + others) * CACHE_MISSES;
        let own = match self.step {
            // The load at this share says nothing: the share was chosen for it.
            LaunchStep::PartTime { one_in, .. } => load(LaunchStep::Sampled { one_in }),
            step => load(step),
        };
        // If launches are not what costs, observing fewer does not help.
        let negligible = self.launch_load(LaunchStep::Full, cost) < budget * LEAST_SHARE;
        let most = self.steps().find(|&step| load(step) <= budget * RELIEF || negligible);
        let relieved = most.is_some_and(|step| rank(step) < rank(self.step));
        let strained =
            own > budget && !negligible && !matches!(self.step, LaunchStep::PartTime { .. });
        self.reliefs = if relieved { self.reliefs + 1 } else { 0 };
        self.overloads = if strained { self.overloads + budgets(own, budget) } else { 0 };
        self.spend(window, own, budget);
        let overspent = self.overspent / REPAID_IN;
        let part_time = || {
            let available = budget * (1.0 - CHANGE_SHARE) - others * CACHE_MISSES;
            let saved = overspent.min(available * MOST_SAVED).max(0.0);
            let share = (available - saved) / measured.counting_load(cost);
            LaunchStep::PartTime { share: share.clamp(LEAST_SHARE, MOST_SHARE), one_in: ONE_IN }
        };
        if self.reliefs >= RELIEF_WINDOWS || self.overloads >= OVERLOAD_BUDGETS {
            (self.reliefs, self.overloads) = (0, 0);
            let next = match most {
                Some(step) if relieved => step,
                _ => self.steps().find(|&step| load(step) <= budget).unwrap_or_else(part_time),
            };
            self.step = next;
        } else if matches!(self.step, LaunchStep::PartTime { .. }) {
            self.step = part_time();
        }
        self.step
    }

    /// Accounts for what probes took in a window; `load` is what they take while launches are observed.
    fn spend(&mut self, window: &Window, load: f64, budget: f64) {
        let within = load <= budget && !matches!(self.step, LaunchStep::PartTime { .. });
        let spent = if within { 0.0 } else { load * window.observed.as_secs_f64() };
        self.overspent = (self.overspent + spent).min(budget * REPAID_IN);
        self.rest(window.elapsed, Some(budget));
    }

    /// Lets time pass in which nothing was observed.
    pub(crate) fn rest(&mut self, elapsed: Duration, budget: Option<f64>) {
        let budget = budget.unwrap_or(0.0) * (1.0 - CHANGE_SHARE);
        self.overspent =
            (self.overspent - budget * elapsed.as_secs_f64()).max(-budget * IN_ADVANCE);
    }

    /// Evaluates a window with a fixed step.
    pub(crate) fn pin(&mut self, window: &Window, step: LaunchStep) -> LaunchStep {
        self.measure(window);
        self.step = step;
        step
    }

    fn measure(&mut self, window: &Window) {
        let LoadRecord { runtime, driver, nested, untimed, .. } = window.load;
        let launches = u64::from(runtime) + u64::from(driver) + u64::from(untimed);
        let rate = per_second(launches, window.observed);
        self.rate = match self.step {
            LaunchStep::PartTime { .. } => rate.max(self.rate * DECAY),
            _ => rate,
        };
        if self.step == LaunchStep::Full && launches > 0 {
            self.runtime_share = f64::from(runtime) / launches as f64;
            self.nests = f64::from(nested) >= f64::from(runtime) * ALL_NESTED && runtime > 0;
        }
    }

    /// The steps that observe launches all the time.
    fn steps(&self) -> impl Iterator<Item = LaunchStep> + use<> {
        let driver_only = self.nests.then_some(LaunchStep::DriverOnly);
        [LaunchStep::Full]
            .into_iter()
            .chain(driver_only)
            .chain([LaunchStep::Sampled { one_in: ONE_IN }])
    }

    /// Share of the thread's time that launch probes take at a step.
    fn launch_load(&self, step: LaunchStep, cost: HitCost) -> f64 {
        let (timed, counted) = (cost.timed.as_secs_f64(), cost.counted.as_secs_f64());
        let nested = if self.nests { self.runtime_share * counted } else { 0.0 };
        self.rate
            * match step {
                LaunchStep::Full => timed + nested,
                LaunchStep::DriverOnly => timed,
                LaunchStep::Sampled { one_in } => {
                    counted + (timed - counted) / f64::from(one_in.max(1))
                }
                LaunchStep::PartTime { share, one_in } => {
                    share * (counted + (timed - counted) / f64::from(one_in.max(1)))
                }
            }
    }
}

/// How many whole budgets a load is; at most so many that less is observed at once.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "from 0 to OVERLOAD_BUDGETS"
)]
fn budgets(load: f64, budget: f64) -> u32 {
    (load / budget).clamp(0.0, f64::from(OVERLOAD_BUDGETS)) as u32
}

const fn rank(step: LaunchStep) -> u8 {
    match step {
        LaunchStep::Full => 0,
        LaunchStep::DriverOnly => 1,
        LaunchStep::Sampled { .. } => 2,
        LaunchStep::PartTime { .. } => 3,
    }
}

fn per_second(count: u64, of: Duration) -> f64 {
    if of.is_zero() { 0.0 } else { count as f64 / of.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const COST: HitCost = HitCost { timed: Nanos(1_000), counted: Nanos(400) };
    const BUDGET: Option<f64> = Some(0.02);
    const SAMPLED: LaunchStep = LaunchStep::Sampled { one_in: ONE_IN };

    /// One second of runtime launches as the programs count them at a step. Each launch also calls the driver.
    fn second(step: LaunchStep, launches: u32, others: u32) -> Window {
        let (mut load, mut observed) = (
            LoadRecord { runtime: 0, driver: 0, nested: 0, untimed: 0, others },
            Duration::from_secs(1),
        );
        match step {
            LaunchStep::Full => (load.runtime, load.nested) = (launches, launches),
            LaunchStep::DriverOnly => load.driver = launches,
            LaunchStep::Sampled { one_in } => {
                (load.driver, load.untimed) = (launches / one_in, launches - launches / one_in);
            }
            LaunchStep::PartTime { share, .. } => {
                observed = observed.mul_f64(share);
                load.untimed = (f64::from(launches) * share) as u32;
            }
        }
        Window { elapsed: Duration::from_secs(1), observed, load }
    }

    fn after(launches: &[u32]) -> LaunchBudget {
        let mut budget = LaunchBudget::default();
        for &launches in launches {
            budget.evaluate(&second(budget.step(), launches, 0), COST, BUDGET);
        }
        budget
    }

    #[test]
    fn the_steps_follow_one_another_as_more_is_launched() {
        assert_eq!(after(&[11_000; 9]).step(), LaunchStep::Full);
        assert_eq!(after(&[15_000; 9]).step(), LaunchStep::DriverOnly);
        assert_eq!(after(&[30_000; 9]).step(), SAMPLED);
        let LaunchStep::PartTime { share, .. } = after(&[100_000; 99]).step() else { panic!() };
        let expected = 0.016 / (100_000.0 * 409.375e-9 * CACHE_MISSES);
        assert!((share - expected).abs() < 1e-3, "{share}");
    }

    #[test]
    fn less_is_observed_once_three_budgets_are_spent() {
        // With what it calls of the driver, 29,000 launches take two budgets, 100,000 take seven.
        assert_eq!(after(&[29_000]).step(), LaunchStep::Full);
        assert_eq!(after(&[29_000, 10, 29_000, 10]).step(), LaunchStep::Full);
        assert_ne!(after(&[29_000; 2]).step(), LaunchStep::Full);
        assert_eq!(after(&[19_000; 2]).step(), LaunchStep::Full);
        assert_ne!(after(&[19_000; 3]).step(), LaunchStep::Full);
        assert_ne!(after(&[100_000]).step(), LaunchStep::Full);
    }

    #[test]
    fn what_a_start_timed_in_full_took_is_saved_later() {
        let mut budget = LaunchBudget::default();
        let mut spent = 0.0;
        let per_launch = |step| match step {
            LaunchStep::Full => 1_400e-9,
            LaunchStep::PartTime { share, .. } => share * 409.375e-9,
            _ => panic!("{step:?}"),
        };
        for _ in 0..20 {
            spent += 100_000.0 * per_launch(budget.step()) * CACHE_MISSES;
            budget.evaluate(&second(budget.step(), 100_000, 0), COST, BUDGET);
        }
        assert!(spent <= 0.02 * 20.0, "{spent} s of 20 s");
    }

    #[test]
    fn seconds_without_observation_count_for_the_budget_too() {
        let mut budget = after(&[100_000; 9]);
        for _ in 0..30 {
            let LaunchStep::PartTime { share, one_in } = budget.step() else { panic!() };
            // One second in four is observed, for four times as long.
            let observed = LaunchStep::PartTime { share: share * 4.0, one_in };
            budget.evaluate(&second(observed, 100_000, 0), COST, BUDGET);
            (0..3).for_each(|_| budget.rest(Duration::from_secs(1), BUDGET));
        }
        let LaunchStep::PartTime { share, .. } = budget.step() else { panic!() };
        let expected = 0.016 / (100_000.0 * 409.375e-9 * CACHE_MISSES);
        assert!((share / expected - 1.0).abs() < 0.02, "{share}");
    }

    #[test]
    fn without_a_budget_everything_is_timed() {
        let mut budget = after(&[100_000; 5]);
        assert_eq!(
            budget.evaluate(&second(budget.step(), 100_000, 0), COST, None),
            LaunchStep::Full
        );
    }

    #[test]
    fn the_driver_stands_for_the_runtime_only_where_each_launch_reaches_it() {
        let mut budget = LaunchBudget::default();
        for _ in 0..9 {
            let mut window = second(LaunchStep::Full, 21_000, 0);
            window.load.nested = 20_000;
            if budget.step() != LaunchStep::Full {
                break;
            }
            budget.evaluate(&window, COST, BUDGET);
        }
        assert_eq!(budget.step(), SAMPLED);
    }

    #[test]
    fn calls_that_are_no_launches_change_nothing_for_launches() {
        let mut budget = LaunchBudget::default();
        for _ in 0..9 {
            budget.evaluate(&second(LaunchStep::Full, 64, 400_000), COST, BUDGET);
        }
        assert_eq!(budget.step(), LaunchStep::Full);
    }

    #[test]
    fn what_was_launched_faster_is_timed_in_full_again_once_it_is_slow() {
        let launches: Vec<u32> = [vec![100_000; 5], vec![100; 30]].concat();
        assert_eq!(after(&launches).step(), LaunchStep::Full);
    }

    proptest! {
        /// In the long run probes stay within the budget, or launches are observed at the minimum.
        #[test]
        fn a_steady_load_keeps_the_budget(
            launches in 0u32..2_000_000, others in 0u32..1_000_000, cost in 100u64..20_000, budget in 0.001f64..0.5,
        ) {
            let cost = HitCost { timed: Nanos(cost), counted: Nanos(cost * 2 / 5) };
            let mut own = LaunchBudget::default();
            let mut steps = Vec::new();
            for _ in 0..60 {
                steps.push(own.evaluate(&second(own.step(), launches, others), cost, Some(budget)));
            }
            let fixed = f64::from(others) * cost.timed.as_secs_f64();
            let taken = own.launch_load(own.step(), cost) + fixed;
            let full = own.launch_load(LaunchStep::Full, cost);
            let least = matches!(own.step(), LaunchStep::PartTime { share, .. } if share <= LEAST_SHARE);
            let negligible = full < budget * LEAST_SHARE * 1.01;
            prop_assert!(taken <= budget * 1.01 || least || negligible, "{taken} of {budget} at {:?}", own.step());
            let last = &steps[steps.len() - 8..];
            prop_assert!(last.iter().all(|step| rank(*step) == rank(own.step())), "{last:?}");
        }
    }
}
