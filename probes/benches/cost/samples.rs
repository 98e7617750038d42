//! This measures the CPU time of samples of a Python thread that computes, by the kernel's own statistics.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gpucause_abi::sample::{SampledThread, Within};
use gpucause_abi::{Tgid, Tid};
use gpucause_probes::mapped::executable_mappings;
use gpucause_probes::python::Python;
use gpucause_probes::{Options, Probes};

use crate::rival::Statistics;
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
fn sampled(program: &str, samples_by_timers: bool) -> Result<(f64, f64, f64)> {
    let statistics = Statistics::enable()?;
    let probes = Probes::start(Options { samples_by_timers, ..Options::default() })?;
    let libraries = tempfile::tempdir()?;
    gpucause_fake_cuda::lay_out(&build_dir()?, libraries.path())?;
    let mut script = Script::start(&libraries.path().join("libcudart.so.12"))?;
    let thread = script.main_thread(&probes)?;
    let before = statistics.time_of(program);
    let sampler = probes.sampler();
    sampler.choose(&[thread])?;
    let (start, mut samples) = (Instant::now(), 0);
    while start.elapsed() < SAMPLED_FOR {
        std::thread::sleep(TAKEN_EVERY);
        samples += sampler.take()?.iter().map(|sample| sample.count).sum::<u64>();
    }
    sampler.choose(&[])?;
    let seconds = start.elapsed().as_secs_f64();
    let ns = statistics.time_of(program) - before;
    ensure!(samples > 0 && ns > 0, "{samples} samples by {program} in {ns} ns");
    Ok((samples as f64, ns as f64, seconds))
}

fn build_dir() -> Result<std::path::PathBuf> {
    let program = std::env::current_exe()?;
    Ok(program.ancestors().nth(2).context("the benchmark has no build folder")?.to_owned())
}

/// A Python program that computes between launches.
struct Script(Child);

impl Script {
    fn start(runtime: &std::path::Path) -> Result<Self> {
        let mut process = Command::new("/usr/bin/python3")
            .arg(SCRIPT)
            .arg(runtime)
            .stdout(Stdio::piped())
            .spawn()
            .context("python3 cannot be started")?;
        let answer = process.stdout.take().context("no stdout")?;
        let script = Self(process);
        BufReader::new(answer).read_line(&mut String::new())?;
        Ok(script)
    }

    fn main_thread(&mut self, probes: &Probes) -> Result<SampledThread> {
        let tgid = Tgid(self.0.id());
        let mut found = None;
        until(|| {
            let processes = probes.snapshot().map(|all| all.processes).unwrap_or_default();
            found = processes
                .iter()
                .find(|own| own.tgid == tgid && own.launches() > 0)
                .map(|own| own.id);
            found.is_some()
        })?;
        let process = found.context("the script was not observed")?;
        let python = Python::find(tgid, executable_mappings(tgid)?.iter())?.layout();
        let (tid, within) = (Tid(tgid.0), Within::Anywhere);
        Ok(SampledThread { process, tgid, tid, within, python: Some(python) })
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
