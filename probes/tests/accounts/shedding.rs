//! Launches that are watched for part of the time, to keep to a budget, and probes that are switched off and on.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use gpucause_abi::Nanos;
use gpucause_abi::record::SelfCounter;
use gpucause_abi::snapshot::Snapshot;
use gpucause_abi::state::Phase;
use gpucause_probes::Options;
use gpucause_probes::feature::AttachMode;

use crate::observe::{Observed, counted, until};
use crate::workload::{StandIns, Workload, number, op};

const BUDGET: f64 = 0.02;
const FAST: f64 = 50_000.0;
/// Long enough for launches to go unwatched and be watched again.
const SECONDS: u64 = 40;

fn launches(snapshot: &Snapshot, pid: u32) -> u64 {
    let own = snapshot.processes.iter().filter(|process| process.tgid.0 == pid);
    own.map(|process| process.call_durations(op("cudaLaunchKernel")).count()).sum()
}

fn start(
    mode: Option<AttachMode>,
    budget: Option<f64>,
    work: &str,
) -> Result<(Observed, StandIns, Workload)> {
    let stand_ins = StandIns::lay_out()?;
    let workload = stand_ins.start(&format!("--wait --hold {work}"))?;
    let observed =
        Observed::start(Options { mode, budget, calibrate: true, ..Options::default() })?;
    observed.wait_for_runtime(&stand_ins)?;
    Ok((observed, stand_ins, workload))
}

fn until_shed(observed: &Observed) -> Result<()> {
    until(
        || Ok((observed.status().duty_ratio < 1.0).then_some(())),
        || format!("launches are watched all the time; {:?}", observed.status()),
    )
}

fn assert_rate_is_true(mode: Option<AttachMode>) -> Result<()> {
    let work = format!("rate --per-second {FAST} --seconds {SECONDS}");
    let (observed, _stand_ins, mut workload) = start(mode, Some(BUDGET), &work)?;
    workload.go()?;
    until_shed(&observed)?;
    let pid = workload.pid();
    let before = observed.snapshot()?;
    let since = |now: &Snapshot| {
        let wall = now.taken_at.less(before.taken_at);
        let unwatched = now.launches_unwatched.less(before.launches_unwatched);
        (wall.less(unwatched).as_secs_f64(), unwatched.as_secs_f64())
    };
    // Away, and watched again.
    let after = until(
        || Ok(Some(observed.snapshot()?).filter(|now| since(now).0 > 0.5 && since(now).1 > 0.5)),
        || "launches are not watched again".to_owned(),
    )?;
    let ratio = observed.status().duty_ratio;
    ensure!(ratio < 0.6, "{ratio}");
    let truth = workload.result()?;
    let seen = launches(&after, pid) - launches(&before, pid);
    let rate = seen as f64 / since(&after).0;
    let true_rate = number(&truth, "/calls/cudaLaunchKernel") as f64 / SECONDS as f64;
    ensure!((rate / true_rate - 1.0).abs() < 0.03, "{rate} calls/s, where there are {true_rate}");

    let process = observed.process(pid)?;
    let longest = process.launch_gap.max;
    ensure!(
        longest < Nanos(900_000_000),
        "a gap of {longest:?} spans a time in which nobody looked"
    );
    ensure!(process.abandoned_calls == 0, "{process:?}");
    ensure!(process.dispatchers.iter().all(|thread| thread.inflight.is_none()), "{process:?}");
    let unmatched = observed.counter(SelfCounter::Unmatched)?;
    ensure!(unmatched == 0, "{unmatched} returns without an entry");
    Ok(())
}

#[test]
fn a_fast_workload_is_watched_part_of_the_time_and_its_rate_stays_right() -> Result<()> {
    assert_rate_is_true(None)
}

#[test]
fn separate_entry_and_return_links_are_shed_as_well() -> Result<()> {
    assert_rate_is_true(Some(AttachMode::Multi))
}

#[test]
fn a_slow_workload_is_watched_all_the_time() -> Result<()> {
    let (observed, _stand_ins, mut workload) =
        start(None, Some(0.02), "rate --per-second 3000 --seconds 6")?;
    workload.go()?;
    let truth = workload.result()?;
    let snapshot = observed.snapshot()?;
    assert_eq!(launches(&snapshot, workload.pid()), number(&truth, "/calls/cudaLaunchKernel"));
    assert_eq!((snapshot.launches_unwatched, observed.status().duty_ratio), (Nanos(0), 1.0));
    Ok(())
}

/// Each launch takes longer than those in flight are waited for: most are cut short by the probes that go.
#[test]
fn a_launch_that_is_cut_short_is_neither_in_flight_nor_abandoned_nor_timed() -> Result<()> {
    let work = format!("rate --per-second {FAST} --seconds 60");
    let (observed, stand_ins, mut fast) = start(None, Some(BUDGET), &work)?;
    let mut slow = stand_ins.start(
        "--wait --script cudaLaunchKernelExC:sleep=300ms calls --calls 300 --op cudaLaunchKernelExC",
    )?;
    fast.go()?;
    slow.go()?;
    until_shed(&observed)?;
    let cut = || observed.counter(SelfCounter::Cut);
    until(|| Ok((cut()? > 0).then_some(())), || "no launch was cut".to_owned())?;
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(6) {
        let process = observed.process(slow.pid())?;
        let age =
            process.dispatchers.iter().filter_map(|thread| thread.inflight).map(|i| i.1).max();
        ensure!(age.is_none_or(|age| age < Nanos(1_000_000_000)), "{age:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let process = observed.process(slow.pid())?;
    assert_eq!(process.abandoned_calls, 0);
    let longest = process.call_durations(op("cudaLaunchKernelExC")).max;
    ensure!(longest < Nanos(900_000_000), "{longest:?}");
    let wall: u64 = process.dispatchers.iter().map(|thread| thread.wall.0).sum();
    assert_eq!(process.dispatcher_time.total().0, wall, "time is lost or made up");
    Ok(())
}

#[test]
fn switched_off_nothing_is_hit_and_switched_on_everything_is_counted_again() -> Result<()> {
    let work = "rate --per-second 5000 --seconds 8";
    let (observed, stand_ins, mut workload) = start(None, Some(0.02), work)?;
    workload.go()?;
    let pid = workload.pid();
    until(|| Ok((launches(&observed.snapshot()?, pid) > 500).then_some(())), String::new)?;
    observed.set_enabled(false);
    until(|| Ok((!observed.status().enabled).then_some(())), || "not disabled".to_owned())?;
    let hits = || -> Result<Vec<u64>> {
        let counters = observed.snapshot()?.counters;
        let hits = counters.iter().filter(|(counter, _)| counter.label().starts_with("hit_"));
        Ok(hits.map(|(_, count)| *count).collect())
    };
    let off = hits()?;
    let before = launches(&observed.snapshot()?, pid);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(hits()?, off, "programs run");
    assert_eq!(launches(&observed.snapshot()?, pid), before);
    let ended = observed.process(pid)?;
    ensure!(ended.ended.is_some() && ended.dispatchers.is_empty(), "{ended:?}");
    let wall = ended.ended.unwrap().0 - ended.first_seen.0;
    let told = ended.dispatcher_time.total().0;
    ensure!(told.abs_diff(wall) < wall / 20, "{told} ns of {wall} ns");
    ensure!(ended.dispatcher_time.0[Phase::Launch as usize].iter().any(|time| time.0 > 0));

    observed.set_enabled(true);
    observed.wait_for_runtime(&stand_ins)?;
    until(
        || Ok((observed.images(pid)?.len() == 2).then_some(())),
        || "the process is not seen again".to_owned(),
    )?;
    until(|| Ok((launches(&observed.snapshot()?, pid) > before + 500).then_some(())), String::new)?;
    workload.result()?;
    let images = observed.images(pid)?;
    let again = images.last().unwrap();
    ensure!(again.ended.is_none() && counted(again)[&op("cudaLaunchKernel")] > 500, "{again:?}");
    let longest = again.launch_gap.max;
    ensure!(longest < Nanos(400_000_000), "a gap of {longest:?} spans a time without probes");
    ensure!(observed.programs().iter().all(|program| program.verdict.reason().is_none()));
    Ok(())
}

#[test]
fn switched_off_from_the_start_no_library_is_looked_for_until_switched_on() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let _workload = stand_ins.start("--wait --hold rate --per-second 1000")?;
    let observed =
        Observed::start(Options { disabled: true, calibrate: true, ..Options::default() })?;
    until(|| Ok((!observed.status().enabled).then_some(())), || "not disabled".to_owned())?;
    let status = observed.status();
    ensure!(status.discovery.scans == 0 && status.libraries.is_empty(), "{status:?}");
    observed.set_enabled(true);
    observed.wait_for_runtime(&stand_ins)
}

#[test]
fn what_a_hit_costs_is_measured_and_leaves_no_trace_in_the_accounts() -> Result<()> {
    let options = Options { calibrate: true, ..Options::default() };
    let observed = Observed::start(options)?;
    let cost = observed.status().hit_cost.unwrap();
    println!("a hit costs {} ns", cost.0);
    ensure!((100..100_000).contains(&cost.0), "{cost:?}");
    let snapshot = observed.snapshot()?;
    ensure!(snapshot.processes.iter().all(|p| p.tgid.0 != std::process::id()), "{snapshot:?}");
    let counter = |counter| observed.counter(counter).unwrap();
    assert_eq!(counter(SelfCounter::HitCall), 0);
    until(
        || Ok((counter(SelfCounter::CostSwitch) > 0).then_some(())),
        || "switches cost nothing".to_owned(),
    )?;
    let each = counter(SelfCounter::CostSwitch) / counter(SelfCounter::HitSwitch).max(1);
    println!("a switch costs about {each} ns");
    Ok(())
}
