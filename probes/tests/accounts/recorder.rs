//! Single events against what the workload and the accounts know to be true.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use gpucause_abi::event::{Detail, RawCall, RawEvent};
use gpucause_abi::op::{CopyKind, OpId};
use gpucause_abi::snapshot::ProcessSnapshot;
use gpucause_abi::state::Reason;
use gpucause_abi::{Nanos, Tgid};
use gpucause_probes::Options;
use gpucause_probes::feature::AttachMode;
use gpucause_probes::recorder::{Drained, Recorder, RecorderError, RecorderSettings, RingSize};
use serde_json::Value;

use crate::disturbance::undisturbed;
use crate::observe::{Observed, until};
use crate::workload::{StandIns, Workload, number, op, true_calls};

const NEVER: Nanos = Nanos(u64::MAX);

fn with_ring(events: u32) -> Options {
    Options { recorder: Some(RingSize { events, stacks: 1024 }), ..Options::default() }
}

/// Every call of one process, and nothing that is not a call but what cannot be left out.
fn calls_of(pid: u32) -> RecorderSettings {
    RecorderSettings {
        calls_from: Nanos(0),
        off_cpu_from: NEVER,
        stacks: false,
        only: BTreeSet::from([Tgid(pid)]),
        ..RecorderSettings::default()
    }
}

/// Everything that there is to read now.
fn drained(recorder: &mut Recorder) -> Result<(Vec<RawEvent>, Drained)> {
    let mut events = Vec::new();
    let drained = recorder.drain(|event| events.push(*event))?;
    Ok((events, drained))
}

fn calls(events: &[RawEvent]) -> Vec<(RawEvent, RawCall)> {
    let call = |event: &RawEvent| match event.detail {
        Detail::Call(call) => Some((*event, call)),
        _ => None,
    };
    events.iter().filter_map(call).collect()
}

/// Sums by op.
fn by_op(
    calls: &[(RawEvent, RawCall)],
    value: impl Fn(&RawEvent, &RawCall) -> u64,
) -> BTreeMap<OpId, u64> {
    let mut sums = BTreeMap::new();
    for (event, call) in calls {
        *sums.entry(call.op).or_default() += value(event, call);
    }
    sums
}

/// Starts a workload that waits for the word, with probes and a ring of so many events.
fn ready(stand_ins: &StandIns, arguments: &str, events: u32) -> Result<(Workload, Observed)> {
    let workload = stand_ins.start(&format!("--wait --hold {arguments}"))?;
    let observed = Observed::start(with_ring(events))?;
    observed.wait_for_runtime(stand_ins)?;
    Ok((workload, observed))
}

#[test]
fn every_call_is_in_the_ring_once_with_the_time_bytes_and_code_of_its_account() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let (mut workload, observed) = ready(
        &stand_ins,
        "--kernels 5 --copy-kind d2h --copy-bytes 7422 --alloc-bytes 1000 \
         --script cudaMemcpyAsync:ret=2@7;cudaEventQuery:ret=600@2;cudaStreamSynchronize:futex=20us \
         calls --threads 2 --calls 12000 --mix \
         cudaLaunchKernel=5,cudaMemcpyAsync=3,cudaStreamSynchronize=1,cudaMalloc=1,cudaMallocPitch=1,cudaFree=1,cudaEventQuery=1",
        1 << 16,
    )?;
    let mut recorder = observed.recorder()?;
    recorder.set(&calls_of(workload.pid()))?;
    workload.go()?;
    let truth = workload.result()?;
    let process = observed.process(workload.pid())?;
    let (events, drained) = drained(&mut recorder)?;
    assert_eq!((drained.lost, drained.unknown, recorder.unfinished()), (0, 0, 0));
    assert_eq!(drained.events, events.len() as u64);
    let calls = calls(&events);
    assert_eq!(by_op(&calls, |_, _| 1), true_calls(&truth));
    for (op, recorded) in by_op(&calls, |event, _| event.duration.0) {
        assert_eq!(recorded, process.call_durations(op).sum.0, "{op:?}");
    }
    let stalls = by_op(&calls, |_, call| call.off_cpu.0);
    let stalled = |op| -> u64 {
        let of_op = process.stalls.iter().filter(|stall| stall.op == op);
        of_op.flat_map(|stall| &stall.offcpu).map(|ns| ns.0).sum()
    };
    for (op, recorded) in stalls {
        assert_eq!(recorded, stalled(op), "{op:?} off the CPU");
    }
    check_bytes(&calls, &process, &truth);
    check_codes(&calls, &process);
    let launches = calls.iter().filter(|(_, call)| call.op == op("cudaLaunchKernel"));
    let mut kernels = BTreeMap::new();
    for (_, call) in launches {
        *kernels.entry(call.kernel.context("a launch without a kernel")?).or_default() += 1;
    }
    assert_eq!(kernels, process.kernels.iter().copied().collect::<BTreeMap<u64, u64>>());
    let cold = calls.iter().filter(|(_, call)| call.cold).count() as u64;
    let cold_calls = process.calls.iter().filter(|call| call.cold);
    assert_eq!(cold, cold_calls.map(|call| call.durations.count()).sum::<u64>());
    assert!(calls.iter().all(|(event, call)| call.outermost && event.process == process.id));
    Ok(())
}

fn check_bytes(calls: &[(RawEvent, RawCall)], process: &ProcessSnapshot, truth: &Value) {
    let bytes = |name: &str| -> u64 {
        let of_op = calls.iter().filter(|(_, call)| call.op == op(name));
        of_op.filter_map(|(_, call)| call.bytes).sum()
    };
    let copies = calls.iter().filter(|(_, call)| call.op == op("cudaMemcpyAsync"));
    assert!(copies.clone().all(|(_, call)| call.code != 0 || call.copy == Some(CopyKind::D2h)));
    assert_eq!(bytes("cudaMemcpyAsync"), process.copied[CopyKind::D2h as usize]);
    let allocated = bytes("cudaMalloc") + bytes("cudaMallocPitch");
    assert_eq!(allocated, number(truth, "/allocated_bytes"));
    assert_eq!(allocated, process.memory.allocated);
    assert_eq!(bytes("cudaFree"), process.memory.freed);
    assert!(process.memory.freed > 0, "nothing was freed");
}

fn check_codes(calls: &[(RawEvent, RawCall)], process: &ProcessSnapshot) {
    let mut codes = BTreeMap::new();
    for (_, call) in calls.iter().filter(|(_, call)| call.code != 0) {
        *codes.entry((call.op, call.code)).or_default() += 1;
    }
    let errors: BTreeMap<(OpId, u32), u64> =
        process.errors.iter().map(|&(op, code, count)| ((op, code), count)).collect();
    assert_eq!(codes, errors);
}

/// Calls below the threshold are drawn at random, those that are chosen are all there.
#[test]
fn calls_below_the_threshold_are_in_the_sample_or_chosen_or_left_out() -> Result<()> {
    const CALLS: u64 = 20_000;
    let stand_ins = StandIns::lay_out()?;
    let (mut workload, observed) = ready(
        &stand_ins,
        &format!("calls --calls {CALLS} --mix cudaLaunchKernel=9,cudaMalloc=1"),
        1 << 16,
    )?;
    let mut recorder = observed.recorder()?;
    let settings = RecorderSettings {
        calls_from: NEVER,
        sample_rest: 10,
        allocations: true,
        ..calls_of(workload.pid())
    };
    recorder.set(&settings)?;
    workload.go()?;
    workload.result()?;
    let calls = calls(&drained(&mut recorder)?.0);
    let of = |name| calls.iter().filter(move |(_, call)| call.op == op(name));
    assert_eq!(of("cudaMalloc").count() as u64, CALLS / 10);
    assert!(of("cudaMalloc").all(|(_, call)| !call.sampled));
    assert!(of("cudaLaunchKernel").all(|(_, call)| call.sampled));
    // This is within six standard deviations of 18,000 draws with a chance of a tenth.
    let sampled = of("cudaLaunchKernel").count();
    assert!((1_560..=2_040).contains(&sampled), "{sampled} of 18,000");
    Ok(())
}

#[test]
fn off_cpu_intervals_add_up_to_the_account_for_each_reason() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let _keeper = stand_ins.start("idle")?;
    let observed = Observed::start(with_ring(1 << 18))?;
    observed.wait_for_runtime(&stand_ins)?;
    let _burner = stand_ins.start("contend --cpu 1 --seconds 60 --burners 1")?;
    let mut recorder = observed.recorder()?;
    recorder.set(&RecorderSettings {
        calls_from: NEVER,
        off_cpu_from: Nanos(0),
        helper_threads: true,
        ..RecorderSettings::default()
    })?;
    undisturbed(&observed, || {
        let mut workload = stand_ins.start(
            "--script cudaStreamSynchronize:lock=300us;cudaEventQuery:sleep=100us \
             calls --threads 4 --calls 4000 --mix cudaLaunchKernel=8,cudaStreamSynchronize=1,cudaEventQuery=1",
        )?;
        workload.result()?;
        ensure!(workload.end()?.success(), "the workload failed");
        let process = observed.process(workload.pid())?;
        let (events, drained) = drained(&mut recorder)?;
        ensure!(drained.lost == 0, "{drained:?}");
        let mut recorded = BTreeMap::new();
        for event in events.iter().filter(|event| event.process == process.id) {
            if let Detail::OffCpu(interval) = event.detail {
                *recorded.entry(interval.reason).or_default() += event.duration.0;
                let is_named = interval.by.is_some_and(|by| !by.comm.to_text().is_empty());
                ensure!(is_named || interval.helper, "nobody is named: {event:?}");
            }
        }
        let mut accounts: BTreeMap<Reason, u64> = BTreeMap::new();
        for (_, reason, intervals) in &process.offcpu {
            *accounts.entry(*reason).or_default() += intervals.sum.0;
        }
        accounts.retain(|_, ns| *ns > 0);
        ensure!(recorded == accounts, "recorded {recorded:?}\naccounts {accounts:?}");
        for reason in [Reason::Futex, Reason::Sleep, Reason::Preempted, Reason::Runqueue] {
            ensure!(recorded.contains_key(&reason), "no {reason:?}: {recorded:?}");
        }
        Ok(())
    })
}

/// Reads for as long as the workload makes its calls. All that was handed over, what became of all, and the truth.
fn read_along(
    recorder: &mut Recorder,
    workload: &mut Workload,
) -> Result<(Vec<RawEvent>, Drained, Value)> {
    let done = AtomicBool::new(false);
    workload.go()?;
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| -> Result<_> {
            let (mut events, mut sum) = (Vec::new(), Drained::default());
            loop {
                let is_last = done.load(Ordering::Acquire);
                let found = recorder.drain(|event| events.push(*event))?;
                sum.events += found.events;
                sum.lost += found.lost;
                sum.unknown += found.unknown;
                if is_last {
                    return Ok((events, sum));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let truth = workload.result();
        done.store(true, Ordering::Release);
        let (events, sum) = reader.join().expect("the reader lives")?;
        Ok((events, sum, truth?))
    })
}

/// Counts the events that are no calls: the process was seen, and requests to the disk for code that it had to fetch.
fn others(process: &ProcessSnapshot) -> u64 {
    1 + process.host.block_io.iter().map(|io| io.requests).sum::<u64>()
}

#[test]
fn what_a_slow_reader_loses_is_counted_exactly() -> Result<()> {
    const CALLS: u64 = 100_000;
    let stand_ins = StandIns::lay_out()?;
    let (mut workload, observed) = ready(&stand_ins, &format!("calls --calls {CALLS}"), 256)?;
    let mut recorder = observed.recorder()?;
    recorder.set(&calls_of(workload.pid()))?;
    let (events, sum, _) = read_along(&mut recorder, &mut workload)?;
    let happened = CALLS + others(&observed.process(workload.pid())?);
    assert_eq!(sum.events, events.len() as u64);
    assert_eq!(sum.events + sum.lost, happened, "{sum:?}");
    assert!(sum.lost > 0 && sum.events >= 256, "{sum:?}");
    assert_eq!(recorder.last(Duration::from_secs(600))?.events.len(), 256);
    assert_eq!(drained(&mut recorder)?.1, Drained::default(), "there is no more");
    Ok(())
}

#[test]
fn a_storm_of_preemptions_leaves_every_record_whole_and_every_call_counted() -> Result<()> {
    const THREADS: u64 = 32;
    const CALLS: u64 = 4_000;
    let stand_ins = StandIns::lay_out()?;
    let last = std::thread::available_parallelism()?.get() - 1;
    let (mut workload, observed) = ready(
        &stand_ins,
        &format!(
            "--kernels 5 --copy-bytes 7422 --script cudaStreamSynchronize:yield=2us \
             calls --threads {THREADS} --calls {CALLS} --mix cudaLaunchKernel=6,cudaStreamSynchronize=2,cudaMemcpyAsync=2"
        ),
        64,
    )?;
    let burners = [0, last]
        .map(|cpu| stand_ins.start(&format!("contend --cpu {cpu} --seconds 60 --burners 2")));
    let mut recorder = observed.recorder()?;
    recorder.set(&calls_of(workload.pid()))?;
    let (events, sum, truth) = read_along(&mut recorder, &mut workload)?;
    drop(burners);
    let process = observed.process(workload.pid())?;
    assert_eq!(sum.events + sum.lost, THREADS * CALLS + others(&process), "{sum:?}");
    assert_eq!((sum.unknown, recorder.unfinished()), (0, 0));
    let threads = truth["threads"].as_array().context("no threads")?;
    let spans: BTreeMap<u64, (u64, u64)> = threads
        .iter()
        .map(|thread| {
            let start = number(thread, "/first_call_ns");
            (number(thread, "/tid"), (start, start + number(thread, "/wall_ns")))
        })
        .collect();
    let kernels: BTreeSet<u64> = process.kernels.iter().map(|&(kernel, _)| kernel).collect();
    let calls = calls(&events);
    ensure!(calls.len() > 1000, "{sum:?}");
    for (event, call) in &calls {
        assert_eq!((event.tgid.0, event.process), (workload.pid(), process.id), "{event:?}");
        let (start, end) = spans[&u64::from(event.tid.context("no thread")?.0)];
        assert!(start <= event.start.0 && event.end().0 <= end, "{event:?} in {start} to {end}");
        assert!(call.off_cpu <= event.duration, "{event:?}");
        let expected = match call.op.op().map(|op| op.name) {
            Some("cudaLaunchKernel") => call.kernel.is_some_and(|kernel| kernels.contains(&kernel)),
            Some("cudaMemcpyAsync") => call.bytes == Some(7422) && call.kernel.is_none(),
            Some("cudaStreamSynchronize") => call.bytes.is_none() && call.kernel.is_none(),
            _ => false,
        };
        assert!(expected && call.code == 0 && call.stack.is_none(), "{event:?}");
    }
    let distinct: BTreeSet<_> = calls.iter().map(|(event, _)| (event.tid, event.start)).collect();
    assert_eq!(distinct.len(), calls.len(), "an event came twice");
    Ok(())
}

#[test]
fn a_recorder_that_is_not_started_or_stopped_leaves_the_ring_alone() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let (mut workload, observed) = ready(&stand_ins, "calls --calls 5000", 1024)?;
    let mut recorder = observed.recorder()?;
    assert!(matches!(observed.recorder(), Err(RecorderError::InUse)));
    workload.go()?;
    workload.result()?;
    assert_eq!(drained(&mut recorder)?, (Vec::new(), Drained::default()));
    let everything = RecorderSettings { calls_from: Nanos(0), ..RecorderSettings::default() };
    recorder.set(&everything)?;
    recorder.stop()?;
    drained(&mut recorder)?;
    stand_ins.run("calls --calls 5000")?;
    assert_eq!(drained(&mut recorder)?, (Vec::new(), Drained::default()));
    recorder.set(&everything)?;
    drop(recorder);
    let mut recorder = observed.recorder()?;
    stand_ins.run("calls --calls 5000")?;
    assert_eq!(drained(&mut recorder)?, (Vec::new(), Drained::default()));
    // Only the process that is asked for.
    recorder
        .set(&RecorderSettings { only: BTreeSet::from([Tgid(workload.pid())]), ..everything })?;
    stand_ins.run("calls --calls 5000")?;
    assert_eq!(drained(&mut recorder)?, (Vec::new(), Drained::default()));
    Ok(())
}

#[test]
fn without_a_ring_there_is_no_recorder() -> Result<()> {
    let observed = Observed::start(Options::default())?;
    assert!(matches!(observed.recorder(), Err(RecorderError::Disabled)));
    Ok(())
}

#[test]
fn stacks_of_slow_calls_begin_in_the_program_that_made_them() -> Result<()> {
    AttachMode::ALL.into_iter().try_for_each(check_stacks)
}

fn check_stacks(mode: AttachMode) -> Result<()> {
    let stand_ins = StandIns::with_few_functions(&["cudaLaunchKernel"])?;
    let mut workload = stand_ins.start("--wait --hold calls --calls 500")?;
    let observed = Observed::start(Options { mode: Some(mode), ..with_ring(4096) })?;
    observed.wait_for_runtime(&stand_ins)?;
    let mut recorder = observed.recorder()?;
    recorder.set(&RecorderSettings { stacks: true, ..calls_of(workload.pid()) })?;
    workload.go()?;
    workload.result()?;
    let calls = calls(&drained(&mut recorder)?.0);
    assert_eq!(calls.len(), 500);
    let program = fs::read_link(format!("/proc/{}/exe", workload.pid()))?;
    let maps = fs::read_to_string(format!("/proc/{}/maps", workload.pid()))?;
    let code: Vec<(u64, u64)> = maps
        .lines()
        .filter(|line| line.ends_with(&*program.to_string_lossy()) && line.contains(" r-xp "))
        .filter_map(|line| line.split_once(' ')?.0.split_once('-'))
        .map(|(start, end)| Ok((u64::from_str_radix(start, 16)?, u64::from_str_radix(end, 16)?)))
        .collect::<Result<_>>()?;
    ensure!(!code.is_empty(), "no code of {} in\n{maps}", program.display());
    for (event, call) in &calls {
        let stack = recorder.stack(call.stack.with_context(|| format!("no stack: {event:?}"))?)?;
        let caller = *stack.first().context("an empty stack")?;
        let is_there = code.iter().any(|&(start, end)| (start..end).contains(&caller));
        assert!(is_there, "{stack:x?} begins elsewhere:\n{maps}");
    }
    recorder.clear_stacks()?;
    let kept = recorder.stack(calls[0].1.stack.context("no stack")?)?;
    assert!(!kept.is_empty(), "a stack of an event in the ring was forgotten");
    Ok(())
}

#[test]
fn the_life_and_the_disk_of_a_process_are_recorded() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let (mut workload, observed) = ready(&stand_ins, "host --read 4194304", 4096)?;
    let mut recorder = observed.recorder()?;
    recorder.set(&RecorderSettings { calls_from: NEVER, ..calls_of(workload.pid()) })?;
    workload.go()?;
    workload.result()?;
    let process = observed.process(workload.pid())?;
    ensure!(workload.end()?.success(), "the workload failed");
    let mut events = Vec::new();
    let is_over =
        |events: &[RawEvent]| events.iter().any(|event| matches!(event.detail, Detail::Exited(_)));
    until(
        || {
            recorder.drain(|event| events.push(*event))?;
            Ok(is_over(&events).then_some(()))
        },
        || "the process does not exit".to_owned(),
    )?;
    let (mut bytes, mut requests, mut seen) = (0, 0, 0);
    for event in &events {
        match event.detail {
            Detail::Block { bytes: done, device, .. } => {
                bytes += done;
                requests += 1;
                assert!(!device.to_text().is_empty() && event.tid.is_some(), "{event:?}");
            }
            Detail::Seen(image) => {
                seen += 1;
                assert_eq!((image.comm, image.parent), (process.comm, None));
            }
            _ => {}
        }
    }
    let io = &process.host.block_io;
    assert_eq!(seen, 1);
    assert!(bytes >= 4_194_304 && bytes >= io.iter().map(|io| io.bytes).sum::<u64>(), "{bytes}");
    assert!(requests >= io.iter().map(|io| io.requests).sum::<u64>(), "{requests} requests");
    Ok(())
}
