use gpucause_abi::snapshot::{Comm, ProcessSnapshot};
use gpucause_abi::state::Reason;
use gpucause_abi::{ProcId, Tgid, Tid};
use proptest::prelude::*;

use super::*;
use crate::chain::Evidence;
use crate::delta::Delta;

fn detection(cause: Cause, effect: Effect, tid: u32, taken: TimeAccount) -> Detection {
    Detection {
        tid: Some(Tid(tid)),
        size: Nanos(1_000),
        taken: taken.into(),
        taken_share: 1.0,
        ..Detection::new(cause, effect, 0, Evidence::default())
    }
}

fn time(phase: Phase, state: State, ns: u64) -> TimeAccount {
    let mut time = TimeAccount::default();
    time.0[phase as usize][state.index()] = Nanos(ns);
    time
}

fn thread(tid: u32, time: TimeAccount) -> ThreadDelta {
    ThreadDelta { tid: Tid(tid), wall: time.total(), time, fed: Nanos(1) }
}

/// Divides the effects of a process that has no causes but these.
fn divide_all_effects(found: &mut [Detection]) {
    let now = ProcessSnapshot::new(ProcId(1), Tgid(1), Comm::default());
    let process = Process {
        now: &now,
        short: Delta::default(),
        long: Delta::default(),
        live_memory: Vec::new(),
        warmed_up: true,
        ticks_since_loading: 1,
        throttled: Nanos(0),
        effects: Vec::new(),
        computing: None,
        computed_before: 0,
    };
    divide_effects(&process, found);
}

#[test]
fn every_cause_has_one_place_in_the_order() {
    for cause in Cause::ALL {
        assert_eq!(ORDER.iter().filter(|own| *own == cause).count(), 1, "{cause}");
    }
}

#[test]
fn time_that_several_claim_is_the_first_ones_and_the_others_get_what_is_left() {
    let futex = State::Off(Reason::Futex);
    let threads = [thread(1, time(Phase::Host, futex, 1_000))];
    let claim = |cause, ns| detection(cause, Effect::LaunchGap, 1, time(Phase::Host, futex, ns));
    let mut found = vec![claim(Cause::DataloaderStarvation, 900), claim(Cause::LockWait, 700)];
    divide(&threads, &Settings::default(), &mut found);
    let taken: Vec<_> = found.iter().map(|own| (own.cause, own.taken.total().0)).collect();
    assert_eq!(taken, [(Cause::LockWait, 700), (Cause::DataloaderStarvation, 300)]);
    assert!((found[1].explained - 1.0 / 3.0).abs() < 1e-9, "{}", found[1].explained);
}

#[test]
fn a_hang_goes_first_and_a_cause_that_is_left_with_nothing_is_not_named() {
    let futex = State::Off(Reason::Futex);
    let threads = [thread(1, time(Phase::Launch, futex, 1_000))];
    let claim = |effect| detection(Cause::LockWait, effect, 1, time(Phase::Launch, futex, 1_000));
    let mut found = vec![claim(Effect::LaunchTail), claim(Effect::Hang)];
    divide(&threads, &Settings::default(), &mut found);
    assert_eq!(found.iter().map(|own| own.effect).collect::<Vec<_>>(), [Effect::Hang]);
}

#[test]
fn causes_of_effects_that_are_measured_apart_have_shares_of_both_together() {
    let launch = |cause, state, size| Detection {
        size: Nanos(size),
        explained: 0.8,
        ..detection(cause, Effect::LaunchTail, 1, time(Phase::Launch, state, 500))
    };
    let mut found = vec![
        launch(Cause::CpuPreemption, State::Off(Reason::Preempted), 1_000),
        launch(Cause::ColdStart, State::Running, 3_000),
    ];
    divide_all_effects(&mut found);
    let shares: Vec<_> = found.iter().map(|own| own.explained).collect();
    assert!((shares[0] - 0.2).abs() < 1e-9 && (shares[1] - 0.6).abs() < 1e-9, "{shares:?}");
    let rest = found[0].evidence.get(Chain::UNEXPLAINED).unwrap();
    assert!((rest - 0.2).abs() < 1e-9, "{rest}");
}

fn account() -> impl Strategy<Value = TimeAccount> {
    prop::collection::vec((0..8usize, 0..State::COUNT, 0..4_000_000_000u64), 0..6).prop_map(
        |cells| {
            let mut account = TimeAccount::default();
            cells.into_iter().for_each(|(phase, state, ns)| account.0[phase][state] = Nanos(ns));
            account
        },
    )
}

fn detections() -> impl Strategy<Value = Vec<Detection>> {
    let one = (0..Cause::ALL.len(), 0..Effect::ALL.len(), 0..3u32, account(), 0..4u64, 0.0..1.5f64);
    let one = one.prop_map(|(cause, effect, tid, taken, size, explained)| Detection {
        size: Nanos(size * 1_000_000_000),
        explained,
        ..detection(Cause::ALL[cause], Effect::ALL[effect], tid, taken)
    });
    prop::collection::vec(one, 0..8)
}

proptest! {
    #[test]
    fn no_time_is_charged_twice_and_shares_of_an_effect_add_up_to_at_most_one(
        times in prop::collection::vec(account(), 1..3),
        mut found in detections(),
    ) {
        let threads: Vec<_> = (0..).zip(times).map(|(tid, time)| thread(tid, time)).collect();
        let wall = threads.iter().map(|thread| thread.wall).max().unwrap();
        divide(&threads, &Settings::default(), &mut found);
        for thread in &threads {
            let own = found.iter().filter(|own| own.tid == Some(thread.tid));
            let all = own.fold(TimeAccount::default(), |mut all, own| {
                all.merge(&own.taken);
                all
            });
            prop_assert_eq!(within(all, &thread.time), all);
        }
        divide_all_effects(&mut found);
        fit(&mut found, wall);
        let all: u64 = found.iter().map(|own| own.taken.total().0).sum();
        prop_assert!(all <= wall.0 + 1_000, "{} of {:?}", all, wall);
        for effect in Effect::ALL {
            let own = || found.iter().filter(|own| own.effect == *effect && own.size.0 > 0);
            let shares: f64 = own().map(|own| own.explained).sum();
            prop_assert!(shares <= 1.0 + 1e-9, "{}", shares);
            for own in own() {
                let rest = own.evidence.get(Chain::UNEXPLAINED).unwrap();
                prop_assert!((shares + rest - 1.0).abs() < 1e-9, "{} and {}", shares, rest);
            }
        }
    }
}
