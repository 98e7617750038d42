//! This measures a launch as real programs make it, by the runtime and within that by the driver, at each step that keeps to a budget.

use anyhow::{Context as _, Result, ensure};
use gpucause_abi::snapshot::LaunchStep;
use gpucause_probes::{Options, Probes};

use crate::caller::Child;
use crate::{CALLS, ROUNDS, Series, await_attached};

/// A step, and what it may take at most, as a multiple of one probed call.
const STEPS: [(&str, LaunchStep, f64); 3] = [
    ("in full", LaunchStep::Full, 1.7),
    ("driver only", LaunchStep::DriverOnly, 1.05),
    ("sampled", LaunchStep::Sampled { one_in: 64 }, 0.7),
];

/// Interleaved runs at each step; `one` is what one probed call takes.
pub(crate) fn run(one: f64) -> Result<()> {
    println!("one launch by runtime and driver: {ROUNDS} interleaved rounds of {CALLS} launches");
    let mut plain = Series::new("no probe");
    let mut steps = STEPS.map(|(name, ..)| Series::new(name));
    for _ in 0..ROUNDS {
        plain.runs.push(Child::start("real", CALLS)?.go()?);
        for ((name, step, _), series) in STEPS.into_iter().zip(&mut steps) {
            let probes = Probes::start(Options { step: Some(step), ..Options::default() })?;
            let child = Child::start("real", CALLS)?;
            await_attached(&probes).context("gpucause did not attach to this program")?;
            let pid = child.tgid();
            series.runs.push(child.go()?);
            let processes = probes.snapshot()?.processes;
            let process = processes.iter().find(|process| process.tgid == pid);
            let process = process.context("the child was not observed")?;
            ensure!(process.launches() > CALLS, "{name}: {} launches", process.launches());
            let untimed = process.launches.untimed >= CALLS * 9 / 10;
            ensure!(untimed == matches!(step, LaunchStep::Sampled { .. }), "{name}: {process:?}");
        }
    }
    plain.report("launch");
    for ((name, _, most), series) in STEPS.iter().zip(&steps) {
        series.report("launch");
        let ratio = (series.median() - plain.median()) / one;
        println!("  {name} / one call       {ratio:.2}   (must be <= {most:.2})");
    }
    Ok(())
}
