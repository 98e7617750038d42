//! This measures the CPU time of samples of a Python thread that computes, by the kernel's own statistics.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gpucause_abi::sample::{SampledThread, Within};
use gpucause_abi::{Tgid, Tid};
use gpucause_probes::mapped::executable_mappings;
use gpucause_probes::python::Python;
use gpucause_probes::{Options, Probes};

use crate::rival::Statistics;
use crate::workload::{StandIns, Workload};
use crate::{Series, until};

const ROUNDS: usize = 5;
const SAMPLED_FOR: Duration = Duration::from_secs(6);
/// How often samples are taken from the kernel; the daemon takes them at each evaluation.
const TAKEN_EVERY: Duration = Duration::from_secs(1);
const MOST: f64 = 0.001;
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/host_code.py");
const SOURCES: [(&str, &str, bool); 2] =
    [("events", "sample_code", false), ("timers", "sample_tick", true)];

/// Interleaved runs with each source of samples.
pub(crate) fn run() -> Result<()> {
    println!("samples of a Python thread: {ROUNDS} interleaved rounds of {SAMPLED_FOR:?}");
    let mut all = SOURCES.map(|(name, ..)| (Series::new(name), Series::new(name)));
    for _ in 0..ROUNDS {
        for ((_, program, by_timers), (per_sample, per_second)) in SOURCES.into_iter().zip(&mut all)
        {
            let (samples, ns, seconds) = sampled(program, by_timers)?;
            per_sample.runs.push(ns / samples);
            per_second.runs.push(ns / 1e9 / seconds);
        }
    }
    for (per_sample, per_second) in &all {
        per_sample.report("sample");
        println!(
            "  {:<12} {:>8.3} % of a CPU   (must be <= {:.1} %)",
            per_second.name,
            100.0 * per_second.median(),
            100.0 * MOST
        );
    }
    Ok(())
}

/// Samples, nanoseconds that the program took and seconds that it was on.
fn sampled(sampler_program: &str, samples_by_timers: bool) -> Result<(f64, f64, f64)> {
    let statistics = Statistics::enable()?;
    let probes = Probes::start(Options { samples_by_timers, ..Options::default() })?;
    let libraries = StandIns::lay_out()?;
    let mut command = Command::new("/usr/bin/python3");
    command.arg(SCRIPT).arg(libraries.dir().join("libcudart.so.12"));
    let program = Workload::start(command)?;
    let thread = main_thread(&program, &probes)?;
    let before = statistics.time_of(sampler_program);
    let sampler = probes.sampler();
    let (start, mut samples) = (Instant::now(), 0);
    while start.elapsed() < SAMPLED_FOR {
        sampler.choose(&[thread])?;
        std::thread::sleep(TAKEN_EVERY);
        samples += sampler.take()?.iter().map(|sample| sample.count).sum::<u64>();
    }
    sampler.choose(&[])?;
    let seconds = start.elapsed().as_secs_f64();
    let ns = statistics.time_of(sampler_program) - before;
    ensure!(samples > 0 && ns > 0, "{samples} samples by {sampler_program} in {ns} ns");
    Ok((samples as f64, ns as f64, seconds))
}

/// The main thread of a Python program that has launched.
fn main_thread(program: &Workload, probes: &Probes) -> Result<SampledThread> {
    let tgid = Tgid(program.pid());
    let mut found = None;
    until(|| {
        let processes = probes.snapshot().map(|all| all.processes).unwrap_or_default();
        let own = processes.iter().find(|own| own.tgid == tgid && own.launches() > 0);
        found = own.map(|own| own.id);
        found.is_some()
    })?;
    let process = found.context("the program was not observed")?;
    let python = Python::find(tgid, executable_mappings(tgid)?.iter())?.layout();
    Ok(SampledThread {
        process,
        tgid,
        tid: Tid(tgid.0),
        within: Within::Anywhere,
        python: Some(python),
    })
}
