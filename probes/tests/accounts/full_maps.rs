//! Maps that are too small: what does not fit is counted, and the rest stays right.

use anyhow::{Result, ensure};
use gpucause_abi::record::SelfCounter;
use gpucause_probes::Options;
use gpucause_probes::thread_records::ThreadRecords;

use crate::observe::{Observed, counted};
use crate::workload::{StandIns, Workload, op, true_calls};

#[test]
fn a_call_that_finds_the_histograms_full_is_counted_as_refused() -> Result<()> {
    const CHUNKS: u32 = 4;
    let stand_ins = StandIns::lay_out()?;
    let _keeper = stand_ins.start("idle")?;
    let observed = Observed::start(Options { max_chunks: Some(CHUNKS), ..Options::default() })?;
    observed.wait_for_runtime(&stand_ins)?;
    let mut workload = stand_ins.start(
        "--hold --script cudaMemcpyAsync:ret=2 calls --threads 2 --calls 6000 --mix \
         cudaLaunchKernel=1,cudaMemcpyAsync=1,cudaStreamSynchronize=1,cudaMalloc=1,cudaStreamQuery=1,cudaMemsetAsync=1",
    )?;
    let truth = true_calls(&workload.result()?);
    let process = observed.process(workload.pid())?;
    let usage = observed.usage("hists")?;
    let seen = counted(&process);
    for (op, &count) in &seen {
        assert!(count <= truth[op], "{count} of {} calls: {op:?}", truth[op]);
    }
    let issued: u64 = truth.values().sum();
    let lost = issued - seen.values().sum::<u64>();
    assert_eq!((usage.capacity, usage.entries), (CHUNKS.into(), CHUNKS.into()));
    assert!(lost > 0, "everything fitted: {seen:?}");
    // Other histograms refuse as well: a switch up to three times (off the CPU, in the run queue, and blocked before that),
    // a launch once for the gap before it, and a copy once for its size class.
    let others = 3 * observed.counter(SelfCounter::HitSwitch)?
        + truth[&op("cudaLaunchKernel")]
        + truth[&op("cudaMemcpyAsync")];
    assert!(
        (lost..=lost + others).contains(&usage.refused),
        "{} refused for {lost} calls and at most {others} other entries",
        usage.refused
    );
    let errors: u64 = process.errors.iter().map(|&(.., count)| count).sum();
    assert_eq!(errors, truth[&op("cudaMemcpyAsync")], "another map suffered");
    let launches: u64 = process.kernels.iter().map(|&(_, launches)| launches).sum();
    assert_eq!(launches, truth[&op("cudaLaunchKernel")], "another map suffered");
    ensure!(workload.end()?.success(), "the workload suffered");
    Ok(())
}

#[test]
fn a_process_that_finds_the_map_full_makes_its_calls_unseen_and_they_are_counted_as_refused()
-> Result<()> {
    const PROCESSES: u32 = 3;
    const CALLS: u64 = 1000;
    let stand_ins = StandIns::lay_out()?;
    let _keeper = stand_ins.start("idle")?;
    let observed =
        Observed::start(Options { max_processes: Some(PROCESSES), ..Options::default() })?;
    observed.wait_for_runtime(&stand_ins)?;
    let mut all: Vec<Workload> = Vec::new();
    for _ in 0..PROCESSES + 2 {
        let mut workload = stand_ins.start(&format!("--hold calls --calls {CALLS}"))?;
        workload.result()?;
        all.push(workload);
    }
    let launch = op("cudaLaunchKernel");
    let mut seen = Vec::new();
    for workload in &all {
        let images = observed.images(workload.pid())?;
        seen.push(images.first().map_or(0, |process| counted(process)[&launch]));
    }
    let usage = observed.usage("procs")?;
    assert_eq!((usage.capacity, usage.entries), (PROCESSES.into(), PROCESSES.into()));
    assert_eq!(seen, [CALLS, CALLS, CALLS, 0, 0]);
    assert_eq!(usage.refused, 2 * CALLS);
    for workload in &mut all {
        ensure!(workload.end()?.success(), "a workload suffered");
    }
    Ok(())
}

#[test]
fn calls_of_a_thread_without_a_record_are_counted_as_lost_and_reported() -> Result<()> {
    const CALLS: u64 = 1000;
    const THREADS: u64 = 3;
    let stand_ins = StandIns::lay_out()?;
    let _keeper = stand_ins.start("idle")?;
    let one = Options { hashes_threads: true, max_hashed_threads: Some(1), ..Options::default() };
    let observed = Observed::start(one)?;
    observed.wait_for_runtime(&stand_ins)?;
    assert_eq!(observed.status().thread_records, ThreadRecords::Granted, "no calls were made");
    let arguments = format!("--hold calls --threads {THREADS} --calls {CALLS}");
    let mut workload = stand_ins.start(&arguments)?;
    let truth: u64 = true_calls(&workload.result()?).values().sum();
    let images = observed.images(workload.pid())?;
    let seen: u64 = images.iter().flat_map(|image| counted(image).into_values()).sum();
    assert_eq!((truth, truth - seen), (THREADS * CALLS, (THREADS - 1) * CALLS), "{images:?}");
    assert_eq!(observed.counter(SelfCounter::NoRecord)?, truth - seen);
    assert!(observed.counter(SelfCounter::FullThreads)? >= truth - seen);
    assert_eq!(observed.status().thread_records, ThreadRecords::SomeRefused);
    ensure!(workload.end()?.success(), "the workload suffered");
    Ok(())
}

#[test]
fn entries_that_ended_processes_freed_is_used_again() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let _keeper = stand_ins.start("idle")?;
    let observed = Observed::start(Options { max_processes: Some(1), ..Options::default() })?;
    observed.wait_for_runtime(&stand_ins)?;
    for _ in 0..3 {
        let mut workload = stand_ins.start("calls --calls 10")?;
        workload.result()?;
        ensure!(workload.end()?.success(), "the workload failed");
        let process = observed.process(workload.pid())?;
        assert_eq!(counted(&process)[&op("cudaLaunchKernel")], 10);
        observed.remove(&[process.id].into())?;
        assert_eq!(observed.usage("procs")?.entries, 0);
    }
    assert_eq!(observed.usage("procs")?.refused, 0);
    Ok(())
}
