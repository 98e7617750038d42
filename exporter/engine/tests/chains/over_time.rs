//! Repeated detections extend one chain.

use std::collections::{BTreeMap, HashSet};

use gpucause_abi::op::op_of_symbol;
use gpucause_abi::state::{Phase, Reason, Relation, State};
use gpucause_engine::OTHER_PROCESS;
use gpucause_engine::chain::{Cause, Effect, Severity};
use gpucause_engine::settings::{RuleSettings, Settings};

use crate::host::{Host, WINDOW, lost};
use crate::process::{KERNEL, MS, Process, Task, US};
use crate::scenarios::{HOG, steady, trained};

fn reads_for(train: &mut Process, ns: u64) {
    steady(train);
    train.waits(Reason::Io, KERNEL, ns, 0);
}

#[test]
fn a_cause_that_lasts_extends_its_chain() {
    let mut host = trained();
    host.run(1, |train| reads_for(train, 700 * MS));
    let first = host.only(Cause::BlockIo).clone();
    host.run(9, |train| reads_for(train, 700 * MS));
    let chain = host.only(Cause::BlockIo);
    assert_eq!((&chain.id, chain.first_seen), (&first.id, first.first_seen));
    assert!((chain.last_seen - first.last_seen - 18.0).abs() < 1e-6);
    lost(chain, 10 * 700 * MS);
    assert_eq!(host.engine.counts().map(|count| count.count).sum::<u64>(), 1);
    let point = host.engine.timeline().last().unwrap();
    assert_eq!((point.chains, point.worst), (1, Some(chain.severity)));
    host.run(5, steady);
    let point = host.engine.timeline().last().unwrap();
    assert_eq!((point.chains, point.worst), (0, None), "the chain has ended");
}

#[test]
fn a_trouble_that_returns_soon_is_the_same_and_one_that_returns_late_is_another() {
    let mut host = trained();
    host.run(2, |train| reads_for(train, 700 * MS));
    host.run(29, steady);
    host.run(2, |train| reads_for(train, 700 * MS));
    host.only(Cause::BlockIo);
    host.run(31, steady);
    host.run(2, |train| reads_for(train, 700 * MS));
    let chains = host.chains();
    assert_eq!(chains.len(), 2);
    assert_ne!(chains[0].id, chains[1].id);
    assert_eq!(host.engine.counts().next().unwrap().count, 2);
    let counted = host.engine.stalls().next().unwrap().lost.as_secs_f64();
    assert!((counted - 6.0 * 0.7).abs() < 1e-3, "{counted}");
}

#[test]
fn a_small_loss_needs_two_ticks_in_a_row_and_then_counts_with_what_was_lost_before() {
    let mut host = trained();
    host.run(1, |train| reads_for(train, 100 * MS));
    host.is_silent();
    host.run(1, steady);
    host.run(1, |train| reads_for(train, 100 * MS));
    host.is_silent();
    host.run(1, |train| reads_for(train, 100 * MS));
    let chain = host.only(Cause::BlockIo);
    assert_eq!(chain.severity, Severity::Low);
    lost(chain, 300 * MS);
}

#[test]
fn a_chain_that_gets_worse_counts_once_more() {
    let mut host = trained();
    for ns in [100, 100, 300, 100, 600, 600, 100] {
        host.run(1, |train| reads_for(train, ns * MS));
    }
    let chain = host.only(Cause::BlockIo);
    assert_eq!(chain.severity, Severity::High);
    let counts = host.engine.counts().map(|count| (count.severity, count.count));
    let expected = [(Severity::Low, 1), (Severity::Medium, 1), (Severity::High, 1)];
    assert_eq!(counts.collect::<Vec<_>>(), expected);
    lost(chain, 1_900 * MS);
}

#[test]
fn who_makes_a_chain_worse_is_to_blame_and_not_who_took_a_little_before() {
    let mut host = trained();
    let before = Task("cron", 901, Relation::Other);
    host.run(2, |train| {
        steady(train);
        train.waits(Reason::Preempted, before, 100 * MS, 0);
    });
    let first = host.only(Cause::CpuPreemption).clone();
    assert_eq!((first.effect, first.culprit.unwrap().comm), (Effect::LaunchGap, "cron".into()));
    host.run(2, |train| {
        steady(train);
        train.calls("cudaLaunchKernel", 30, 5 * US, &[(Reason::Preempted, 20 * MS)]);
        train.blame(Phase::Launch, Reason::Preempted, HOG, 600 * MS, 0);
    });
    let chain = host.only(Cause::CpuPreemption);
    assert_eq!((&chain.id, chain.effect), (&first.id, Effect::LaunchTail));
    assert_eq!(chain.culprit.as_ref().unwrap().comm, "hog");
    assert!(chain.sentence.contains("hog"), "{}", chain.sentence);
}

#[test]
fn a_rule_that_is_switched_off_says_nothing_even_of_hangs() {
    let mut settings = Settings::default();
    let off = RuleSettings { enabled: false, ..RuleSettings::default() };
    settings.rules = BTreeMap::from([(Cause::BlockIo, off)]);
    let mut host = Host::with(settings);
    host.start("train", 100);
    host.run(8, steady);
    for window in 1..8 {
        host.run(1, |train| {
            train.on(100).rests(Phase::Launch, State::Off(Reason::Io));
            train.in_call(Some(("cudaLaunchKernel", window * WINDOW)));
        });
    }
    host.is_silent();
}

#[test]
fn a_process_that_ended_between_ticks_keeps_its_chain_and_its_counts() {
    let mut host = trained();
    host.run(1, |train| {
        steady(train);
        train.waits(Reason::Preempted, HOG, 100 * MS, 0);
    });
    host.is_silent();
    host.run_all(1, |processes, _| {
        steady(&mut processes[0]);
        processes[0].waits(Reason::Preempted, HOG, 100 * MS, 0);
    });
    lost(host.only(Cause::CpuPreemption), 200 * MS);
    let end = host.now + WINDOW / 2;
    host.run_all(1, |processes, _| {
        let train = &mut processes[0];
        train.on(100).launches(500, 5_000).waits(Reason::Preempted, HOG, 400 * MS, 0);
        train.fill(WINDOW / 2);
        train.ends(end);
    });
    let chain = host.only(Cause::CpuPreemption);
    assert_eq!(chain.severity, Severity::High);
    lost(chain, 600 * MS);
    // Its counts are exported as long as the process is.
    host.run_all(5, |_, _| {});
    assert_eq!(host.engine.counts().len(), 2);
    host.processes.clear();
    host.run_all(1, |_, _| {});
    assert!(host.chains().len() == 1 && host.engine.counts().len() == 0);
}

#[test]
fn an_image_that_follows_another_in_the_same_process_has_chains_of_its_own() {
    let mut host = trained();
    host.start("train", 100);
    host.run_all(8, |processes, _| processes.iter_mut().for_each(steady));
    host.run_all(1, |processes, _| processes.iter_mut().for_each(|p| reads_for(p, 700 * MS)));
    let ids: Vec<_> = host.chains().iter().map(|chain| chain.id.clone()).collect();
    assert_eq!(ids.len(), 2);
    assert_ne!(ids[0], ids[1]);
}

#[test]
fn a_snapshot_that_is_hardly_later_than_the_previous_or_earlier_is_ignored() {
    let mut host = trained();
    host.run(3, |train| reads_for(train, 700 * MS));
    let before = host.only(Cause::BlockIo).clone();
    let input = host.input();
    host.engine.evaluate(&input);
    host.now += WINDOW / 100;
    let input = host.input();
    host.engine.evaluate(&input);
    host.now -= 10 * WINDOW;
    let input = host.input();
    host.engine.evaluate(&input);
    assert_eq!(host.only(Cause::BlockIo), &before);
}

#[test]
fn a_process_that_was_not_seen_for_a_while_is_not_charged_for_all_its_life() {
    let mut host = trained();
    host.run(3, |train| reads_for(train, 700 * MS));
    let before = host.only(Cause::BlockIo).lost_seconds;
    let away = host.processes.remove(0);
    host.run_all(3, |_, _| {});
    host.forget_counters();
    host.processes.push(away);
    host.run(6, steady);
    assert_eq!(host.only(Cause::BlockIo).lost_seconds, before);
}

#[test]
fn causes_of_one_process_share_the_time_that_there_was() {
    let mut host = trained();
    for window in 1..12 {
        host.run(1, |train| {
            let holder = Task("holder", 100, Relation::Thread);
            train.on(100).rests(Phase::Launch, State::Off(Reason::Lock));
            train.blame(Phase::Launch, Reason::Lock, holder, WINDOW, WINDOW);
            train.in_call(Some(("cudaLaunchKernel", window * WINDOW)));
        });
    }
    let causes: Vec<_> = host.chains().iter().map(|chain| (chain.cause, chain.effect)).collect();
    assert!(causes.len() > 1, "a hang and what it does to the rate: {causes:?}");
    let lost: u64 = host.engine.stalls().map(|stall| stall.lost.0).sum();
    assert!((10 * WINDOW..=11 * WINDOW).contains(&lost), "{lost} ns");
}

#[test]
fn a_thread_that_lived_briefly_lost_little() {
    let mut host = trained();
    host.run(1, |train| {
        train.on(101).launches(100, 20_000).waits(Reason::Preempted, HOG, 3 * MS, 0);
        train.began_late(WINDOW - 5 * MS);
        steady(train);
    });
    host.is_silent();
}

#[test]
fn other_ops_that_count_as_launches_are_no_drop_of_the_rate() {
    let both = |process: &mut Process| {
        steady(process);
        process.calls("cudaMemcpyAsync", 100, 5_000, &[]);
        process.waits(Reason::Io, KERNEL, 15 * MS, 0);
    };
    let mut host = trained();
    host.run(8, both);
    let launch_ops = [op_of_symbol("cudaMemcpyAsync").unwrap()].into_iter().collect();
    host.engine.set_settings(Settings { launch_ops, ..Settings::default() });
    host.run(4, |process| {
        both(process);
        process.waits(Reason::Io, KERNEL, 1_000 * MS, 0);
    });
    let effects: Vec<_> = host.chains().iter().map(|chain| chain.effect).collect();
    assert!(!effects.contains(&Effect::LaunchRateDrop), "{effects:?}");
}

#[test]
fn counters_of_a_process_that_is_aggregated_are_added_to_other() {
    let mut host = trained();
    host.run(2, |train| reads_for(train, 700 * MS));
    let before: Vec<_> = host.engine.stalls().map(|stall| (stall.cause, stall.lost)).collect();
    let counted: u64 = host.engine.counts().map(|count| count.count).sum();
    assert!(counted > 0 && !before.is_empty());
    host.engine.aggregate(&HashSet::from([host.processes[0].now.id]));
    host.forget_counters();
    // The process may still be in a later snapshot.
    host.run(1, |train| reads_for(train, 700 * MS));
    host.processes.clear();
    host.run_all(2, |_, _| {});
    assert!(host.engine.stalls().all(|stall| stall.process == OTHER_PROCESS));
    assert!(host.engine.counts().all(|count| count.process == OTHER_PROCESS));
    assert_eq!(host.engine.counts().map(|count| count.count).sum::<u64>(), counted);
    let lost = |cause| host.engine.stalls().find(|stall| stall.cause == cause).unwrap().lost;
    for (cause, before) in before {
        assert!(lost(cause) > before, "{cause}: {:?} after {before:?}", lost(cause));
    }
}

/// Unobserved launches are neither a drop of the rate nor do they raise the waits per launch.
#[test]
fn launches_that_were_not_observed_were_not_missing() {
    let few = |process: &mut Process| {
        process.on(100).launches(100, 5 * US).calls("cudaStreamSynchronize", 900, 1_000 * US, &[]);
    };
    let mut host = trained();
    for _ in 0..8 {
        host.processes[0].now.launches.unobserved.0 += WINDOW * 9 / 10;
        host.run(1, few);
    }
    host.is_silent();
    let mut host = trained();
    host.run(8, few);
    assert!(!host.chains().is_empty(), "the same is worth a chain when all were observed");
}
