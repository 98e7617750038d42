//! Each injected fault is found with its culprit and loss.

use std::collections::BTreeMap;
use std::time::Duration;

use gpucause_engine::chain::{Cause, Chain, Effect};
use gpucause_engine::settings::Settings;

use super::run::{Evaluation, Outcome, Plan, rounds, run, tries};

/// The chain that a scenario must have.
#[derive(Debug, Clone, Copy)]
struct Expected {
    cause: Cause,
    /// True if the chain's loss is compared with the measured one.
    loses: bool,
    /// True if the chain includes the loss before its first evaluation.
    since_injection: bool,
    /// From the injection to the chain, in seconds.
    within: f64,
    /// When set, the effect must be this.
    effect: Option<Effect>,
}

impl Expected {
    fn cause(cause: Cause) -> Self {
        Self { cause, loses: true, since_injection: true, within: 5.0, effect: None }
    }
}

/// The share by which the chain's loss may differ from the measured one.
const TOLERANCE: f64 = 0.1;

/// Returns what is wrong with a run: each of these causes must be found, and none before the injection.
fn complaints(outcome: &Outcome, expected: &[Expected]) -> Vec<String> {
    let mut complaints = Vec::new();
    let Some(injected) = &outcome.trainer.injected else {
        return vec!["nothing was injected".into()];
    };
    if !outcome.trainer.ended.is_some_and(|status| status.success()) {
        complaints.push(format!("the trainer ended by {:?}", outcome.trainer.ended));
    }
    let injected_ns = injected["at_ns"].as_u64().unwrap();
    let (before, since): (Vec<_>, Vec<_>) =
        outcome.evaluations.iter().partition(|own| own.at_ns < injected_ns);
    for chain in before.iter().flat_map(|own| &own.chains) {
        complaints.push(format!("{} before anything was injected", chain.cause));
    }
    let Some(last) = since.last() else {
        complaints.push("nothing was evaluated after the injection".into());
        return complaints;
    };
    // A leak takes no time, by which chains are ranked.
    let takes_time = expected.iter().any(|own| own.cause.takes_time());
    if let Some(worst) = last.chains.first()
        && takes_time
        && !expected.iter().any(|own| own.is(worst))
    {
        complaints.push(format!("{} is ranked first", worst.cause));
    }
    for own in expected {
        complaints.extend(complaints_of(outcome, *own, &since, injected_ns));
    }
    let is_expected = |chain: &&Chain| expected.iter().any(|own| own.is(chain));
    let least = last.chains.iter().filter(is_expected).map(|chain| chain.severity).min();
    for other in last.chains.iter().filter(|chain| !is_expected(chain)) {
        if Some(other.severity) >= least {
            complaints.push(format!("{} is as severe as what was injected", other.cause));
        }
    }
    complaints
}

impl Expected {
    /// Returns true if a chain has this cause. The scheduler chooses whether a thread that shares its CPU is preempted or waits in the
    /// run queue.
    fn is(&self, chain: &Chain) -> bool {
        let of_cpu = |cause| matches!(cause, Cause::CpuPreemption | Cause::RunqueueWait);
        chain.cause == self.cause || (of_cpu(self.cause) && of_cpu(chain.cause))
    }
}

/// Returns what is wrong with one cause of a run.
fn complaints_of(
    outcome: &Outcome,
    expected: Expected,
    since: &[&Evaluation],
    injected_ns: u64,
) -> Vec<String> {
    let mut complaints = Vec::new();
    let is_it = |chain: &&Chain| expected.is(chain);
    let Some(first) = since.iter().find(|own| own.chains.iter().any(|chain| is_it(&chain))) else {
        return vec![format!("no chain of {}", expected.cause)];
    };
    let delay = (first.at_ns - injected_ns) as f64 / 1e9;
    if delay > expected.within {
        complaints.push(format!("the chain came {delay:.1} s after the injection"));
    }
    let chain = since.last().unwrap().chains.iter().find(is_it).unwrap();
    if expected.effect.is_some_and(|effect| effect != chain.effect) {
        complaints.push(format!("its effect is {}", chain.effect));
    }
    let culprit = &outcome.trainer.injected.as_ref().unwrap()["culprits"][expected.cause.label()];
    if let Some(comm) = culprit["comm"].as_str() {
        let pids = culprit["pids"].as_array().unwrap();
        let right = |pid: u32| pids.iter().any(|known| known.as_u64() == Some(u64::from(pid)));
        match &chain.culprit {
            Some(own) if own.comm == comm && right(own.pid) => {
                let is_its_own = expected.cause == Cause::CpuPreemption && own.feeds.is_some();
                complaints.extend(is_its_own.then(|| format!("{comm} counts as a part of a job")));
            }
            other => complaints.push(format!("the culprit is {comm} {pids:?}, not {other:?}")),
        }
    }
    if expected.loses {
        // An evaluation may be late on a busy host, after the program reported its last loss.
        let cause = expected.cause.label();
        let is_measured =
            |own: &&&Evaluation| outcome.trainer.lost_seconds_at(cause, own.at_ns).is_some();
        let until = since.iter().rfind(is_measured).map_or(first.at_ns, |own| own.at_ns);
        let from = if expected.since_injection { None } else { Some(first.at_ns) };
        complaints.extend(loss_complaint(outcome, expected, (from, until)));
    }
    complaints
}

/// A chain that is found has the time of its cause in so many evaluations.
const EVALUATIONS: usize = 5;

/// Seconds lost to preemption before the injection that are part of the chain, 0 for other causes: other programs take the CPU then, too.
fn lost_before(outcome: &Outcome, expected: Expected) -> f64 {
    let found = |own: &Evaluation| own.chains.iter().any(|chain| expected.is(chain));
    let first = outcome.evaluations.iter().position(found);
    let injected_ns = outcome.trainer.injected.as_ref().and_then(|own| own["at_ns"].as_u64());
    let (Cause::CpuPreemption, true, Some(first), Some(injected_ns)) =
        (expected.cause, expected.since_injection, first, injected_ns)
    else {
        return 0.0;
    };
    let from = outcome.evaluations[first.saturating_sub(EVALUATIONS)].at_ns;
    let waited = |ns| outcome.trainer.waited_for_cpu_seconds_at(ns);
    let (Some(before), Some(until)) = (waited(from.min(injected_ns)), waited(injected_ns)) else {
        return 0.0;
    };
    until - before
}

/// Compares the time that chains of the cause gained with the time that the program lost, from one evaluation, or the injection, to
/// another.
fn loss_complaint(
    outcome: &Outcome,
    expected: Expected,
    (from, until): (Option<u64>, u64),
) -> Option<String> {
    let cause = expected.cause.label();
    let attributed_at = |ns: u64| {
        let evaluation = outcome.evaluations.iter().find(|own| own.at_ns == ns)?;
        let own = evaluation.chains.iter().filter(|chain| expected.is(chain));
        Some(own.map(Chain::attributed_seconds).sum::<f64>())
    };
    let gain = |at: &dyn Fn(u64) -> Option<f64>| {
        let before = from.map_or(Some(0.0), at);
        Some(at(until)? - before?)
    };
    let attributed = gain(&attributed_at);
    let truth = gain(&|ns| outcome.trainer.lost_seconds_at(cause, ns))
        .map(|truth| truth + lost_before(outcome, expected));
    let (Some(attributed), Some(truth)) = (attributed, truth) else {
        return Some(format!(
            "no loss to compare: {attributed:?} by the chain, {truth:?} by the program"
        ));
    };
    let error = attributed / truth - 1.0;
    println!(
        "    {cause}: attributed {attributed:.3} s, measured {truth:.3} s, {:+.1} %",
        100.0 * error
    );
    (error.abs() > TOLERANCE).then(|| {
        format!("{cause}: {attributed:.3} s lost by the chain, {truth:.3} s by the program")
    })
}

/// Every second run has the host's other CPU to itself, but not a single run.
fn check(plan: &Plan, expected: Expected) {
    check_all(plan, &[expected]);
}

fn check_all(plan: &Plan, expected: &[Expected]) {
    let mut wrong: BTreeMap<String, u32> = BTreeMap::new();
    let (rounds, mut failed) = (rounds(), 0);
    for round in 1..=rounds {
        let plan = Plan { beside_noise: round % 2 == 1, ..plan.clone() };
        let mut outcome = run(&plan);
        let mut complaints = complaints(&outcome, expected);
        let beside = if plan.beside_noise { ", beside noise" } else { "" };
        println!("{} {:?} {round}/{rounds}{beside}: {complaints:?}", plan.name, plan.and);
        for _ in 1..tries() {
            if !complaints.is_empty() {
                outcome = run(&plan);
                complaints = self::complaints(&outcome, expected);
                println!("{} once more: {complaints:?}", plan.name);
            }
        }
        if !complaints.is_empty() {
            failed += 1;
            println!("{}", outcome.report());
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
fn the_cpu_limit_of_a_cgroup_is_found() {
    check(&Plan::of("cpu-limit"), Expected::cause(Cause::NoisyCgroup));
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
    let expected = Expected { since_injection: false, ..Expected::cause(Cause::ImplicitSync) };
    check(&Plan::of("implicit-sync"), expected);
}

#[test]
fn a_synchronisation_after_each_launch_is_found() {
    let expected = Expected { since_injection: false, ..Expected::cause(Cause::ImplicitSync) };
    check(&Plan::of("implicit-sync-stream"), expected);
}

#[test]
fn allocations_in_each_step_are_found() {
    check(&Plan::of("alloc-churn"), Expected::cause(Cause::AllocatorChurn));
}

/// Evaluated over a shorter time than by default: it takes long to distinguish a leak from a cache.
#[test]
fn memory_that_only_grows_is_found() {
    let settings = Settings { leak_seconds: 4.0, ..Settings::default() };
    let evaluate_every = Duration::from_millis(400);
    let plan = Plan { seconds: 6.5, evaluate_every, settings, ..Plan::of("leak") };
    check(&plan, Expected { loses: false, within: 6.0, ..Expected::cause(Cause::MemoryLeak) });
}

#[test]
fn graphs_that_are_built_for_one_launch_are_found() {
    check(&Plan::of("graph-recapture"), Expected::cause(Cause::GraphRecapture));
}

#[test]
fn the_late_rank_is_named() {
    let expected = Expected { since_injection: false, ..Expected::cause(Cause::NcclLateRank) };
    check(&Plan::of("nccl-straggler"), expected);
}

#[test]
fn kernels_that_are_loaded_all_the_time_are_found() {
    check(&Plan::of("cold-start"), Expected::cause(Cause::ColdStart));
}

/// It is charged with the evaluations in which the GPU was not waited for: the one in which the fault begins is not.
#[test]
fn batches_that_the_feeding_thread_computes_are_found() {
    let expected = Expected {
        effect: Some(Effect::LaunchGap),
        since_injection: false,
        ..Expected::cause(Cause::HostCode)
    };
    check(&Plan::of("host-code"), expected);
}

fn hangs(name: &'static str, cause: Cause) {
    let settings = Settings { hang_seconds: 2.0, ..Settings::default() };
    let expected = Expected { effect: Some(Effect::Hang), ..Expected::cause(cause) };
    let plan = Plan { settings, ..Plan::of(name) };
    check(&Plan { seconds: plan.seconds.max(4.0), ..plan }, expected);
}

#[test]
fn a_launch_that_hangs_in_a_lock_is_found() {
    hangs("hang", Cause::LockWait);
}

#[test]
fn a_launch_that_hangs_in_the_driver_is_found() {
    hangs("hang-ioctl", Cause::Unexplained);
}

/// The loss of the evaluation in which the fault began is included.
#[test]
fn the_whole_loss_of_a_short_fault_is_attributed() {
    for (name, cause) in [("lock", Cause::LockWait), ("cpu-contention", Cause::CpuPreemption)] {
        let plan = Plan::of(name);
        check(&Plan { seconds: plan.seconds / 1.375, ..plan }, Expected::cause(cause));
    }
}

/// Each of several faults is named, and charged with its own loss.
fn check_together(name: &'static str, and: &'static [&'static str], causes: &[Cause]) {
    let expected: Vec<_> = causes.iter().map(|&cause| Expected::cause(cause)).collect();
    check_all(&Plan { and, ..Plan::of(name) }, &expected);
}

#[test]
fn several_faults_a_lock_and_a_busy_neighbour() {
    check_together("lock", &["cpu-contention"], &[Cause::LockWait, Cause::CpuPreemption]);
}

#[test]
fn several_faults_reads_and_a_busy_neighbour() {
    check_together("io", &["cpu-contention"], &[Cause::BlockIo, Cause::CpuPreemption]);
}

#[test]
fn several_faults_slow_workers_and_first_launches() {
    let causes = [Cause::DataloaderStarvation, Cause::ColdStart];
    check_together("dataloader", &["cold-start"], &causes);
}

#[test]
fn several_faults_a_cpu_limit_and_a_lock() {
    check_together("cpu-limit", &["lock"], &[Cause::NoisyCgroup, Cause::LockWait]);
}

#[test]
fn several_faults_a_lock_and_reads_and_a_busy_neighbour() {
    let causes = [Cause::LockWait, Cause::BlockIo, Cause::CpuPreemption];
    check_together("lock", &["io", "cpu-contention"], &causes);
}
