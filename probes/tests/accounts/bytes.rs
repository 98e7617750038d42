//! Bytes that are copied, taken and given back: exact by kind, size class and outcome, whatever function moves them.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use gpucause_abi::op::{Api, Args, Class, CopyKind, OPS, OpId};
use gpucause_abi::record::SIZE_CLASSES;
use gpucause_abi::snapshot::ProcessSnapshot;
use gpucause_probes::Options;
use serde_json::Value;

use crate::observe::{Observed, counted};
use crate::workload::{StandIns, Workload, number, op, true_calls};

/// Divisible by two and three, so that boxes have rows and layers, and no round number.
const BYTES: u64 = 6 * 1237;

/// Probes with the stand-ins attached that these tests call.
struct Bench {
    stand_ins: StandIns,
    observed: Observed,
    _keeper: Workload,
}

impl Bench {
    fn set_up() -> Result<Self> {
        let stand_ins = StandIns::lay_out()?;
        let keeper = stand_ins.start("--hold --script nest=1 calls --calls 0")?;
        let observed = Observed::start(Options::default())?;
        for library in ["libcudart.so.12", "libcuda.so.1"] {
            observed.wait_for(&stand_ins, library)?;
        }
        Ok(Self { stand_ins, observed, _keeper: keeper })
    }

    /// A process that has made its calls and lives on, with the truth.
    fn run(&self, arguments: &str) -> Result<(Workload, ProcessSnapshot, Value)> {
        let mut workload = self.stand_ins.start(&format!("--hold {arguments}"))?;
        let truth = workload.result()?;
        let process = self.observed.process(workload.pid())?;
        Ok((workload, process, truth))
    }
}

/// Every op with arguments for the bytes copied.
fn copies() -> Vec<&'static str> {
    let counts = |args| {
        matches!(
            args,
            Args::Copy(..)
                | Args::Copy2d(..)
                | Args::CopySizes(..)
                | Args::CopyBoxes(..)
                | Args::CopyFields2d(..)
                | Args::CopyFields3d(..)
        )
    };
    OPS.iter().filter(|op| counts(op.args)).map(|op| op.name).collect()
}

fn copied(process: &ProcessSnapshot) -> BTreeMap<&'static str, u64> {
    let kinds = CopyKind::ALL.iter().map(|kind| kind.label());
    kinds.zip(process.copied).filter(|(_, bytes)| *bytes > 0).collect()
}

fn true_bytes<'a>(truth: &'a Value, key: &str) -> Result<BTreeMap<&'a str, u64>> {
    let members = truth[key].as_object().with_context(|| format!("no {key} in {truth}"))?;
    Ok(members.iter().map(|(kind, bytes)| (kind.as_str(), bytes.as_u64().unwrap_or(0))).collect())
}

#[test]
fn each_function_that_copies_reports_its_bytes_by_kind() -> Result<()> {
    let bench = Bench::set_up()?;
    let all = copies();
    ensure!(all.len() > 44, "the table has {} functions that copy", all.len());
    let calls = 3 * all.len();
    for kind in ["h2h", "h2d", "d2h", "d2d", "default"] {
        let arguments = format!(
            "--copy-bytes {BYTES} --copy-kind {kind} calls --calls {calls} --mix {}",
            all.join(",")
        );
        let (_alive, process, truth) = bench.run(&arguments)?;
        assert_eq!(counted(&process), true_calls(&truth), "{kind}");
        let expected = true_bytes(&truth, "copied_bytes")?;
        assert_eq!(copied(&process), expected, "{kind}");
        assert_eq!(expected.values().sum::<u64>(), BYTES * calls as u64, "{kind}");
    }
    // One at a time, so that no two are wrong in ways that cancel out.
    for name in all {
        let arguments =
            format!("--copy-bytes {BYTES} --copy-kind d2h calls --calls 5 --mix {name}");
        let (_alive, process, truth) = bench.run(&arguments)?;
        assert_eq!(copied(&process), true_bytes(&truth, "copied_bytes")?, "{name}");
    }
    Ok(())
}

#[test]
fn copies_are_in_the_class_of_their_size() -> Result<()> {
    let bench = Bench::set_up()?;
    let bounds: [u64; SIZE_CLASSES - 1] = [4096, 65_536, 1 << 20, 1 << 24, 1 << 28];
    for (class, bound) in bounds.into_iter().enumerate() {
        for (bytes, class) in [(bound, class), (bound + 1, class + 1)] {
            let arguments = format!("--copy-bytes {bytes} calls --calls 7 --mix cudaMemcpyAsync");
            let (_alive, process, _) = bench.run(&arguments)?;
            let seen: Vec<_> = process
                .copies
                .iter()
                .map(|(kind, class, durations)| (*kind, usize::from(*class), durations.count()))
                .collect();
            assert_eq!(seen, [(CopyKind::H2d, class, 7)], "{bytes} bytes");
        }
    }
    Ok(())
}

/// Functions that the stand-in runtime has the driver do, as NVIDIA's does.
const NESTING: &str =
    "cudaMemcpy=3,cudaMemcpyAsync=2,cudaMalloc=3,cudaFree=1,cudaMallocAsync=2,cudaFreeAsync=1";

#[test]
fn what_the_driver_does_for_the_runtime_is_counted_once() -> Result<()> {
    let bench = Bench::set_up()?;
    for kind in ["h2d", "d2h", "d2d", "default"] {
        let (_alive, process, truth) = bench.run(&format!(
            "--script nest=1 --copy-kind {kind} --copy-bytes {BYTES} --alloc-bytes 5000 calls --calls 1200 --mix {NESTING}"
        ))?;
        let runtime = true_calls(&truth);
        let mut below = counted(&process);
        for (op, count) in &runtime {
            assert_eq!(below.remove(op), Some(*count), "{op:?}");
        }
        let is_driver = |id: &OpId| id.op().is_some_and(|op| op.api == Api::Driver);
        assert!(below.keys().all(is_driver), "{below:?}");
        assert_eq!(below.values().sum::<u64>(), runtime.values().sum::<u64>(), "one call each");
        assert_eq!(copied(&process), true_bytes(&truth, "copied_bytes")?);
        assert_eq!(process.memory.allocated, number(&truth, "/allocated_bytes"));
        assert_eq!(process.memory.freed, number(&truth, "/freed_bytes"));
    }
    Ok(())
}

/// Allocating functions and those that free what they give.
const PAIRS: [(&str, &str); 10] = [
    ("cudaMalloc", "cudaFree"),
    ("cudaMallocManaged", "cudaFree"),
    ("cudaMallocPitch", "cudaFree"),
    ("cudaMallocAsync", "cudaFreeAsync"),
    ("cudaMallocFromPoolAsync", "cudaFreeAsync"),
    ("cuMemAlloc", "cuMemFree"),
    ("cuMemAllocManaged", "cuMemFree"),
    ("cuMemAllocPitch", "cuMemFree"),
    ("cuMemAllocAsync", "cuMemFreeAsync"),
    ("cuMemAllocFromPoolAsync", "cuMemFreeAsync"),
];

#[test]
fn what_is_freed_is_gone_and_what_leaks_stays() -> Result<()> {
    let bench = Bench::set_up()?;
    for (allocate, free) in PAIRS {
        // Four threads give back all they took.
        let (_alive, process, truth) = bench.run(&format!(
            "--alloc-bytes 70001 calls --threads 4 --calls 300 --free-all --mix {allocate}=2,{free}=1"
        ))?;
        let memory = process.memory;
        assert_eq!(memory.allocated, number(&truth, "/allocated_bytes"), "{allocate}");
        assert_eq!((memory.freed, memory.live()), (memory.allocated, 0), "{allocate}, {free}");
        // Three in four stay.
        let (mut leaking, process, truth) = bench
            .run(&format!("--alloc-bytes 70001 calls --calls 500 --mix {allocate}=4,{free}=1"))?;
        let leaked = number(&truth, "/live_bytes");
        assert!(leaked >= 300 * 70_001, "{truth}");
        assert_eq!(process.memory.live(), leaked, "{allocate}, {free}");
        ensure!(leaking.end()?.success(), "the workload failed");
        let ended = bench.observed.process(leaking.pid())?.memory;
        assert_eq!((ended.allocated, ended.live()), (process.memory.allocated, 0), "at its end");
    }
    Ok(())
}

#[test]
fn memory_of_the_host_is_not_memory_of_the_device() -> Result<()> {
    let bench = Bench::set_up()?;
    let (_alive, process, _) = bench.run(
        "calls --calls 60 --mix cudaMallocHost=2,cudaHostAlloc=1,cudaFreeHost=1,cuMemAllocHost=1,cuMemHostAlloc=1",
    )?;
    assert_eq!((process.memory.allocated, process.memory.freed), (0, 0));
    assert_eq!(counted(&process).values().sum::<u64>(), 60);
    Ok(())
}

#[test]
fn a_call_that_fails_moves_no_bytes_and_is_an_error() -> Result<()> {
    let bench = Bench::set_up()?;
    let failing = "cudaMemcpy:ret=1@3;cudaMemcpy3DAsync:ret=700@2;cuMemcpyDtoH:ret=719@4;cudaMalloc:ret=2@3;\
        cudaFree:ret=1@5;cuMemAlloc:ret=2@2;cudaEventQuery:ret=600@2";
    let (_alive, process, truth) = bench.run(&format!(
        "--script {failing} --copy-bytes {BYTES} calls --calls 4200 --mix \
         cudaMemcpy=2,cudaMemcpy3DAsync=1,cuMemcpyDtoH=1,cudaMalloc=4,cudaFree=1,cuMemAlloc=1,cudaEventQuery=1"
    ))?;
    let seen: BTreeMap<(OpId, u32), u64> =
        process.errors.iter().map(|&(op, code, count)| ((op, code), count)).collect();
    let mut expected = BTreeMap::new();
    for (name, codes) in truth["errors"].as_object().context("no errors")? {
        for (code, count) in codes.as_object().context("no codes")? {
            expected.insert((op(name), code.parse()?), count.as_u64().context("no count")?);
        }
    }
    assert_eq!(seen, expected);
    assert_eq!(seen.len(), 6, "`not ready` is no error: {seen:?}");
    assert_eq!(copied(&process), true_bytes(&truth, "copied_bytes")?);
    assert_eq!(process.memory.allocated, number(&truth, "/allocated_bytes"));
    assert_eq!(process.memory.live(), number(&truth, "/live_bytes"));
    let of_class = |class| -> u64 {
        let ops = counted(&process).into_iter();
        ops.filter(|(id, _)| id.op().is_some_and(|op| op.class == class)).map(|(_, n)| n).sum()
    };
    let failed: u64 = seen
        .iter()
        .filter(|((id, _), _)| id.op().is_some_and(|op| op.class == Class::Memcpy))
        .map(|(_, count)| count)
        .sum();
    let timed: u64 = process.copies.iter().map(|(.., durations)| durations.count()).sum();
    assert_eq!(timed, of_class(Class::Memcpy) - failed, "copies by size");
    Ok(())
}
