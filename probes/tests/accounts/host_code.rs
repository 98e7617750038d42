//! Samples of the stacks of chosen threads show what these threads run.

use std::collections::HashMap;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gpucause_abi::record::SelfCounter;
use gpucause_abi::sample::{
    MAX_SAMPLED, SAMPLES_PER_SECOND, Sample, SampledFrames, SampledThread, Within,
};
use gpucause_abi::{ProcId, Tgid, Tid};
use gpucause_probes::Options;
use gpucause_probes::mapped::executable_mappings;
use gpucause_probes::python::Python;
use gpucause_probes::samples::SampleError;

use crate::observe::{Observed, until};
use crate::workload::{StandIns, Workload};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/host_code.py");
const SAMPLED_FOR: Duration = Duration::from_secs(3);

/// The line of the script that ends so.
fn marked(comment: &str) -> Result<u32> {
    let script = fs::read_to_string(SCRIPT)?;
    let line = script.lines().position(|line| line.ends_with(&format!("# {comment}")));
    Ok(u32::try_from(line.with_context(|| format!("no line {comment}"))?)? + 1)
}

/// Python that computes between launches and spins as long in another call.
fn python(stand_ins: &StandIns) -> Result<Workload> {
    let mut command = Command::new("/usr/bin/python3");
    command.arg(SCRIPT).arg(stand_ins.dir().join("libcudart.so.12"));
    command.env("GPUCAUSE_FAKE", "cudaDeviceSynchronize:spin=20ms");
    Workload::start(command)
}

/// The main thread of a process that has made a call.
fn main_thread(observed: &Observed, pid: u32, within: Within) -> Result<SampledThread> {
    let dispatches = || {
        let images = observed.images(pid)?;
        Ok(images.into_iter().find(|own| !own.dispatchers.is_empty()))
    };
    let process = until(dispatches, || format!("process {pid} makes no calls"))?;
    let (tgid, tid) = (Tgid(pid), Tid(pid));
    Ok(SampledThread { process: process.id, tgid, tid, within, python: None })
}

fn samples(observed: &Observed, threads: &[SampledThread]) -> Result<Vec<Sample>> {
    let sampler = observed.sampler();
    sampler.take()?;
    sampler.choose(threads)?;
    std::thread::sleep(SAMPLED_FOR);
    let samples = sampler.take();
    sampler.choose(&[])?;
    Ok(samples?)
}

fn count(samples: &[Sample]) -> u64 {
    samples.iter().map(|sample| sample.count).sum()
}

#[test]
fn samples_of_python_name_the_line_that_computes_between_calls() -> Result<()> {
    lines_are_named(Options::default())
}

#[test]
fn samples_by_timers_name_it_too() -> Result<()> {
    lines_are_named(Options { samples_by_timers: true, ..Options::default() })
}

fn lines_are_named(options: Options) -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start_own(options)?;
    let program = python(&stand_ins)?;
    observed.wait_for_runtime(&stand_ins)?;
    let tgid = Tgid(program.pid());
    let mut thread = main_thread(&observed, program.pid(), Within::HostCode)?;
    let mut python = Python::find(tgid, executable_mappings(tgid)?.iter())?;
    thread.python = Some(python.layout());
    let samples = samples(&observed, &[thread])?;
    let taken = count(&samples);
    let mut lines = HashMap::<_, u64>::new();
    for sample in &samples {
        assert_eq!((sample.process, sample.tid), (thread.process, thread.tid));
        let SampledFrames::Python(raw) = &sample.frames else { continue };
        let frames = python.frames(raw);
        let innermost = frames.first().context("no frame has a name")?;
        *lines.entry((innermost.function.to_string(), innermost.line)).or_default() += sample.count;
    }
    let of = |name: &str| -> Result<u64> {
        Ok(lines.get(&(name.to_owned(), Some(marked(name)?))).copied().unwrap_or(0))
    };
    let (computing, resting) = (of("compute")?, of("rest")?);
    println!("{taken} samples: {lines:?}");
    let most = u64::from(SAMPLES_PER_SECOND) * SAMPLED_FOR.as_secs();
    ensure!(taken > most / 5 && taken < most * 7 / 10, "half of {most} are outside calls: {taken}");
    // Four parts of five.
    ensure!(computing * 10 >= taken * 6 && computing * 20 <= taken * 19, "{computing} of {taken}");
    ensure!((computing + resting) * 10 >= taken * 9, "{lines:?}");
    Ok(())
}

#[test]
fn a_thread_is_sampled_in_its_calls_too_where_that_is_asked_for_and_without_python_by_addresses()
-> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start_own(Options::default())?;
    let program = python(&stand_ins)?;
    observed.wait_for_runtime(&stand_ins)?;
    let thread = main_thread(&observed, program.pid(), Within::Anywhere)?;
    let samples = samples(&observed, &[thread])?;
    let most = u64::from(SAMPLES_PER_SECOND) * SAMPLED_FOR.as_secs();
    let taken = count(&samples);
    ensure!(taken > most * 7 / 10 && taken <= most + 2, "{taken} of {most}");
    let mappings = executable_mappings(thread.tgid)?;
    let is_code = |address: u64| mappings.iter().any(|own| (own.start..own.end).contains(&address));
    let is_native = |sample: &&Sample| match &sample.frames {
        // The vdso's clock, where an emulated machine spends most of this time, is code in no file, and its caller is.
        SampledFrames::Native(addresses) => addresses.iter().take(2).any(|&at| is_code(at)),
        SampledFrames::Python(_) => false,
    };
    let native = samples.iter().filter(is_native).map(|own| own.count).sum::<u64>();
    ensure!(native * 2 > taken, "{native} of {taken} are of code: {samples:?}");
    Ok(())
}

#[test]
fn nothing_runs_and_nothing_is_counted_while_no_thread_is_chosen() -> Result<()> {
    [false, true].into_iter().try_for_each(runs_while_chosen)
}

fn runs_while_chosen(samples_by_timers: bool) -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start_own(Options { samples_by_timers, ..Options::default() })?;
    let program = python(&stand_ins)?;
    observed.wait_for_runtime(&stand_ins)?;
    let thread = main_thread(&observed, program.pid(), Within::Anywhere)?;
    let runs = || observed.counter(SelfCounter::HitSample);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(runs()?, 0);
    assert!(count(&samples(&observed, &[thread])?) > 0);
    let after = runs()?;
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!((after > 0, runs()?), (true, after));
    assert_eq!(count(&observed.sampler().take()?), 0);
    // Too many are refused, and leave none.
    let many = (0..=MAX_SAMPLED as u32).map(|tid| SampledThread { tid: Tid(tid + 1), ..thread });
    let refused = observed.sampler().choose(&many.collect::<Vec<_>>());
    assert!(matches!(refused, Err(SampleError::TooMany(_))), "{refused:?}");
    assert!(!observed.sampler().is_on());
    Ok(())
}

#[test]
fn timers_sample_after_every_other_choice_of_threads() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start_own(Options { samples_by_timers: true, ..Options::default() })?;
    let program = python(&stand_ins)?;
    observed.wait_for_runtime(&stand_ins)?;
    let thread = main_thread(&observed, program.pid(), Within::Anywhere)?;
    let mut sampled = Vec::new();
    for _ in 0..4 {
        observed.sampler().choose(&[thread])?;
        std::thread::sleep(Duration::from_secs(1));
        // One may come before the next choice.
        sampled.push(count(&observed.sampler().take()?) > 1);
    }
    assert_eq!(sampled, [true, false, true, false]);
    Ok(observed.sampler().choose(&[])?)
}

#[test]
fn samples_by_events_run_no_more_often_than_their_rate_and_say_what_they_cost() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start_own(Options::default())?;
    let program = python(&stand_ins)?;
    observed.wait_for_runtime(&stand_ins)?;
    let tgid = Tgid(program.pid());
    let mut thread = main_thread(&observed, program.pid(), Within::Anywhere)?;
    thread.python = Some(Python::find(tgid, executable_mappings(tgid)?.iter())?.layout());
    let cost = || -> Result<(u64, u64)> {
        Ok((observed.counter(SelfCounter::HitSample)?, observed.counter(SelfCounter::CostSample)?))
    };
    observed.sampler().choose(&[thread])?;
    let start = Instant::now();
    while start.elapsed() < SAMPLED_FOR {
        std::thread::sleep(Duration::from_secs(1));
        observed.sampler().take()?;
    }
    observed.sampler().choose(&[])?;
    let (runs, ns) = cost()?;
    let cpus = u64::try_from(std::thread::available_parallelism()?.get())?;
    let most = (u64::from(SAMPLES_PER_SECOND) * start.elapsed().as_secs() + 2) * cpus;
    ensure!(runs > 0 && runs <= most && ns > runs, "{runs} of {most} runs, {ns} ns");
    Ok(())
}

#[test]
fn a_number_that_another_process_got_is_not_sampled() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start_own(Options::default())?;
    let program = python(&stand_ins)?;
    observed.wait_for_runtime(&stand_ins)?;
    let thread = main_thread(&observed, program.pid(), Within::HostCode)?;
    let other_process = SampledThread { tgid: Tgid(1), ..thread };
    assert_eq!(count(&samples(&observed, &[other_process])?), 0);
    let other_image = SampledThread { process: ProcId(u32::MAX), ..thread };
    assert_eq!(count(&samples(&observed, &[other_image])?), 0);
    Ok(())
}
