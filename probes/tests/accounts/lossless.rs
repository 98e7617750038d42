//! Every call is counted: per process and op, exactly.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use gpucause_abi::op::OpId;
use gpucause_abi::record::SelfCounter;
use gpucause_abi::snapshot::ProcessSnapshot;
use gpucause_probes::Options;
use gpucause_probes::feature::AttachMode;
use serde_json::Value;

use crate::guest::is_emulated;
use crate::observe::{Observed, counted};
use crate::workload::{StandIns, Workload, number, op, true_calls};

/// Ops of the runtime with every kind of account; one copy in seven fails.
const RUNTIME: &str = "cudaLaunchKernel=5,cudaMemcpyAsync=3,cudaStreamSynchronize=1,cudaMalloc=1";
const BOTH_LIBRARIES: &str = "cudaLaunchKernel=5,cudaMemcpyAsync=2,cudaStreamSynchronize=1,\
    cudaMalloc=1,cudaFree=1,cuLaunchKernel=2,cuMemcpyHtoDAsync=1";
const THREADS: u64 = 2;

/// Starts processes whose threads exist, and wait for the word to begin.
fn start_waiting(
    stand_ins: &StandIns,
    processes: usize,
    (calls, mix): (u64, &str),
) -> Result<Vec<Workload>> {
    let common = "--wait --hold --kernels 5 --script cudaMemcpyAsync:ret=2@7";
    let arguments = format!("{common} calls --threads {THREADS} --calls {calls} --mix {mix}");
    (0..processes).map(|_| stand_ins.start(&arguments)).collect()
}

fn errors(process: &ProcessSnapshot) -> BTreeMap<(OpId, u32), u64> {
    process.errors.iter().map(|&(op, code, count)| ((op, code), count)).collect()
}

fn true_errors(result: &Value) -> BTreeMap<(OpId, u32), u64> {
    let mut errors = BTreeMap::new();
    for (name, codes) in result["errors"].as_object().unwrap() {
        for (code, count) in codes.as_object().unwrap() {
            errors.insert((op(name), code.parse().unwrap()), count.as_u64().unwrap());
        }
    }
    errors
}

fn assert_launches_are_true(process: &ProcessSnapshot, result: &Value) {
    let launches = |key: &str| -> Vec<u64> {
        result[key].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).collect()
    };
    let mut expected = [launches("kernels"), launches("driver_kernels")].concat();
    let mut seen: Vec<u64> = process.kernels.iter().map(|&(_, launches)| launches).collect();
    expected.sort_unstable();
    seen.sort_unstable();
    assert_eq!(seen, expected, "launches by kernel function");
    let cold: u64 =
        process.calls.iter().filter(|call| call.cold).map(|call| call.durations.count()).sum();
    // Two threads may launch a function for the first time at once.
    let first = number(result, "/cold_launches");
    assert!(first <= cold && cold <= first * THREADS, "{cold} cold launches of {first} functions");
}

/// Lets the processes make their calls and compares. Returns the number of calls.
fn assert_all_counted(observed: &Observed, processes: &mut [Workload]) -> Result<u64> {
    for process in &mut *processes {
        process.go()?;
    }
    let mut all = 0;
    for process in &mut *processes {
        let result = process.result()?;
        let seen = observed.process(process.pid())?;
        let expected = true_calls(&result);
        assert_eq!(counted(&seen), expected, "calls of process {}", process.pid());
        assert_eq!(errors(&seen), true_errors(&result), "errors of process {}", process.pid());
        assert_launches_are_true(&seen, &result);
        assert_eq!(seen.measures.abandoned_calls, 0);
        all += expected.values().sum::<u64>();
    }
    for process in processes {
        let alive = counted(&observed.process(process.pid())?);
        ensure!(process.end()?.success(), "a workload failed");
        let ended = observed.process(process.pid())?;
        assert!(ended.ended.is_some() && !ended.execed, "{ended:?}");
        assert_eq!(counted(&ended), alive, "the end of a process changed its counts");
    }
    for map in ["procs", "hists", "stalls", "errors", "kernels"] {
        assert_eq!(observed.usage(map)?.refused, 0, "{map} was full");
    }
    assert_eq!(observed.counter(SelfCounter::TooDeep)?, 0);
    Ok(all)
}

/// Starts processes, then probes, and compares.
fn assert_exact(
    stand_ins: &StandIns,
    options: Options,
    processes: usize,
    work: (u64, &str),
) -> Result<u64> {
    let mut processes = start_waiting(stand_ins, processes, work)?;
    let observed = Observed::start(options)?;
    observed.wait_for(stand_ins, "libcudart.so.12")?;
    if work.1 == BOTH_LIBRARIES {
        observed.wait_for(stand_ins, "libcuda.so.1")?;
    }
    assert_all_counted(&observed, &mut processes)
}

#[test]
fn two_million_calls_of_eight_threads_older_than_the_probes_are_all_counted() -> Result<()> {
    let calls = if is_emulated() { 2500 } else { 250_000 };
    let (stand_ins, work) = (StandIns::lay_out()?, (calls, BOTH_LIBRARIES));
    assert_eq!(assert_exact(&stand_ins, Options::default(), 4, work)?, 8 * calls);
    Ok(())
}

#[test]
fn separate_entry_and_return_links_count_all_calls() -> Result<()> {
    let multi = Options { mode: Some(AttachMode::Multi), ..Options::default() };
    let stand_ins = StandIns::lay_out()?;
    assert_eq!(assert_exact(&stand_ins, multi, 2, (50_000, BOTH_LIBRARIES))?, 200_000);
    Ok(())
}

/// Returns options as where the kernel gives no task storage, whatever this kernel gives.
fn hashed() -> Options {
    Options { hashes_threads: true, ..Options::default() }
}

#[test]
fn threads_without_task_storage_lose_no_call() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    assert_eq!(assert_exact(&stand_ins, hashed(), 4, (2_500, BOTH_LIBRARIES))?, 20_000);
    Ok(())
}

#[test]
fn a_thread_without_task_storage_that_ends_leaves_its_place_to_others() -> Result<()> {
    const THREADS: u64 = 200;
    let stand_ins = StandIns::lay_out()?;
    let _keeper = stand_ins.start("idle")?;
    let observed = Observed::start(Options { max_hashed_threads: Some(16), ..hashed() })?;
    observed.wait_for_runtime(&stand_ins)?;
    // They live one after the other.
    let mut workload = stand_ins.start(&format!("--hold churn --threads {THREADS} --calls 5"))?;
    let truth = true_calls(&workload.result()?);
    assert_eq!(counted(&observed.process(workload.pid())?), truth);
    assert_eq!(truth.values().sum::<u64>(), THREADS * 5);
    assert_eq!(observed.counter(SelfCounter::NoRecord)?, 0);
    ensure!(workload.end()?.success(), "the workload failed");
    Ok(())
}

#[test]
fn perf_uprobes_count_all_calls() -> Result<()> {
    let perf = Options { mode: Some(AttachMode::Perf), ..Options::default() };
    let functions = RUNTIME.split(',').filter_map(|call| Some(call.split_once('=')?.0));
    let stand_ins = StandIns::with_few_functions(&functions.collect::<Vec<_>>())?;
    assert_eq!(assert_exact(&stand_ins, perf, 2, (50_000, RUNTIME))?, 200_000);
    Ok(())
}

#[test]
fn processes_that_come_after_the_probes_are_counted_from_their_first_call() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let mut keeper = stand_ins.start("idle")?;
    let observed = Observed::start(Options::default())?;
    observed.wait_for_runtime(&stand_ins)?;
    let (processes, calls) = if is_emulated() { (20, 100) } else { (200, 1000) };
    let result =
        stand_ins.run(&format!("spawn --processes {processes} --calls {calls} --parallel 4"))?;
    let mut all = 0;
    for pid in result["pids"].as_array().unwrap() {
        let process = observed.process(u32::try_from(pid.as_u64().unwrap())?)?;
        let launches = counted(&process);
        assert_eq!(launches, BTreeMap::from([(op("cudaLaunchKernel"), calls)]), "{process:?}");
        assert!(process.ended.is_some(), "{process:?}");
        all += launches.values().sum::<u64>();
    }
    assert_eq!(all, processes * calls);
    assert!(keeper.end()?.success());
    Ok(())
}

#[test]
fn a_launch_by_the_driver_for_the_runtime_is_timed_by_itself_where_that_is_asked_for() -> Result<()>
{
    let stand_ins = StandIns::lay_out()?;
    let mut workload =
        stand_ins.start("--wait --hold --script nest=1 calls --threads 2 --calls 20000")?;
    let observed = Observed::start(Options { nested_launches: true, ..Options::default() })?;
    observed.wait_for(&stand_ins, "libcudart.so.12")?;
    observed.wait_for(&stand_ins, "libcuda.so.1")?;
    workload.go()?;
    workload.result()?;
    let process = observed.process(workload.pid())?;
    assert_eq!((process.launches(), process.timed_launches()), (40_000, 40_000));
    let expected = [(op("cudaLaunchKernel"), 40_000), (op("cuLaunchKernel"), 40_000)];
    assert_eq!(counted(&process), BTreeMap::from(expected));
    let sum = |name| process.call_durations(op(name)).sum;
    assert!(sum("cudaLaunchKernel") > sum("cuLaunchKernel"), "the driver's part is not the whole");
    Ok(())
}
