use super::*;
use gpucause_abi::Nanos;
use proptest::prelude::*;

const COST: HitCost = HitCost { timed: Nanos(1_250), counted: Nanos(500), stepped: Nanos(10_000) };
const LIMITS: Limits = Limits { budget: 0.02, counting: 0.05 };

/// Calls a second, as a program makes them.
#[derive(Debug, Clone, Copy, Default)]
struct Calls {
    launches: u32,
    /// True if launches are the runtime's, and reach the driver.
    nests: bool,
    queries: u32,
    asyncs: u32,
    waits: u32,
    stepped: bool,
}

impl Calls {
    const fn nested(launches: u32) -> Self {
        Self { launches, nests: true, queries: 0, asyncs: 0, waits: 0, stepped: false }
    }

    /// Half a second of them as the programs count them at a rung: with a quota, if there is a limit.
    fn window(self, rung: Rung, cost: HitCost, quota: Option<f64>) -> Window {
        let elapsed = Duration::from_millis(500);
        let share = if let Rung::PartTime(share) = rung { share } else { 1.0 };
        let mut load = LoadRecord::default();
        let mut spent = 0.0;
        let mut hit = |class: LoadClass, calls: f64, one_in: f64| {
            let step = if self.stepped { cost.stepped.0 as f64 } else { 0.0 };
            let counted = cost.counted.0 as f64 + step;
            let more = (cost.timed.0 - cost.counted.0) as f64;
            let calls = calls * elapsed.as_secs_f64();
            let most = quota.map_or(f64::INFINITY, |quota| (quota * 0.5e9 - spent).max(0.0));
            let wanted = if one_in > 0.0 { calls / one_in } else { 0.0 };
            let timed = match class {
                LoadClass::Wait => wanted,
                _ => wanted.min(most / (counted + more)),
            };
            spent += calls * counted + timed * more;
            let index = class as usize;
            load.timed[index] += timed as u32;
            load.counted[index] += (calls - timed) as u32;
            // By the function: those within others are the driver's.
            let of = if class == LoadClass::Nested { LoadClass::Driver } else { class };
            load.stepped[of as usize] += if self.stepped { calls as u32 } else { 0 };
        };
        let launches = f64::from(self.launches) * share;
        let one_in = if rung.samples_launches() { f64::from(ONE_IN) } else { 1.0 };
        if self.nests && rung.rank() < Rung::DriverOnly.rank() {
            hit(LoadClass::Runtime, launches, one_in);
            hit(LoadClass::Nested, launches, 0.0);
        } else {
            hit(LoadClass::Driver, launches, one_in);
        }
        if rung.has_queries() {
            hit(LoadClass::Query, self.queries.into(), 1.0);
        }
        let one_in = if rung.samples_asyncs() { ASYNC_ONE_IN as f64 } else { 1.0 };
        hit(LoadClass::Async, f64::from(self.asyncs) * share, one_in);
        hit(LoadClass::Wait, self.waits.into(), 1.0);
        load.spent_ns = spent.min(f64::from(u32::MAX)) as u32;
        Window { elapsed, observed: elapsed.mul_f64(share), load, weight: 1.0 }
    }
}

/// Which share probes take in each window of a program that makes these calls, and the last rung.
fn windows(calls: &[Calls], cost: HitCost, limits: Limits) -> (Vec<f64>, Rung) {
    let mut budget = CallBudget::default();
    let share = |calls: &Calls| {
        let window = calls.window(budget.rung(), cost, Some(limits.budget));
        budget.evaluate(&window, cost, Some(limits));
        f64::from(window.load.spent_ns) / 0.5e9
    };
    let spent = calls.iter().map(share).collect();
    (spent, budget.rung())
}

fn after(calls: &[Calls]) -> Rung {
    windows(calls, COST, LIMITS).1
}

#[test]
fn the_rungs_follow_one_another_as_more_is_launched() {
    assert_eq!(after(&[Calls::nested(11_000); 9]), Rung::Full);
    assert_eq!(after(&[Calls::nested(15_000); 9]), Rung::DriverOnly);
    assert_eq!(after(&[Calls::nested(30_000); 9]), Rung::Sampled);
    assert_eq!(after(&[Calls::nested(90_000); 9]), Rung::AsyncsSampled);
    let Rung::PartTime(share) = after(&[Calls::nested(200_000); 99]) else { panic!() };
    let expected = 0.014 / (200_000.0 * 511.72e-9);
    assert!((share - expected).abs() < 2e-3, "{share}");
}

#[test]
fn queries_go_first_and_what_waits_is_timed_to_the_last() {
    let calls = Calls { queries: 12_000, asyncs: 2_000, ..Calls::nested(5_000) };
    assert_eq!(after(&[calls; 9]), Rung::WithoutQueries);
    let calls = Calls { asyncs: 12_000, ..Calls::nested(10_000) };
    assert_eq!(after(&[calls; 9]), Rung::AsyncsSampled);
    let waits = Calls { waits: 15_000, ..Calls::nested(10) };
    assert_eq!(after(&[waits; 9]), Rung::Full);
}

#[test]
fn a_hit_that_is_single_stepped_costs_what_it_costs() {
    let stepped = Calls { stepped: true, nests: false, ..Calls::nested(5_000) };
    assert!(matches!(after(&[stepped; 9]), Rung::PartTime(_)));
    assert_eq!(after(&[Calls { stepped: false, ..stepped }; 9]), Rung::Full);
}

#[test]
fn the_driver_stands_for_the_runtime_only_where_each_launch_reaches_it() {
    let mut budget = CallBudget::default();
    for _ in 0..9 {
        let mut window = Calls::nested(18_000).window(budget.rung(), COST, None);
        window.load.counted[LoadClass::Nested as usize] = 8_000;
        budget.evaluate(&window, COST, Some(LIMITS));
    }
    assert_eq!((budget.rung(), budget.nests()), (Rung::Sampled, false));
}

#[test]
fn what_was_launched_faster_is_timed_in_full_again_once_it_is_slow() {
    let calls = [vec![Calls::nested(100_000); 5], vec![Calls::nested(100); 60]].concat();
    assert_eq!(after(&calls), Rung::Full);
}

#[test]
fn what_is_not_seen_is_tried_again_ever_more_rarely() {
    let calls = Calls { queries: 30_000, ..Calls::nested(1_000) };
    let mut budget = CallBudget::default();
    let mut tries = Vec::new();
    for window in 0..600 {
        let before = budget.rung();
        budget.evaluate(&calls.window(before, COST, Some(0.02)), COST, Some(LIMITS));
        if before != Rung::Full && budget.rung() == Rung::Full {
            tries.push(window);
        }
    }
    assert!(tries.len() < 12, "{tries:?}");
}

#[test]
fn what_threads_spend_in_turns_adds_up_and_at_once_it_does_not() {
    // Time that hits took of each thread, and that it ran, in milliseconds of half a second.
    let weight = |threads: &[(f64, f64)]| {
        let busiest = threads.iter().map(|own| own.0).fold(0.0, f64::max);
        let all = threads.iter().map(|own| own.0).sum::<f64>();
        let products = threads.iter().map(|(spent, ran)| spent * 1e6 * ran * 1e6).sum();
        let [busiest, all] = [busiest, all].map(|ms| Nanos((ms * 1e6) as u64));
        as_one_thread(busiest, all, products, Duration::from_millis(500))
    };
    assert_eq!(weight(&[(10.0, 400.0)]), 1.0);
    assert_eq!(weight(&[(10.0, 250.0); 2]), 2.0);
    assert_eq!(weight(&[(10.0, 500.0); 2]), 1.0);
    assert_eq!(weight(&[(10.0, 15.0), (5.0, 5.0)]), 1.5);
    // Eight threads on two CPUs.
    assert_eq!(weight(&[(10.0, 125.0); 8]), 4.0);
    // Beside two that take turns, a third polls.
    assert!(weight(&[(10.0, 250.0), (10.0, 250.0), (0.1, 500.0)]) > 1.9);

    let mut budget = CallBudget::default();
    for _ in 0..9 {
        let window = Calls::nested(11_000).window(budget.rung(), COST, Some(LIMITS.budget));
        budget.evaluate(&Window { weight: 2.0, ..window }, COST, Some(LIMITS));
    }
    assert_eq!(budget.rung(), Rung::Sampled);
}

#[test]
fn without_a_budget_everything_is_timed() {
    let mut budget = CallBudget::default();
    for _ in 0..5 {
        let window = Calls::nested(500_000).window(budget.rung(), COST, None);
        budget.evaluate(&window, COST, Some(LIMITS));
    }
    let window = Calls::nested(500_000).window(budget.rung(), COST, None);
    assert_eq!(budget.evaluate(&window, COST, None), Rung::Full);
}

fn calls() -> impl Strategy<Value = Calls> {
    let most = 400_000u32;
    (0..most, any::<bool>(), 0..most, 0..most, 0..5_000u32, any::<bool>()).prop_map(
        |(launches, nests, queries, asyncs, waits, stepped)| Calls {
            launches,
            nests,
            queries,
            asyncs,
            waits,
            stepped,
        },
    )
}

proptest! {
    /// Under a steady load probes take at most what they may: the budget, what counting may take, or the least there is.
    #[test]
    fn a_steady_load_keeps_its_limits(calls in calls(), unit in 100u64..3_000, budget in 0.005f64..0.2) {
        let cost = HitCost { timed: Nanos(unit), counted: Nanos(unit * 2 / 5), stepped: Nanos(unit * 6) };
        let limits = Limits { budget, counting: budget * 2.5 };
        let (spent, rung) = windows(&[calls; 240], cost, limits);
        let last = spent.iter().rev().take(20).sum::<f64>() / 20.0;
        let mut waits = Calls { launches: 0, queries: 0, asyncs: 0, ..calls };
        waits.nests = false;
        let waits = f64::from(waits.window(Rung::Full, cost, None).load.spent_ns) / 0.5e9;
        let most = limits.of(rung) * 1.1 + waits;
        let least = matches!(rung, Rung::PartTime(share) if share <= LEAST_SHARE * 1.01);
        prop_assert!(last <= most || least, "{last} of {most} at {rung:?}");
    }

    /// A window can be too much before it has ended only if all of it is.
    #[test]
    fn a_window_that_has_not_ended_is_too_much_only_if_all_of_it_is(calls in calls(), part in 0.02f64..1.0) {
        let whole = calls.window(Rung::Full, COST, Some(LIMITS.budget));
        let mut begun = whole;
        begun.observed = whole.elapsed.mul_f64(part);
        for count in begun.load.timed.iter_mut().chain(&mut begun.load.counted) {
            *count = (f64::from(*count) * part) as u32;
        }
        let (mut early, mut late) = (CallBudget::default(), CallBudget::default());
        let before = early.anticipate(&begun, COST, LIMITS).rank();
        let after = late.evaluate(&whole, COST, Some(LIMITS)).rank();
        prop_assert!(before <= after, "{before} then {after}");
    }

    /// Overspending of the first second is saved in the next ones.
    #[test]
    fn ten_seconds_of_a_young_process_take_the_budget_and_a_tenth(launches in 0u32..300_000, nests in any::<bool>()) {
        let calls = Calls { nests, ..Calls::nested(launches) };
        let (spent, rung) = windows(&[calls; 20], COST, LIMITS);
        let took: f64 = spent.iter().sum::<f64>() / 20.0;
        prop_assert!(took <= LIMITS.of(rung) * 1.1, "{took} at {rung:?}");
    }
}
