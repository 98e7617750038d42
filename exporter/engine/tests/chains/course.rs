//! How severe a chain was when, and what it took by when.

use gpucause_abi::state::{Phase, Reason};
use gpucause_engine::chain::{Cause, Chain, Course, Effect, Severity};
use proptest::collection::vec as some;
use proptest::prelude::*;

use crate::host::{Host, WINDOW, lost};
use crate::process::{KERNEL, MS, Process, US};
use crate::scenarios::{HOG, steady, trained};

fn reads_for(train: &mut Process, ns: u64) {
    steady(train);
    train.waits(Reason::Io, KERNEL, ns, 0);
}

fn window_seconds() -> f64 {
    WINDOW as f64 / 1e9
}

#[test]
fn the_highest_severity_stays_and_says_when_it_was_reached() {
    let mut host = trained();
    host.run(3, |train| reads_for(train, 300 * MS));
    host.run(1, |train| {
        train.on(100).launches(2_000, 5 * US);
        train.waits(Reason::Io, KERNEL, 1_400 * MS, 0);
    });
    let spike = host.only(Cause::BlockIo).last_seen;
    host.run(30, |train| reads_for(train, 300 * MS));
    let chain = host.only(Cause::BlockIo);
    assert_eq!((chain.severity, chain.last_severity()), (Severity::Critical, Severity::Medium));
    assert_eq!(chain.course.severity_at, Some(spike));
    let after = (spike + 1.0, f64::INFINITY);
    let shown = |period| chain.severities(period, |at| format!("{}", at == spike));
    assert_eq!(shown(Chain::ALWAYS), "critical at true, last medium");
    assert_eq!(shown(after), "medium, critical at true");
    assert_eq!(chain.severity_in(after), Severity::Medium);
    assert_eq!(chain.severity_in((spike - 1.0, spike + 1.0)), Severity::Critical);
    assert_eq!(chain.severity_in(Chain::ALWAYS), Severity::Critical);
    let point = host.engine.timeline().last().unwrap();
    assert_eq!(point.worst, Some(Severity::Medium), "the spike is over");
}

#[test]
fn a_window_that_was_cut_short_adds_to_sums_and_leaves_severity_and_numbers() {
    let cut_short = |host: &mut Host, ms| {
        let train = &mut host.processes[0];
        train.on(100).launches(500, 5 * US);
        train.waits(Reason::Io, KERNEL, ms * MS, 0);
        host.pass(500 * MS);
    };
    let mut host = trained();
    host.run(3, |train| reads_for(train, 600 * MS));
    let before = host.only(Cause::BlockIo).clone();
    assert_eq!(before.last_severity(), Severity::High);
    let mut taken = before.attributed_seconds();
    for ms in [50, 400] {
        cut_short(&mut host, ms);
        taken += ms as f64 / 1e3;
        let after = host.only(Cause::BlockIo);
        assert_eq!((after.severity, after.last_severity()), (Severity::High, Severity::High));
        assert_eq!(after.course.severity_at, Some(before.last_seen));
        assert_eq!(after.course.measured_at, Some(before.last_seen));
        assert_eq!(after.evidence.get("window_seconds"), Some(window_seconds()));
        let measured = before.sentence.split("; ongoing").next().unwrap();
        assert!(after.sentence.starts_with(measured), "{}", after.sentence);
        assert!((after.attributed_seconds() - taken).abs() < 0.01, "{after:#?}");
    }
    host.run(1, |train| reads_for(train, 300 * MS));
    let chain = host.only(Cause::BlockIo);
    assert_eq!((chain.last_severity(), chain.course.measured_at), (Severity::Medium, None));

    let mut host = trained();
    cut_short(&mut host, 400);
    host.is_silent();
}

#[test]
fn the_rest_of_a_process_that_ends_adds_to_sums_and_leaves_severity_and_numbers() {
    let mut host = trained();
    host.run(3, |train| reads_for(train, 600 * MS));
    let before = host.only(Cause::BlockIo).clone();
    let end = host.now + 89 * MS;
    host.run(1, |train| {
        train.on(100).launches(20, 5 * US).waits(Reason::Io, KERNEL, 80 * MS, 0);
        train.fill(89 * MS);
        train.ends(end);
    });
    let after = host.only(Cause::BlockIo);
    assert_eq!((after.severity, after.last_severity()), (Severity::High, Severity::High));
    assert_eq!(after.course.measured_at, Some(before.last_seen));
    assert_eq!(after.evidence.get("window_seconds"), Some(window_seconds()));
    let taken = after.attributed_seconds() - before.attributed_seconds();
    assert!((taken - 0.08).abs() < 0.001, "{taken}");
}

#[test]
fn a_chain_that_begins_in_the_rest_of_a_process_is_of_low_severity() {
    let mut host = trained();
    host.run(1, |train| reads_for(train, 200 * MS));
    host.is_silent();
    let end = host.now + 89 * MS;
    host.run(1, |train| {
        train.on(100).launches(20, 5 * US).waits(Reason::Io, KERNEL, 80 * MS, 0);
        train.fill(89 * MS);
        train.ends(end);
    });
    let chain = host.only(Cause::BlockIo);
    assert_eq!(chain.severity, Severity::Low);
    lost(chain, 280 * MS);
}

#[test]
fn a_young_process_has_lost_all_that_its_first_sentence_says() {
    let mut host = Host::training();
    for windows in 1.. {
        host.run(1, |train| reads_for(train, 600 * MS));
        let Some(chain) = host.chains().into_iter().next() else { continue };
        assert!((2..=5).contains(&windows), "after {windows}");
        lost(chain, windows * 600 * MS);
        return;
    }
}

#[test]
fn what_a_process_read_as_it_loaded_is_no_part_of_its_first_chain() {
    let mut host = Host::training();
    host.run(1, |train| {
        reads_for(train, 900 * MS);
        train.cold_launches(80, 2 * MS);
    });
    host.run(3, steady);
    host.run(1, |train| reads_for(train, 600 * MS));
    lost(host.only(Cause::BlockIo), 600 * MS);
}

#[test]
fn the_time_taken_is_known_by_period() {
    let mut host = trained();
    host.run(5, |train| reads_for(train, 300 * MS));
    host.run(5, steady);
    host.run(5, |train| reads_for(train, 1_000 * MS));
    let chain = host.only(Cause::BlockIo);
    let taken = |ago: f64| chain.taken_in((chain.last_seen - ago, chain.last_seen)).unwrap();
    for (windows, seconds) in [(1.0, 1.0), (5.0, 5.0), (9.5, 5.0), (12.0, 5.6), (99.0, 6.5)] {
        let (attributed, lost) = taken(windows * window_seconds());
        assert!((attributed - seconds).abs() < 0.01, "{attributed} in {windows} windows");
        assert!((lost - attributed).abs() < 0.01, "{lost}");
    }
    let before = chain.taken_in((0.0, chain.first_seen - 60.0)).unwrap();
    assert_eq!(before, (0.0, 0.0));
}

#[test]
fn a_chain_that_a_later_run_continues_has_the_sums_of_both_and_the_evidence_of_the_later() {
    let mut host = trained();
    host.run(5, |train| reads_for(train, 300 * MS));
    let first = host.only(Cause::BlockIo).clone();
    let later = |seconds: f64| {
        let mut later = Chain { id: "later".into(), ..first.clone() };
        (later.first_seen, later.last_seen) =
            (first.first_seen + seconds, first.last_seen + seconds);
        let base = first.sentence.strip_suffix(&first.when()).unwrap();
        later.sentence = format!("{base}{}", later.when());
        later
    };
    let near = |seconds: Option<(f64, f64)>, expected: f64| {
        let (attributed, lost) = seconds.unwrap();
        assert!((attributed - expected).abs() < 0.01, "{attributed} is not {expected}");
        assert!((lost - expected).abs() < 0.01, "{lost} is not {expected}");
    };
    for (one, other) in [(first.clone(), later(60.0)), (later(60.0), first.clone())] {
        let whole = one.continued_by(other);
        assert_eq!((&*whole.id, whole.first_seen), ("later", first.first_seen));
        assert_eq!(whole.last_seen, first.last_seen + 60.0);
        near(whole.taken_in(Chain::ALWAYS), 3.0);
        near(whole.taken_in((first.first_seen - 9.0, first.last_seen + 9.0)), 1.5);
        near(whole.taken_in((first.last_seen + 9.0, f64::INFINITY)), 1.5);
        near(whole.taken_in((first.last_seen + 5.0, first.last_seen + 9.0)), 0.0);
        assert!(whole.sentence.ends_with(&whole.when()), "{}", whole.sentence);
        assert_eq!(whole.evidence.get("window_seconds"), first.evidence.get("window_seconds"));
    }
    let both_saw = first.clone().continued_by(later(2.0 * window_seconds()));
    near(both_saw.taken_in(Chain::ALWAYS), 1.5 + 2.0 * 0.3);
    near(first.clone().continued_by(later(0.0)).taken_in(Chain::ALWAYS), 1.5);
}

#[test]
fn a_chain_without_a_course_is_known_as_a_whole() {
    let mut host = trained();
    host.run(5, |train| reads_for(train, 300 * MS));
    let mut chain = host.only(Cause::BlockIo).clone();
    let text = serde_json::to_string(&chain).unwrap();
    assert_eq!(serde_json::from_str::<Chain>(&text).unwrap(), chain);
    let mut old: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(old["taken_by"].is_array() && old["severity_at"].is_f64(), "{old}");
    for key in ["taken_by", "severity_at", "last_severity"] {
        old.as_object_mut().unwrap().remove(key);
    }
    chain.course = Course::default();
    let old: Chain = serde_json::from_value(old).unwrap();
    assert_eq!((&old.course, old.last_severity()), (&chain.course, chain.severity));
    assert_eq!(chain.taken_in((chain.first_seen + 1.0, f64::INFINITY)), None);
    let whole = (chain.attributed_seconds(), chain.lost_seconds);
    assert_eq!(chain.taken_in(Chain::ALWAYS), Some(whole));
    assert_eq!(chain.severities(Chain::ALWAYS, |_| String::new()), chain.severity.label());
}

#[test]
fn the_window_that_was_measured_is_named_where_a_later_one_had_another_effect() {
    let mut host = trained();
    host.run(2, |train| {
        train.calls("cudaLaunchKernel", 1_000, 5 * US, &[]);
        train.calls("cudaLaunchKernel", 40, 5 * US, &[(Reason::Preempted, 20 * MS)]);
        train.blame(Phase::Launch, Reason::Preempted, HOG, 800 * MS, 0);
    });
    let tail = host.only(Cause::CpuPreemption).clone();
    assert_eq!(tail.effect, Effect::LaunchTail);
    host.run(2, |train| {
        steady(train);
        train.waits(Reason::Preempted, HOG, 100 * MS, 0);
    });
    let chain = host.only(Cause::CpuPreemption);
    assert_eq!(chain.course.measured_at, Some(tail.last_seen));
    assert!(chain.sentence.contains("slow launches"), "{}", chain.sentence);
    assert!(chain.when().contains(&tail.when()[..30]), "{} {}", chain.when(), tail.when());
}

#[test]
fn a_tail_that_costs_next_to_nothing_does_not_hide_the_gaps() {
    let mut host = trained();
    host.run(4, |train| {
        steady(train);
        train.calls("cudaMemcpy", 100, 5 * US, &[]);
        train.calls("cudaMemcpy", 2, 5 * US, &[(Reason::Runqueue, 200 * US)]);
        train.waits(Reason::Runqueue, HOG, 300 * MS, 0).waits(Reason::Io, KERNEL, 500 * MS, 0);
    });
    let chains = host.chains();
    let queued = chains.iter().find(|own| own.cause == Cause::RunqueueWait).unwrap();
    assert_eq!(queued.effect, Effect::LaunchGap, "{queued:#?}");
    assert!(queued.sentence.contains("of its gaps between launches"), "{}", queued.sentence);
}

#[test]
fn a_hang_comes_before_what_took_more_time() {
    let mut host = trained();
    host.run(3, |train| reads_for(train, 300 * MS));
    let short = host.only(Cause::BlockIo).clone();
    let order = |a: &Chain, b: &Chain| a.worst_first(b, Chain::ALWAYS).is_lt();
    let mut hang = Chain { effect: Effect::Hang, id: "hang".into(), ..short.clone() };
    hang.evidence = hang.evidence.with(Chain::ATTRIBUTED, 0.1);
    assert!(order(&hang, &short) && !order(&short, &hang));
    let mut critical = Chain { severity: Severity::Critical, id: "1".into(), ..short.clone() };
    critical.evidence = critical.evidence.with(Chain::ATTRIBUTED, 0.1);
    assert!(order(&short, &critical), "the time taken counts, not the highest severity");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever a chain took when, its periods add up to all that it took.
    #[test]
    fn periods_add_up_to_the_whole(
        windows in some((0..1_100u64, 0..4u32), 1..150),
        cuts in some(0.0..300.0f64, 0..6),
    ) {
        let mut host = trained();
        for (ms, pause) in windows {
            host.run(1, |train| reads_for(train, ms * MS));
            host.run(pause, steady);
        }
        for chain in host.chains() {
            prop_assert!(chain.course.taken_by.len() <= 32);
            prop_assert!(chain.course.taken_by.is_sorted_by(|a, b| a[0] < b[0] && a[1] <= b[1]));
            let mut cuts: Vec<_> = cuts.iter().map(|cut| chain.first_seen + cut).collect();
            cuts.extend([f64::NEG_INFINITY, f64::INFINITY]);
            cuts.sort_by(f64::total_cmp);
            let parts = cuts.windows(2).map(|cut| chain.taken_in((cut[0], cut[1])).unwrap());
            let (mut attributed, mut lost) = (0.0, 0.0);
            for (part, cut) in parts.zip(cuts.windows(2)) {
                prop_assert!(part.0 <= cut[1] - cut[0] + 0.01, "{part:?} of {cut:?}");
                (attributed, lost) = (attributed + part.0, lost + part.1);
            }
            prop_assert!((attributed - chain.attributed_seconds()).abs() < 0.01, "{attributed}");
            prop_assert!((lost - chain.lost_seconds).abs() < 0.01, "{lost}");
        }
    }
}
