//! Preemption at every instruction, and processes that come and go by the hundred.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use gpucause_abi::ProcId;
use gpucause_abi::record::SelfCounter;
use gpucause_abi::snapshot::{ProcessSnapshot, Snapshot};
use gpucause_abi::state::{Reason, Role};
use gpucause_probes::Options;
use libbpf_rs::{MapCore as _, MapHandle};

use crate::guest::is_emulated;
use crate::observe::{Observed, counted, until};
use crate::workload::{StandIns, Workload, deadline, number, op, true_calls};

/// No op's calls were longer off the CPU than they took, and none stalled more often than it was called.
fn assert_stalls_fit_into_calls(process: &ProcessSnapshot) {
    for stall in &process.stalls {
        let calls = process.call_durations(stall.op);
        let off: u64 = stall.offcpu.iter().map(|ns| ns.0).sum();
        assert!(off <= calls.sum.0, "{off} ns off the CPU in {} ns: {stall:?}", calls.sum.0);
        assert!(stall.calls <= calls.count(), "{stall:?} of {} calls", calls.count());
    }
}

/// Processes that call often, each from so many threads, beside four busy loops.
struct Storm {
    processes: usize,
    threads: u64,
    /// Calls of each thread.
    calls: u64,
    /// At most so many calls of a process for each time that one of its threads was preempted.
    calls_per_preemption: u64,
    /// Behaviour of calls: some give the CPU away, or they are preempted alone.
    script: &'static str,
    /// How long the calls may take.
    time_limit: Duration,
}

#[test]
fn a_storm_of_preemptions_loses_no_call_and_no_time() -> Result<()> {
    let calls = if is_emulated() { 1000 } else { 10_000 };
    let script = "cudaStreamSynchronize:yield=2us;cudaEventQuery:futex=1us";
    let (processes, threads, calls_per_preemption, time_limit) = (3, 16, 160, deadline());
    Storm { processes, threads, calls, calls_per_preemption, script, time_limit }.run()
}

#[test]
#[ignore = "takes minutes: make test-kernels has it where TESTS names it"]
fn a_storm_of_ten_million_calls_loses_no_call_and_no_time() -> Result<()> {
    let (processes, threads, calls, calls_per_preemption) = (4, 2, 1_250_000, 10_000);
    let (script, time_limit) = ("cudaEventQuery:spin=1us", Duration::from_secs(1200));
    Storm { processes, threads, calls, calls_per_preemption, script, time_limit }.run()
}

impl Storm {
    fn run(&self) -> Result<()> {
        let Self { processes, threads, calls, calls_per_preemption, script, time_limit } = *self;
        let stand_ins = StandIns::lay_out()?;
        let arguments = format!(
            "--wait --hold --script {script} \
             calls --threads {threads} --calls {calls} \
             --mix cudaLaunchKernel=6,cudaStreamSynchronize=2,cudaEventQuery=1,cudaMemcpyAsync=1"
        );
        let started = || stand_ins.start(&arguments);
        let mut storm = (0..processes).map(|_| started()).collect::<Result<Vec<Workload>>>()?;
        let seconds = time_limit.as_secs();
        // Busy loops on both ends of the range of CPUs, of ordinary priority.
        let last = std::thread::available_parallelism()?.get() - 1;
        let burners: Vec<Workload> = [0, last]
            .iter()
            .map(|cpu| {
                stand_ins.start(&format!("contend --cpu {cpu} --seconds {seconds} --burners 2"))
            })
            .collect::<Result<_>>()?;
        let observed = Observed::start(Options::default())?;
        observed.wait_for_runtime(&stand_ins)?;
        let underflow = observed.counter(SelfCounter::ClockUnderflow)?;
        for process in &mut storm {
            process.time_limit = time_limit;
            process.go()?;
        }
        for process in &mut storm {
            let truth = process.result()?;
            let seen = observed.process(process.pid())?;
            assert_eq!(counted(&seen), true_calls(&truth), "process {}", process.pid());
            assert_eq!(counted(&seen).values().sum::<u64>(), threads * calls);
            assert_eq!(seen.measures.abandoned_calls, 0);
            if !fs::exists("/sys/devices/system/node/node1")? {
                assert_eq!(seen.measures.numa_migrations, 0, "this host has one node");
            }
            assert_stalls_fit_into_calls(&seen);
            let left_runnable = seen
                .offcpu
                .iter()
                .filter(|(_, reason, _)| matches!(reason, Reason::Preempted | Reason::Yield));
            let preemptions: u64 = left_runnable.map(|(.., intervals)| intervals.count()).sum();
            assert!(
                preemptions > (threads * calls) / calls_per_preemption,
                "no storm: {preemptions} preemptions and yields"
            );
            let threads = truth["threads"].as_array().context("no threads")?;
            let walls: Vec<_> = threads.iter().map(|thread| number(thread, "/wall_ns")).collect();
            let wall: u64 = walls.iter().sum();
            let longest = seen.calls.iter().map(|call| call.durations.max.0).max();
            assert!(longest <= walls.iter().max().copied(), "{longest:?} of {walls:?}");
            let waited: u64 = seen
                .offcpu
                .iter()
                .filter(|(role, ..)| *role == Role::Dispatcher)
                .map(|(.., intervals)| intervals.sum.0)
                .sum();
            assert!(waited <= wall + wall / 50, "{waited} ns off the CPU in {wall} ns");
        }
        drop(burners);
        assert_eq!(observed.counter(SelfCounter::ClockUnderflow)?, underflow);
        Ok(())
    }
}

#[test]
fn threads_that_make_their_first_calls_in_a_storm_of_preemptions_lose_none() -> Result<()> {
    const PROCESSES: usize = 10;
    const THREADS: u64 = 64;
    let calls = if is_emulated() { 20 } else { 200 };
    let stand_ins = StandIns::lay_out()?;
    let _keeper = stand_ins.start("idle")?;
    let arguments = format!("--wait --hold calls --threads {THREADS} --calls {calls}");
    let older = (0..PROCESSES / 2).map(|_| stand_ins.start(&arguments));
    let mut older = older.collect::<Result<Vec<Workload>>>()?;
    let last = std::thread::available_parallelism()?.get() - 1;
    let _burners: Vec<Workload> = [0, last]
        .iter()
        .map(|cpu| stand_ins.start(&format!("contend --cpu {cpu} --seconds 600 --burners 1")))
        .collect::<Result<_>>()?;
    let observed = Observed::start(Options::default())?;
    observed.wait_for_runtime(&stand_ins)?;
    for process in &mut older {
        process.go()?;
    }
    let mut lost = Vec::new();
    for process in &mut older {
        process.result()?;
        lost.push(
            THREADS * calls - counted(&observed.process(process.pid())?)[&op("cudaLaunchKernel")],
        );
    }
    drop(older);
    // Their threads begin one after the other, and end.
    let churn = format!("--hold churn --threads {THREADS} --calls {calls}");
    let younger = (0..PROCESSES / 2).map(|_| stand_ins.start(&churn));
    for mut process in younger.collect::<Result<Vec<Workload>>>()? {
        process.result()?;
        lost.push(
            THREADS * calls - counted(&observed.process(process.pid())?)[&op("cudaLaunchKernel")],
        );
    }
    assert_eq!(lost, [0; PROCESSES], "calls lost by process; {:?}", observed.snapshot()?.counters);
    Ok(())
}

/// Processes that nobody runs any more.
pub(crate) fn ended(snapshot: &Snapshot) -> HashSet<ProcId> {
    snapshot.processes.iter().filter(|p| p.ended.is_some()).map(|p| p.id).collect()
}

/// A map of this process's probes that is not in snapshots.
fn own_map(name: &str) -> Result<MapHandle> {
    for entry in fs::read_dir("/proc/self/fdinfo")? {
        let info = fs::read_to_string(entry?.path()).unwrap_or_default();
        let Some(id) = info.lines().find_map(|line| line.strip_prefix("map_id:")) else { continue };
        let map = MapHandle::from_map_id(id.trim().parse()?)?;
        if map.name() == name {
            return Ok(map);
        }
    }
    anyhow::bail!("this process has no map `{name}`")
}

#[test]
fn nothing_is_left_in_any_map_of_a_thousand_forked_processes() -> Result<()> {
    const FORKS: u64 = 1000;
    let stand_ins = StandIns::lay_out()?;
    let mut keeper = stand_ins.start("idle")?;
    let observed = Observed::start(Options::default())?;
    observed.wait_for_runtime(&stand_ins)?;
    let truth = stand_ins.run(&format!("unwind --kind fork --count {FORKS} --calls 10"))?;
    let snapshot = observed.snapshot()?;
    let by_pid: BTreeMap<u64, &ProcessSnapshot> =
        snapshot.processes.iter().map(|p| (u64::from(p.tgid.0), p)).collect();
    for child in truth["children"].as_array().context("no children")? {
        let seen = by_pid.get(&number(child, "/pid")).context("a child is missing")?;
        assert_eq!(counted(seen), BTreeMap::from([(op("cudaLaunchKernel"), 10)]), "{seen:?}");
        assert!(seen.ended.is_some(), "{seen:?}");
    }
    stand_ins.run("--kernels 50 --script cudaMalloc:ret=2@3 calls --threads 4 --calls 1000 --mix cudaLaunchKernel=3,cudaMalloc=1")?;
    assert!(keeper.end()?.success());
    // Other CUDA processes of this host have entries of their own, until they end.
    until(
        || {
            observed.remove(&ended(&observed.snapshot()?))?;
            let left = observed.snapshot()?;
            Ok((left.processes.is_empty() && left.maps.iter().all(|map| map.entries == 0))
                .then_some(()))
        },
        || format!("entries are left: {:?}", observed.snapshot().map(|left| left.maps)),
    )?;
    for map in ["tracked", "allocations"] {
        assert_eq!(own_map(map)?.keys().count(), 0, "entries are left in {map}");
    }
    Ok(())
}

/// Makes the kernel give the next process the number `pid`, as it would by itself when it has come round.
fn come_round_to(pid: u32) -> Result<()> {
    fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string())
        .context("ns_last_pid needs CONFIG_CHECKPOINT_RESTORE")
}

#[test]
fn a_process_that_gets_the_number_of_a_dead_one_starts_at_nothing() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let _keeper = stand_ins.start("idle")?;
    let observed = Observed::start(Options::default())?;
    observed.wait_for_runtime(&stand_ins)?;
    let mut first = stand_ins.start("calls --calls 700")?;
    first.result()?;
    ensure!(first.end()?.success(), "the workload failed");
    let pid = first.pid();
    // Others may take the number first.
    let second = until(
        || {
            come_round_to(pid)?;
            let mut second = stand_ins.start("calls --calls 300")?;
            second.result()?;
            ensure!(second.end()?.success(), "the workload failed");
            Ok((second.pid() == pid).then_some(second))
        },
        || format!("no second process {pid}"),
    )?;
    let images = observed.images(second.pid())?;
    let launches: Vec<_> = images.iter().map(counted).collect();
    let launch = |count| BTreeMap::from([(op("cudaLaunchKernel"), count)]);
    assert_eq!(launches, [launch(700), launch(300)], "{images:?}");
    assert!(images[0].id != images[1].id && images.iter().all(|image| !image.execed), "{images:?}");
    Ok(())
}
