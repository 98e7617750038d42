//! Launches: each counts once, in whichever layer it begins; and over a budget the process that is over it is observed in part, and
//! nobody else.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gpucause_abi::Nanos;
use gpucause_abi::record::SelfCounter;
use gpucause_abi::snapshot::{LaunchStep, ProcessSnapshot};
use gpucause_probes::Options;
use gpucause_probes::feature::AttachMode;

use crate::observe::{Observed, until};
use crate::workload::{StandIns, Workload, number, op};

/// Launches a second of the program that is over the budget, which is chosen by it and by what a hit is taken to cost.
const RATE: u64 = 5_000;
const TIMED: Nanos = Nanos(1_500);
const COUNTED: Nanos = Nanos(800);
/// A launch by the runtime that calls the driver, as NVIDIA's does.
const REAL: &str = "--wait --hold --script nest=1";

fn start(observed: &Options, work: &str) -> Result<(Observed, StandIns, Workload)> {
    let stand_ins = StandIns::lay_out()?;
    // Both libraries are known before the first launch of the others.
    let keeper = stand_ins.start("--hold --script nest=1 calls --calls 1")?;
    let observed = Observed::start(Options { hit_cost: Some((TIMED, COUNTED)), ..*observed })?;
    observed.wait_for_runtime(&stand_ins)?;
    observed.wait_for(&stand_ins, "libcuda.so.1")?;
    drop(keeper);
    let workload = stand_ins.start(work)?;
    Ok((observed, stand_ins, workload))
}

/// Seconds that launches of [`REAL`] take a second at [`RATE`], times a factor: timed ones, and those that are counted alone.
fn load(timed: f64, counted: f64) -> f64 {
    RATE as f64 * (timed * TIMED.as_secs_f64() + counted * COUNTED.as_secs_f64())
}

fn until_step(observed: &Observed, pid: u32, label: &str) -> Result<ProcessSnapshot> {
    until(
        || {
            let own = observed.images(pid)?.pop();
            Ok(own.filter(|process| process.launches.step.label() == label))
        },
        || format!("launches are not observed {label}: {:?}", observed.process(pid)),
    )
}

/// Runs a program that is over a budget at this step, beside one that is calm, and compares both with the truth.
fn assert_step(mode: Option<AttachMode>, label: &str, (timed, counted): (f64, f64)) -> Result<()> {
    // Until the step is taken, and some seconds at it: a rate is that of ten.
    let seconds = if label == "part_time" { 14 } else { 5 };
    let work = format!("{REAL} rate --per-second {RATE} --seconds {seconds}");
    let (observed, stand_ins, mut busy) = start(&Options { mode, ..Options::default() }, &work)?;
    let mut calm = stand_ins.start(&format!("{REAL} rate --per-second 300 --seconds {seconds}"))?;
    observed.set_budget(Some(load(timed, counted)));
    calm.go()?;
    busy.go()?;
    let stepped = until_step(&observed, busy.pid(), label)?;
    let truth = busy.result()?;
    let made = number(&truth, "/calls/cudaLaunchKernel");
    let process = observed.process(busy.pid())?;
    let seen = process.launches();
    if label == "part_time" {
        assert_partly_observed(&observed, &stepped, &process, made)?;
    } else {
        ensure!(seen == made, "{seen} of {made} launches: {:?}", process.launches);
        ensure!(process.launches.unobserved == Nanos(0), "{:?}", process.launches);
    }
    let timed = process.timed_launches();
    let since = timed - stepped.timed_launches();
    match label {
        "full" => assert_eq!(timed, made),
        "driver_only" => {
            // Over the budget launches are only counted until the probes have changed.
            let untimed = made.saturating_sub(timed);
            ensure!(untimed <= RATE, "{timed} of {made} are timed");
            let driver = process.call_durations(op("cuLaunchKernel")).count();
            ensure!(driver > RATE * 2, "{driver} were timed in the driver");
        }
        _ => ensure!(since < RATE, "{since} were timed since"),
    }
    let truth = calm.result()?;
    let own = observed.process(calm.pid())?;
    assert_eq!(own.timed_launches(), number(&truth, "/calls/cudaLaunchKernel"), "{own:?}");
    assert_eq!(own.launches.step, LaunchStep::Full);
    for process in [&process, &own] {
        ensure!(process.measures.abandoned_calls == 0, "{process:?}");
        ensure!(process.dispatchers.iter().all(|thread| thread.inflight.is_none()), "{process:?}");
        let longest = process.launch_gap.max;
        ensure!(longest < Nanos(900_000_000), "a gap of {longest:?} spans unobserved time");
    }
    Ok(())
}

/// Nothing is counted but what was seen, in proportion to the time in which it was.
fn assert_partly_observed(
    observed: &Observed,
    before: &ProcessSnapshot,
    after: &ProcessSnapshot,
    made: u64,
) -> Result<()> {
    let seen = after.launches();
    ensure!(seen < made, "{seen} of {made} launches: {:?}", after.launches);
    let (then, now) = (&before.launches, &after.launches);
    let seconds = now.observed.less(then.observed).as_secs_f64();
    let rate = (seen - before.launches()) as f64 / seconds;
    ensure!(now.unobserved > then.unobserved, "{now:?}");
    ensure!((rate / RATE as f64 - 1.0).abs() < 0.05, "{rate} a second: {then:?} {now:?}");
    let known = now.rate.context("the rate is not known")?;
    let off = (known.per_second / RATE as f64 - 1.0).abs();
    ensure!(off <= known.error.max(0.03), "{known:?}");
    // Nothing is added for a program that launches no more.
    std::thread::sleep(Duration::from_secs(2));
    ensure!(observed.process(after.tgid.0)?.launches() == seen, "launches after the last");
    Ok(())
}

#[test]
fn within_the_budget_every_launch_is_timed_where_it_begins() -> Result<()> {
    assert_step(None, "full", (1.5, 1.5))
}

#[test]
fn over_the_budget_the_probes_of_the_runtime_go_first_and_no_launch_is_missed() -> Result<()> {
    assert_step(None, "driver_only", (1.15, 0.0))
}

#[test]
fn then_every_launch_is_counted_and_one_in_so_many_is_timed() -> Result<()> {
    assert_step(None, "sampled", (0.05, 1.1))
}

/// More threads than CPUs: some are between the runtime and the driver when counting moves there.
#[test]
fn launches_on_their_way_to_the_driver_count_once_when_those_of_the_runtime_do_no_more()
-> Result<()> {
    let threads = 4 * std::thread::available_parallelism()?.get();
    let work = format!(
        "--wait --hold --script nest=1;cudaLaunchKernel:spin=1us calls --threads {threads} --calls 200000"
    );
    let (observed, _stand_ins, mut workload) = start(&Options::default(), &work)?;
    // So little that nearly all is only counted, whatever that takes.
    observed.set_limits(1e-6, f64::INFINITY);
    workload.go()?;
    let truth = workload.result()?;
    let process = observed.process(workload.pid())?;
    assert_eq!(process.launches(), number(&truth, "/calls/cudaLaunchKernel"), "{process:?}");
    assert_eq!(process.launches.unobserved, Nanos(0));
    let in_driver = process.call_durations(op("cuLaunchKernel")).count();
    ensure!(in_driver > 0, "none was counted in the driver: {:?}", process.launches);
    Ok(())
}

#[test]
fn threads_that_never_run_at_once_have_one_budget() -> Result<()> {
    let work = format!("{REAL} rate --threads 2 --per-second {RATE} --seconds 6");
    let (observed, _stand_ins, mut busy) = start(&Options::default(), &work)?;
    // Each alone would keep to it with all launches timed in the driver.
    observed.set_budget(Some(load(0.05, 1.1)));
    busy.go()?;
    until_step(&observed, busy.pid(), "sampled")?;
    busy.result()?;
    Ok(())
}

#[test]
fn threads_that_run_at_once_have_a_budget_each() -> Result<()> {
    let work = format!(
        "{REAL};cudaLaunchKernel:spin=190us rate --threads 2 --per-second {} --seconds 8",
        2 * RATE
    );
    let (observed, _stand_ins, mut busy) = start(&Options::default(), &work)?;
    // Launches timed in the driver take 1 of each thread, and 2 of both.
    observed.set_budget(Some(load(1.3, 0.0)));
    busy.go()?;
    until_step(&observed, busy.pid(), "driver_only")?;
    std::thread::sleep(Duration::from_secs(4));
    let process = observed.process(busy.pid())?;
    ensure!(process.launches.step.label() == "driver_only", "{:?}", process.launches);
    busy.result()?;
    Ok(())
}

#[test]
fn and_only_then_are_they_observed_for_a_part_of_the_time_and_nothing_is_made_up() -> Result<()> {
    assert_step(None, "part_time", (0.0, 0.5))
}

#[test]
fn a_program_that_only_launches_is_observed_less_before_its_first_window_ends() -> Result<()> {
    const PROGRAMS: u64 = 4;
    // The hits of half as many launches take four times a thread's part of half a second; the rest is made while probes change.
    const MOST: u64 = 100_000;
    let work = format!("{REAL} calls --calls 1000000000");
    let (observed, stand_ins, first) = start(&Options::default(), &work)?;
    observed.set_budget(Some(0.02));
    let mut launches = 0;
    let mut programs = vec![first];
    programs.extend((1..PROGRAMS).map(|_| stand_ins.start(&work)).collect::<Result<Vec<_>>>()?);
    for mut program in programs {
        program.go()?;
        launches += until_step(&observed, program.pid(), "part_time")?.launches();
    }
    ensure!(launches <= PROGRAMS * MOST, "{launches} of {PROGRAMS} programs");
    Ok(())
}

#[test]
fn separate_links_of_entry_and_return_go_from_one_process_as_well() -> Result<()> {
    assert_step(Some(AttachMode::Multi), "driver_only", (1.15, 0.0))
}

/// The runtime's first launch must not discard earlier launches of the driver.
#[test]
fn launches_of_both_layers_count_once_each_and_nested_ones_are_part_of_their_caller() -> Result<()>
{
    let work =
        format!("{REAL} --kernels 2 calls --calls 3000 --mix cuLaunchKernel=2,cudaLaunchKernel=1");
    let (observed, _stand_ins, mut workload) = start(&Options::default(), &work)?;
    workload.go()?;
    let truth = workload.result()?;
    let process = observed.process(workload.pid())?;
    let made = |name: &str| number(&truth, &format!("/calls/{name}"));
    let timed = |name: &str| process.call_durations(op(name)).count();
    assert_eq!(timed("cudaLaunchKernel"), made("cudaLaunchKernel"));
    assert_eq!(timed("cuLaunchKernel"), made("cuLaunchKernel"), "nested launches are timed");
    assert_eq!(process.launches(), made("cudaLaunchKernel") + made("cuLaunchKernel"));
    assert_eq!(process.timed_launches(), process.launches());
    Ok(())
}

/// Launches that take longer than those in flight are waited for are truncated when the probes are detached. One that
/// returns while the kernel detaches them is not, so the probes change until one is.
#[test]
fn a_truncated_launch_is_counted_and_neither_in_flight_nor_abandoned() -> Result<()> {
    let work = format!("{REAL} rate --per-second {RATE} --seconds 16");
    let (observed, stand_ins, mut fast) = start(&Options::default(), &work)?;
    let mut slow = stand_ins.start(
        "--wait --hold --script cudaLaunchKernelExC:sleep=600ms calls --calls 25 --op cudaLaunchKernelExC",
    )?;
    let budget = load(1.15, 0.0);
    slow.go()?;
    fast.go()?;
    until(
        || {
            observed.set_budget(Some(budget));
            until_step(&observed, fast.pid(), "driver_only")?;
            let changed = Instant::now();
            while changed.elapsed() < Duration::from_secs(1) {
                if observed.counter(SelfCounter::Truncated)? > 0 {
                    return Ok(Some(()));
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            observed.set_budget(None);
            until_step(&observed, fast.pid(), "full")?;
            Ok(None)
        },
        || "no launch was truncated".to_owned(),
    )?;
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(2) {
        let process = observed.process(slow.pid())?;
        let threads = process.dispatchers.iter().filter_map(|thread| thread.inflight);
        let age = threads.map(|inflight| inflight.1).max();
        ensure!(age.is_none_or(|age| age < Nanos(1_200_000_000)), "{age:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    slow.result()?;
    let process = observed.process(slow.pid())?;
    assert_eq!((process.measures.abandoned_calls, process.launches()), (0, 25), "{process:?}");
    let wall: u64 = process.dispatchers.iter().map(|thread| thread.wall.0).sum();
    assert_eq!(process.dispatcher_time.total().0, wall, "time is lost or made up");
    Ok(())
}
