//! What is injected is what is found.

use std::collections::BTreeMap;
use std::time::Duration;

use gpucause_engine::chain::{Cause, Chain, Effect};
use gpucause_engine::settings::Settings;

use crate::run::{Look, Outcome, Plan, rounds, run, tries};

/// What the scenario must show.
#[derive(Debug, Clone, Copy)]
struct Expected {
    cause: Cause,
    /// Whether the loss in seconds is told and must be right.
    loses: bool,
    /// From the injection to the chain, in seconds.
    within: f64,
    /// When set, the effect must be this.
    effect: Option<Effect>,
}

impl Expected {
    fn cause(cause: Cause) -> Self {
        Self { cause, loses: true, within: 5.0, effect: None }
    }
}

/// The part by which the loss told may differ from the loss measured.
const TOLERANCE: f64 = 0.1;

/// What is wrong with a run, if anything.
fn complaints(outcome: &Outcome, expected: Expected) -> Vec<String> {
    let mut complaints = Vec::new();
    let Some(injected) = &outcome.trainer.injected else {
        return vec!["nothing was injected".into()];
    };
    if !outcome.trainer.ended.is_some_and(|status| status.success()) {
        complaints.push(format!("the trainer ended by {:?}", outcome.trainer.ended));
    }
    let injected_ns = injected["at_ns"].as_u64().unwrap();
    let (before, since): (Vec<_>, Vec<_>) =
        outcome.looks.iter().partition(|look| look.at_ns < injected_ns);
    for chain in before.iter().flat_map(|look| &look.chains) {
        complaints.push(format!("{} before anything was injected", chain.cause));
    }
    let is_it = |chain: &&Chain| chain.cause == expected.cause;
    let Some(first) = since.iter().find(|look| look.chains.iter().any(|chain| is_it(&chain)))
    else {
        complaints.push(format!("no chain of {}", expected.cause));
        return complaints;
    };
    let delay = (first.at_ns - injected_ns) as f64 / 1e9;
    if delay > expected.within {
        complaints.push(format!("the chain came {delay:.1} s after the injection"));
    }
    let last = since.last().unwrap();
    let worst = &last.chains[0];
    if worst.cause != expected.cause {
        complaints.push(format!("{} is ranked before {}", worst.cause, expected.cause));
    }
    let chain = last.chains.iter().find(is_it).unwrap();
    if expected.effect.is_some_and(|effect| effect != chain.effect) {
        complaints.push(format!("its effect is {}", chain.effect));
    }
    for other in last.chains.iter().filter(|other| !is_it(other)) {
        if other.severity >= chain.severity {
            complaints.push(format!("{} is as severe as {}", other.cause, chain.cause));
        }
    }
    if let Some(comm) = injected["culprit"]["comm"].as_str() {
        let pids = injected["culprit"]["pids"].as_array().unwrap();
        let right = |pid: u32| pids.iter().any(|known| known.as_u64() == Some(u64::from(pid)));
        match &chain.culprit {
            Some(own) if own.comm == comm && right(own.pid) => {}
            other => complaints.push(format!("the culprit is {comm} {pids:?}, not {other:?}")),
        }
    }
    if expected.loses {
        // A look may come late on a busy host, when the program has told its last loss.
        let told = |look: &&&Look| outcome.trainer.lost_seconds_at(look.at_ns).is_some();
        let until = since.iter().rfind(told).unwrap_or(last).at_ns;
        complaints.extend(loss_complaint(outcome, chain, (first.at_ns, until)));
    }
    complaints
}

/// From the look that raised the chain to another: what the chain gained, and what the program lost.
fn loss_complaint(outcome: &Outcome, chain: &Chain, window: (u64, u64)) -> Option<String> {
    let told_at = |ns: u64| {
        let look = outcome.looks.iter().find(|look| look.at_ns == ns)?;
        look.chains.iter().find(|own| own.id == chain.id).map(Chain::attributed_seconds)
    };
    let gain = |at: &dyn Fn(u64) -> Option<f64>| Some(at(window.1)? - at(window.0)?);
    let told = gain(&told_at);
    let truth = gain(&|ns| outcome.trainer.lost_seconds_at(ns));
    let (Some(told), Some(truth)) = (told, truth) else {
        return Some(format!(
            "no loss to compare: {told:?} by the chain, {truth:?} by the program"
        ));
    };
    let error = told / truth - 1.0;
    println!("    loss told {told:.3} s, measured {truth:.3} s, {:+.1} %", 100.0 * error);
    (error.abs() > TOLERANCE)
        .then(|| format!("{told:.3} s lost by the chain, {truth:.3} s by the program"))
}

/// Every second run has the host's other CPU to itself; a single run has not.
fn check(plan: &Plan, expected: Expected) {
    let mut wrong: BTreeMap<String, u32> = BTreeMap::new();
    let (rounds, mut failed) = (rounds(), 0);
    for round in 1..=rounds {
        let plan = Plan { beside_noise: round % 2 == 1, ..plan.clone() };
        let mut outcome = run(&plan);
        let mut complaints = complaints(&outcome, expected);
        let beside = if plan.beside_noise { ", beside noise" } else { "" };
        println!("{} {round}/{rounds}{beside}: {complaints:?}", plan.name);
        for _ in 1..tries() {
            if !complaints.is_empty() {
                outcome = run(&plan);
                complaints = self::complaints(&outcome, expected);
                println!("{} once more: {complaints:?}", plan.name);
            }
        }
        if !complaints.is_empty() {
            failed += 1;
            println!("{}", outcome.told());
        }
        for complaint in complaints {
            *wrong.entry(complaint).or_default() += 1;
        }
    }
    assert!(failed == 0, "{}: {failed} of {rounds} runs failed: {wrong:#?}", plan.name);
}

#[test]
fn a_log_shipper_on_the_feeding_threads_cpu_explains_the_launch_tail() {
    let expected =
        Expected { effect: Some(Effect::LaunchTail), ..Expected::cause(Cause::CpuPreemption) };
    check(&Plan::of("incident"), expected);
}

#[test]
fn busy_neighbours_are_named() {
    check(&Plan::of("cpu-contention"), Expected::cause(Cause::CpuPreemption));
}

#[test]
fn the_holder_of_a_lock_is_named() {
    check(&Plan::of("lock"), Expected::cause(Cause::LockWait));
}

#[test]
fn the_holder_of_a_lock_inside_calls_is_named() {
    check(&Plan::of("lock-in-call"), Expected::cause(Cause::LockWait));
}

#[test]
fn workers_that_do_not_keep_up_are_found() {
    check(&Plan::of("dataloader"), Expected::cause(Cause::DataloaderStarvation));
}

#[test]
fn reads_of_the_feeding_thread_are_found() {
    check(&Plan::of("io"), Expected::cause(Cause::BlockIo));
}

#[test]
fn pages_that_are_not_in_memory_are_found() {
    check(&Plan::of("page-fault"), Expected::cause(Cause::PageFault));
}

#[test]
fn large_copies_are_found() {
    check(&Plan::of("memcpy-bottleneck"), Expected::cause(Cause::LargeCopy));
}

#[test]
fn a_copy_to_the_host_after_each_launch_is_found() {
    check(&Plan::of("implicit-sync"), Expected::cause(Cause::ImplicitSync));
}

#[test]
fn a_synchronisation_after_each_launch_is_found() {
    check(&Plan::of("implicit-sync-stream"), Expected::cause(Cause::ImplicitSync));
}

#[test]
fn allocations_in_each_step_are_found() {
    check(&Plan::of("alloc-churn"), Expected::cause(Cause::AllocatorChurn));
}

/// Judged over a shorter time than by default: a leak takes long to tell from a cache.
#[test]
fn memory_that_only_grows_is_found() {
    let settings = Settings { leak_seconds: 4.0, ..Settings::default() };
    let look_every = Duration::from_millis(400);
    let plan = Plan { seconds: 6.5, look_every, settings, ..Plan::of("leak") };
    check(&plan, Expected { loses: false, within: 6.0, ..Expected::cause(Cause::MemoryLeak) });
}

#[test]
fn graphs_that_are_built_for_one_launch_are_found() {
    check(&Plan::of("graph-recapture"), Expected::cause(Cause::GraphRecapture));
}

#[test]
fn the_rank_that_comes_late_is_named() {
    check(&Plan::of("nccl-straggler"), Expected::cause(Cause::NcclLateRank));
}

#[test]
fn kernels_that_are_loaded_all_the_time_are_found() {
    check(&Plan::of("cold-start"), Expected::cause(Cause::ColdStart));
}

fn hangs(name: &'static str, cause: Cause) {
    let settings = Settings { hang_seconds: 2.0, ..Settings::default() };
    let expected = Expected { effect: Some(Effect::Hang), ..Expected::cause(cause) };
    check(&Plan { settings, ..Plan::of(name) }, expected);
}

#[test]
fn a_launch_that_hangs_in_a_lock_is_found() {
    hangs("hang", Cause::LockWait);
}

#[test]
fn a_launch_that_hangs_in_the_driver_is_found() {
    hangs("hang-ioctl", Cause::Unexplained);
}
