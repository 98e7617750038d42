use std::path::Path;
use std::sync::Arc;

use gpucause_abi::hist::{Histogram, slot_of};
use gpucause_abi::op::op_of_symbol;
use gpucause_abi::snapshot::{CallSnapshot, Comm, DispatcherSnapshot, Snapshot};
use gpucause_abi::{ProcId, Tgid, Tid};
use gpucause_engine::EngineInput;
use gpucause_trace::trace::{Start, Trace, Writer};

use super::*;

fn op(name: &str) -> OpId {
    op_of_symbol(name).unwrap()
}

/// The snapshot of a node with a rank that has made so many collectives, is in a call, and spent its time in a state.
fn node(rank: u32, made: u32, inflight: &str, state: Reason, seconds: u64) -> ProcessSnapshot {
    let phase = match inflight {
        "cudaMemcpy" => Phase::Memcpy,
        "cudaLaunchKernel" => Phase::Launch,
        "ncclAllReduce" => Phase::Nccl,
        _ => Phase::Sync,
    };
    let times = |count: u32| Histogram {
        sum: Nanos(u64::from(count) * 1000),
        max: Nanos(1000),
        slots: vec![(u16::try_from(slot_of(Nanos(1000))).unwrap(), count.into())].into(),
    };
    let calls = [("ncclAllReduce", made), ("ncclGroupStart", rank + 1)];
    let age = Nanos(seconds * 1_000_000_000);
    let mut time = TimeAccount::default();
    time.0[Phase::Sync as usize][State::Off(Reason::Poll).index()] = Nanos(50_000_000_000);
    time.0[phase as usize][State::Off(state).index()] = age;
    let thread = DispatcherSnapshot {
        tid: Tid(70 + rank),
        wall: time.total(),
        time,
        inflight: Some((op(inflight), age)),
    };
    let comm = Comm(*b"train\0\0\0\0\0\0\0\0\0\0\0");
    ProcessSnapshot {
        dispatches: true,
        rank: Some((rank, 3)),
        calls: calls.map(|(name, n)| CallSnapshot::unstalled(op(name), false, times(n))).into(),
        collectives: vec![(op("ncclAllReduce"), u64::from(made) * 4096)],
        dispatcher_time: time,
        dispatchers: vec![thread],
        ..ProcessSnapshot::new(ProcId(rank + 1), Tgid(70 + rank), comm)
    }
}

fn reading(nodes: &[ProcessSnapshot]) -> Reading {
    let mut reading = Reading::of("42");
    for (number, process) in nodes.iter().enumerate() {
        let mut writer =
            Writer::in_memory(&Start { node: "gpu".into(), ..Start::default() }).unwrap();
        let row = writer.process(process.id, process.tgid, "train").unwrap();
        let job = (SLURM_JOB.to_owned(), "42".to_owned());
        writer.describe_process(row, &[job]).unwrap();
        let snapshot = Snapshot { processes: vec![process.clone()], ..Snapshot::default() };
        writer.add_snapshot(&EngineInput::new(Arc::new(snapshot), 1.0), &[]).unwrap();
        let trace = Trace::of_bytes(Path::new("a node"), &writer.into_bytes().unwrap()).unwrap();
        reading.add(&format!("http://gpu-{number}:9400"), &trace).unwrap();
    }
    reading
}

#[test]
fn the_rank_that_has_not_entered_the_last_collective_is_named_with_what_it_does_instead() {
    let at = |seconds| {
        let waits = |rank| node(rank, 100, "cudaStreamSynchronize", Reason::Futex, seconds);
        reading(&[waits(0), node(1, 99, "cudaMemcpy", Reason::Stopped, seconds), waits(2)])
    };
    let report = JobReport::of(&at(60), at(62), 2.0, &[]);
    assert_eq!(report.outcome, Outcome::Found);
    assert_eq!(
        report.render(),
        "JOB  42: 3 of 3 ranks observed\n\
         LATE  Rank 1 of 3 (train, PID 71 on http://gpu-1:9400) has not entered collective 100, ncclAllReduce of 4096 bytes, for \
         which 2 ranks wait. It is in cudaMemcpy for 62 s: stopped for 100 % of the last 2.0 s.\n"
    );
}

#[test]
fn a_peer_that_waits_inside_the_collective_has_entered_it() {
    let at = |seconds| {
        let waits = |rank| node(rank, 99, "ncclAllReduce", Reason::Futex, seconds);
        reading(&[waits(0), node(1, 99, "cudaLaunchKernel", Reason::Futex, seconds), waits(2)])
    };
    let report = JobReport::of(&at(60), at(62), 2.0, &[]);
    let late: Vec<_> = report.late.iter().map(|own| (own.rank, own.number, own.bytes)).collect();
    assert_eq!(late, [(1, 100, Some(4096))]);
}

#[test]
fn numbers_of_calls_from_another_start_do_not_make_a_rank_late() {
    let at = |seconds| {
        let waits = |rank, made| node(rank, made, "cudaStreamSynchronize", Reason::Futex, seconds);
        reading(&[waits(0, 100), waits(1, 3), node(2, 120, "cudaMemcpy", Reason::Io, seconds)])
    };
    let report = JobReport::of(&at(60), at(62), 2.0, &[]);
    assert_eq!(report.late.iter().map(|late| late.rank).collect::<Vec<_>>(), [2]);
}

#[test]
fn a_job_that_advances_does_not_hang() {
    let at = |made, seconds| {
        let rank = |rank| node(rank, made, "cudaStreamSynchronize", Reason::Futex, seconds);
        reading(&[rank(0), node(1, made - 1, "cudaMemcpy", Reason::Stopped, seconds), rank(2)])
    };
    let report = JobReport::of(&at(100, 60), at(108, 62), 2.0, &[]);
    assert_eq!((report.outcome, report.advanced, report.late.len()), (Outcome::NothingFound, 8, 0));
}

#[test]
fn ranks_on_no_node_are_missing_and_an_unknown_job_is_not_observed() {
    let at = |seconds| reading(&[node(0, 100, "cudaStreamSynchronize", Reason::Futex, seconds)]);
    let report = JobReport::of(&at(60), at(62), 2.0, &[]);
    assert_eq!((report.outcome, &*report.missing), (Outcome::Found, &[1, 2][..]));
    let other = || Reading::of("43");
    assert_eq!(JobReport::of(&other(), other(), 2.0, &[]).outcome, Outcome::NotObserved);
}

#[test]
fn a_world_larger_than_any_is_reported_without_a_list_of_all_its_ranks() {
    let at = |seconds| {
        let own = node(0, 100, "cudaStreamSynchronize", Reason::Futex, seconds);
        reading(&[ProcessSnapshot { rank: Some((0, u32::MAX)), ..own }])
    };
    let report = JobReport::of(&at(60), at(62), 2.0, &[]);
    assert_eq!((report.ranks, report.missing.len(), report.late.len()), (1, 999, 0));
}

#[test]
fn a_worker_that_inherits_the_rank_of_its_trainer_is_no_rank() {
    let own = node(0, 100, "cudaStreamSynchronize", Reason::Futex, 60);
    let worker = ProcessSnapshot { parent: Some(ProcId(9)), dispatches: false, ..own };
    assert_eq!(reading(&[worker]).ranks.len(), 0);
}

#[test]
fn a_process_that_ended_is_none_of_the_ranks() {
    let at = |seconds| {
        let waits = |rank| node(rank, 100, "cudaStreamSynchronize", Reason::Futex, seconds);
        let own = node(1, 40, "cudaMemcpy", Reason::Futex, 60);
        let ended = ProcessSnapshot { ended: (seconds > 61).then_some(Nanos(1)), ..own };
        reading(&[waits(0), ended, waits(2)])
    };
    for seconds in [61, 62] {
        // At 61 s it has ended, and its node does not know.
        let report = JobReport::of(&at(60), at(seconds), 2.0, &[]);
        assert_eq!((report.ranks, &*report.missing, report.late.len()), (2, &[1][..], 0));
    }
}

#[test]
fn a_job_without_a_rank_is_answered_with_how_jobs_are_named() {
    let report = JobReport::of(&reading(&[]), reading(&[]), 2.0, &[]);
    assert_eq!(report.outcome, Outcome::NotObserved);
    let text = report.render();
    assert!(text.starts_with("JOB  42: 0 of 0 ranks observed\nNO RANK  "), "{text}");
    assert!(text.contains("name a job by its number in Slurm"), "{text}");
}
