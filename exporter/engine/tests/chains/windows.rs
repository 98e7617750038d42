//! Each chain states its window and splits its loss by culprit.

use gpucause_abi::state::{Phase, Reason, Relation};
use gpucause_engine::Engine;
use gpucause_engine::chain::{Cause, Effect};
use gpucause_engine::settings::Settings;

use crate::host::Host;
use crate::process::{MS, Task, US};
use crate::scenarios::{self, HOG, steady};

#[test]
fn every_sentence_names_its_window_and_whether_the_chain_is_ongoing() {
    for scenario in scenarios::ALL {
        for chain in scenario().chains() {
            let window = chain.evidence.get("window_seconds").unwrap();
            let expected = match chain.effect {
                Effect::MemoryGrowth => 300.0,
                Effect::LaunchTail | Effect::CopyTail => window,
                _ => 2.0,
            };
            assert!(window > 0.0 && (window - expected).abs() < 1e-6, "{window}: {chain:#?}");
            assert!(chain.sentence.contains("Measured over "), "{}", chain.sentence);
        }
    }
}

#[test]
fn a_chain_that_is_not_seen_any_more_has_ended_when_it_was_seen_last() {
    let mut host = scenarios::preempted();
    let chain = host.only(Cause::CpuPreemption).clone();
    assert_eq!(chain.ongoing, Some(true));
    assert!(chain.sentence.contains("UTC; ongoing since 2023-11-14 22:13:"), "{}", chain.sentence);
    host.run(4, steady);
    let ended = host.only(Cause::CpuPreemption);
    assert_eq!(ended.ongoing, Some(false));
    assert!(ended.sentence.contains("; ended then; first seen at 2023-11-14 22:13:"));
    assert_eq!(ended.last_seen, chain.last_seen);
}

#[test]
fn chains_end_with_the_last_snapshot() {
    let mut host = scenarios::preempted();
    host.engine.end_chains();
    assert_eq!(host.only(Cause::CpuPreemption).ongoing, Some(false));
}

#[test]
fn the_loss_is_split_by_culprit() {
    let mut host = scenarios::trained();
    let other = Task("cron", 901, Relation::Other);
    host.run(scenarios::FAULT_WINDOWS, |train| {
        steady(train);
        train.calls("cudaLaunchKernel", 30, 5 * US, &[(Reason::Preempted, 4 * MS)]);
        train.blame(Phase::Launch, Reason::Preempted, HOG, 120 * MS, 0);
        train.waits(Reason::Preempted, HOG, 400 * MS, 0);
        train.waits(Reason::Runqueue, other, 80 * MS, 0);
    });
    let chain = host.only(Cause::CpuPreemption);
    let windows = f64::from(scenarios::FAULT_WINDOWS);
    let [hog, cron] = &chain.losses[..] else { panic!("{:?}", chain.losses) };
    assert_eq!((&*hog.comm, hog.pid, &*cron.comm, cron.pid), ("hog", Some(900), "cron", Some(901)));
    assert!((hog.seconds - windows * 0.52).abs() < 1e-6, "{hog:?}");
    assert!((cron.seconds - windows * 0.08).abs() < 1e-6, "{cron:?}");
    assert!((chain.lost_seconds - hog.seconds - cron.seconds).abs() < 1e-6, "{chain:#?}");
}

#[test]
fn who_took_most_lately_stays_the_culprit_while_single_windows_have_another_or_none() {
    let mut host = scenarios::trained();
    let browser = Task("browser", 901, Relation::Other);
    let run = |host: &mut Host, windows, by: [(Task, u64); 2]| {
        host.run(windows, |train| {
            steady(train);
            by.into_iter().filter(|(_, ms)| *ms > 0).for_each(|(task, ms)| {
                train.waits(Reason::Preempted, task, ms * MS, 0);
            });
        });
        let chain = host.only(Cause::CpuPreemption);
        (chain.culprit.as_ref().map(|own| own.comm.clone()), chain.fix.clone())
    };
    let (hog, of_hog) = run(&mut host, 10, [(HOG, 600), (browser, 0)]);
    assert_eq!(hog.as_deref(), Some("hog"));
    let lost = host.only(Cause::CpuPreemption).lost_seconds;
    for by in [[(HOG, 0), (browser, 600)], [(HOG, 300), (browser, 310)]] {
        let (culprit, fix) = run(&mut host, 1, by);
        assert_eq!((culprit.as_deref(), &*fix), (Some("hog"), &*of_hog), "{by:?}");
        let sentence = &host.only(Cause::CpuPreemption).sentence;
        assert!(sentence.contains("Top CPU competitor: hog"), "{sentence}");
    }
    assert!(host.only(Cause::CpuPreemption).lost_seconds > lost + 1.0, "what it loses is counted");
    let (culprit, fix) = run(&mut host, 20, [(HOG, 0), (browser, 600)]);
    assert_eq!(culprit.as_deref(), Some("browser"));
    let second = "hog (PID 900) takes much of it, too: keep it off these CPUs as well.";
    assert!(fix.contains("Keep browser off") && fix.contains(second), "{fix}");

    // Neither an idle CPU nor a thread of the program itself can be kept off its CPUs.
    for (name, pid) in [("idle", 0), ("own-thread", 100)] {
        let mut host = scenarios::trained();
        let (_, fix) = run(&mut host, 4, [(HOG, 400), (Task(name, pid, Relation::Other), 300)]);
        assert!(fix.contains("Keep hog off") && !fix.contains("takes much of it"), "{fix}");
    }
}

#[test]
fn a_late_rank_is_named_with_its_pid_and_its_host() {
    let host = scenarios::late_rank();
    let chain = host.chains()[0];
    assert!(chain.sentence.starts_with("Rank 2, train (102), comes late"), "{}", chain.sentence);
    let mut host = Host::new();
    host.engine = Engine::new(Settings::default()).on_host("gpu-1");
    scenarios::run_late_rank(&mut host);
    let chain = host.chains()[0];
    assert!(chain.sentence.starts_with("Rank 2, train (102) on gpu-1, comes late"), "{chain:#?}");
}
