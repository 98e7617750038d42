//! Probes that are switched off and on, and what a hit costs.

use std::time::Duration;

use anyhow::{Result, ensure};
use gpucause_abi::Nanos;
use gpucause_abi::record::SelfCounter;
use gpucause_abi::snapshot::Snapshot;
use gpucause_abi::state::Phase;
use gpucause_probes::Options;
use gpucause_probes::feature::AttachMode;
use gpucause_probes::verdict::{ProgramStatus, ProgramVerdict};

use crate::guest::{forced_mode, is_emulated};
use crate::observe::{Observed, counted, until};
use crate::workload::{StandIns, Workload, op};

fn launches(snapshot: &Snapshot, pid: u32) -> u64 {
    let own = snapshot.processes.iter().filter(|process| process.tgid.0 == pid);
    own.map(|process| process.call_durations(op("cudaLaunchKernel")).count()).sum()
}

fn start(budget: Option<f64>, work: &str) -> Result<(Observed, StandIns, Workload)> {
    // Perf uprobes of all functions take long to come and go.
    let stand_ins = if forced_mode() == Some(AttachMode::Perf) {
        StandIns::with_few_functions(&["cudaLaunchKernel"])?
    } else {
        StandIns::lay_out()?
    };
    let workload = stand_ins.start(&format!("--wait --hold {work}"))?;
    let observed = Observed::start(Options { budget, calibrate: true, ..Options::default() })?;
    observed.wait_for_runtime(&stand_ins)?;
    Ok((observed, stand_ins, workload))
}

#[test]
fn switched_off_nothing_is_hit_and_switched_on_everything_is_counted_again() -> Result<()> {
    let (rate, seconds, many, pause) =
        if is_emulated() { (200, 20, 100, 2500) } else { (5000, 8, 500, 500) };
    let pause = Duration::from_millis(pause);
    let work = format!("rate --per-second {rate} --seconds {seconds}");
    let (observed, stand_ins, mut workload) = start(Some(0.02), &work)?;
    workload.go()?;
    let pid = workload.pid();
    until(|| Ok((launches(&observed.snapshot()?, pid) > many).then_some(())), String::new)?;
    observed.set_enabled(false);
    until(|| Ok((!observed.status().enabled).then_some(())), || "not disabled".to_owned())?;
    let hits = || -> Result<Vec<u64>> {
        let counters = observed.snapshot()?.counters;
        let hits = counters.iter().filter(|(counter, _)| counter.label().starts_with("hit_"));
        Ok(hits.map(|(_, count)| *count).collect())
    };
    let off = hits()?;
    let before = launches(&observed.snapshot()?, pid);
    std::thread::sleep(pause);
    assert_eq!(hits()?, off, "programs run");
    assert_eq!(launches(&observed.snapshot()?, pid), before);
    let ended = observed.process(pid)?;
    ensure!(ended.ended.is_some() && ended.dispatchers.is_empty(), "{ended:?}");
    let wall = ended.ended.unwrap().0 - ended.first_seen.0;
    let reported = ended.dispatcher_time.total().0;
    ensure!(reported.abs_diff(wall) < wall / 20, "{reported} ns of {wall} ns");
    ensure!(ended.dispatcher_time.0[Phase::Launch as usize].iter().any(|time| time.0 > 0));

    observed.set_enabled(true);
    observed.wait_for_runtime(&stand_ins)?;
    until(
        || Ok((observed.images(pid)?.len() == 2).then_some(())),
        || "the process is not seen again".to_owned(),
    )?;
    until(
        || Ok((launches(&observed.snapshot()?, pid) > before + many).then_some(())),
        String::new,
    )?;
    workload.result()?;
    let images = observed.images(pid)?;
    let again = images.last().unwrap();
    ensure!(again.ended.is_none() && counted(again)[&op("cudaLaunchKernel")] > many, "{again:?}");
    let Nanos(longest) = again.launch_gap.max;
    let is_short = u128::from(longest) < pause.as_nanos() * 4 / 5;
    ensure!(is_short, "a gap of {longest} ns spans a time without probes");
    let programs = observed.programs();
    let is_broken = |program: &ProgramStatus| matches!(program.verdict, ProgramVerdict::Broken(_));
    ensure!(!programs.iter().any(is_broken), "{programs:?}");
    Ok(())
}

#[test]
fn disabled_from_the_start_no_library_is_searched_for_until_enabled() -> Result<()> {
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
