//! NCCL: who a process is among the ranks, what it sends, and how long its calls take.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use gpucause_abi::op::{Args, OPS, OpId};
use gpucause_abi::snapshot::ProcessSnapshot;
use gpucause_abi::state::{Phase, State};
use gpucause_probes::Options;
use serde_json::Value;

use crate::observe::{Observed, counted};
use crate::workload::{StandIns, Workload, op, true_calls};

const LIBRARY: &str = "libnccl.so.2";

/// Probes with the stand-in of NCCL attached.
fn set_up() -> Result<(StandIns, Observed, Workload)> {
    let stand_ins = StandIns::lay_out()?;
    let keeper = stand_ins.start("--hold calls --calls 0 --op ncclGroupStart")?;
    let observed = Observed::start(Options::default())?;
    observed.wait_for(&stand_ins, LIBRARY)?;
    Ok((stand_ins, observed, keeper))
}

/// A process that has made its calls and lives on, with the truth.
fn run(
    (stand_ins, observed): (&StandIns, &Observed),
    arguments: &str,
) -> Result<(Workload, ProcessSnapshot, Value)> {
    let mut workload = stand_ins.start(&format!("--hold {arguments}"))?;
    let truth = workload.result()?;
    let process = observed.process(workload.pid())?;
    Ok((workload, process, truth))
}

fn sent(process: &ProcessSnapshot) -> BTreeMap<OpId, u64> {
    process.collectives.iter().copied().collect()
}

fn true_bytes(truth: &Value) -> Result<BTreeMap<OpId, u64>> {
    let members = truth["nccl_bytes"].as_object().context("no bytes")?;
    Ok(members.iter().map(|(name, bytes)| (op(name), bytes.as_u64().unwrap_or(0))).collect())
}

fn collectives() -> Vec<&'static str> {
    let counts = |args| matches!(args, Args::Collective(..));
    OPS.iter().filter(|op| counts(op.args)).map(|op| op.name).collect()
}

#[test]
fn every_collective_reports_its_bytes_for_every_type() -> Result<()> {
    let (stand_ins, observed, _keeper) = set_up()?;
    let all = collectives();
    assert!(all.len() >= 20, "{all:?}");
    let mix = all.join(",");
    // ncclInt8 to the two kinds of float8.
    for data_type in 0..12 {
        let calls = all.len() * 4;
        let arguments = format!(
            "--nccl-type {data_type} --copy-bytes 8088 calls --threads 2 --calls {calls} --mix {mix}"
        );
        let (_alive, process, truth) = run((&stand_ins, &observed), &arguments)?;
        assert_eq!(sent(&process), true_bytes(&truth)?, "type {data_type}");
        assert!(sent(&process).values().all(|&bytes| bytes == 8 * 8088), "{:?}", sent(&process));
    }
    Ok(())
}

#[test]
fn a_process_is_the_rank_that_it_made_its_communicator_with() -> Result<()> {
    let (stand_ins, observed, _keeper) = set_up()?;
    let names =
        ["ncclCommInitRank", "ncclCommInitRankConfig", "ncclCommInitRankScalable", "ncclCommGrow"];
    for name in names {
        // A communicator that does not block says that its making goes on.
        for script in ["nest=0".to_owned(), format!("{name}:ret=7")] {
            let arguments =
                format!("--script {script} --ranks 1024 --rank 517 calls --calls 1 --op {name}");
            let (_alive, process, _) = run((&stand_ins, &observed), &arguments)?;
            assert_eq!(process.rank, Some((517, 1024)), "{name}, {script}");
        }
        let arguments =
            format!("--script {name}:ret=2 --ranks 8 --rank 3 calls --calls 1 --op {name}");
        let (_alive, process, _) = run((&stand_ins, &observed), &arguments)?;
        assert_eq!(process.rank, None, "{name} failed");
    }
    Ok(())
}

#[test]
fn calls_of_a_group_count_with_their_bytes_and_time() -> Result<()> {
    let (stand_ins, observed, _keeper) = set_up()?;
    let (_alive, process, truth) = run(
        (&stand_ins, &observed),
        "--script ncclGroupEnd:spin=200us;ncclAllReduce:spin=20us calls --calls 2000 --mix \
         ncclGroupStart=1,ncclAllReduce=8,ncclGroupEnd=1",
    )?;
    assert_eq!(counted(&process), true_calls(&truth));
    assert_eq!(sent(&process), true_bytes(&truth)?);
    let durations = |name| process.call_durations(op(name));
    for (name, calls, least) in [("ncclGroupEnd", 200, 200_000), ("ncclAllReduce", 1600, 20_000)] {
        let durations = durations(name);
        assert_eq!(durations.count(), calls);
        assert!(durations.sum.0 >= calls * least, "{name}: {} ns", durations.sum.0);
    }
    let all = durations("ncclGroupStart").sum.0
        + durations("ncclAllReduce").sum.0
        + durations("ncclGroupEnd").sum.0;
    let phase: u64 =
        State::all().map(|state| process.dispatcher_time.at(Phase::Nccl, state).0).sum();
    assert!(phase.abs_diff(all) * 50 <= all, "{phase} ns in the phase, {all} ns of calls");
    Ok(())
}

#[test]
fn a_collective_that_goes_on_has_sent_and_one_that_failed_has_not() -> Result<()> {
    let (stand_ins, observed, _keeper) = set_up()?;
    let (_alive, process, truth) = run(
        (&stand_ins, &observed),
        "--script ncclAllReduce:ret=7@2;ncclSend:ret=2@3 calls --calls 600 --mix ncclAllReduce,ncclSend",
    )?;
    assert_eq!(sent(&process), true_bytes(&truth)?);
    assert_eq!(process.errors, [(op("ncclSend"), 2, 100)]);
    Ok(())
}

#[test]
fn memory_that_nccl_takes_is_memory_of_the_device() -> Result<()> {
    let (stand_ins, observed, _keeper) = set_up()?;
    let (_alive, process, truth) = run(
        (&stand_ins, &observed),
        "--alloc-bytes 70001 calls --calls 500 --mix ncclMemAlloc=4,ncclMemFree=1",
    )?;
    assert_eq!(process.memory.allocated, 400 * 70_001);
    assert_eq!(Some(process.memory.live()), truth["live_bytes"].as_u64());
    Ok(())
}
