use super::*;

/// The page of a rank that has made so many collectives, is in a call, and spent its time in a state.
fn page(rank: u32, made: u32, inflight: &str, state: &str, seconds: u32) -> String {
    let own = format!("pid=\"{}\",comm=\"train\"", 70 + rank);
    let bytes = made * 4096;
    let phase = match inflight {
        "cudaMemcpy" => "memcpy",
        "cudaLaunchKernel" => "launch",
        "ncclAllReduce" => "nccl",
        _ => "sync",
    };
    format!(
        "gpucause_process_info{{{own},slurm_job=\"42\",rank=\"{rank}\",world_size=\"3\"}} 1\n\
         gpucause_cuda_call_duration_seconds_count{{{own},api=\"nccl\",op=\"ncclAllReduce\",cold=\"false\"}} {made}\n\
         gpucause_cuda_call_duration_seconds_count{{{own},api=\"nccl\",op=\"ncclGroupStart\",cold=\"false\"}} {rank}\n\
         gpucause_inflight_call_age_seconds{{{own},op=\"{inflight}\"}} {seconds}\n\
         gpucause_nccl_bytes_total{{{own},op=\"ncclAllReduce\"}} {bytes}\n\
         gpucause_dispatcher_seconds_total{{{own},phase=\"sync\",state=\"poll\"}} 50\n\
         gpucause_dispatcher_seconds_total{{{own},phase=\"{phase}\",state=\"{state}\"}} {seconds}\n"
    )
}

fn reading(pages: &[String]) -> Reading {
    let mut reading = Reading::of("42");
    for (number, page) in pages.iter().enumerate() {
        reading.add(&format!("http://gpu-{number}:9400"), page);
    }
    reading
}

#[test]
fn the_rank_that_has_not_entered_the_last_collective_is_named_with_what_it_does_instead() {
    let at = |seconds| {
        let waits = |rank| page(rank, 100, "cudaStreamSynchronize", "futex", seconds);
        reading(&[waits(0), page(1, 99, "cudaMemcpy", "stopped", seconds), waits(2)])
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
        let waits = |rank| page(rank, 99, "ncclAllReduce", "futex", seconds);
        reading(&[waits(0), page(1, 99, "cudaLaunchKernel", "futex", seconds), waits(2)])
    };
    let report = JobReport::of(&at(60), at(62), 2.0, &[]);
    let late: Vec<_> = report.late.iter().map(|own| (own.rank, own.number, own.bytes)).collect();
    assert_eq!(late, [(1, 100, Some(4096))]);
}

#[test]
fn numbers_of_calls_from_another_start_do_not_make_a_rank_late() {
    let at = |seconds| {
        let waits = |rank, made| page(rank, made, "cudaStreamSynchronize", "futex", seconds);
        reading(&[waits(0, 100), waits(1, 3), page(2, 120, "cudaMemcpy", "io", seconds)])
    };
    let report = JobReport::of(&at(60), at(62), 2.0, &[]);
    assert_eq!(report.late.iter().map(|late| late.rank).collect::<Vec<_>>(), [2]);
}

#[test]
fn a_job_that_advances_does_not_hang() {
    let at = |made, seconds| {
        let rank = |rank| page(rank, made, "cudaStreamSynchronize", "futex", seconds);
        reading(&[rank(0), page(1, made - 1, "cudaMemcpy", "stopped", seconds), rank(2)])
    };
    let report = JobReport::of(&at(100, 60), at(108, 62), 2.0, &[]);
    assert_eq!((report.outcome, report.advanced, report.late.len()), (Outcome::NothingFound, 8, 0));
}

#[test]
fn ranks_on_no_node_are_missing_and_an_unknown_job_is_not_observed() {
    let at = |seconds| reading(&[page(0, 100, "cudaStreamSynchronize", "futex", seconds)]);
    let report = JobReport::of(&at(60), at(62), 2.0, &[]);
    assert_eq!((report.outcome, &*report.missing), (Outcome::Found, &[1, 2][..]));
    let other = || Reading::of("43");
    assert_eq!(JobReport::of(&other(), other(), 2.0, &[]).outcome, Outcome::NotObserved);
}

#[test]
fn values_that_make_no_sense_count_for_nothing() {
    let own = "pid=\"7\",comm=\"train\"";
    let count = "gpucause_cuda_call_duration_seconds_count";
    let page = format!(
        "gpucause_process_info{{{own},slurm_job=\"42\",rank=\"0\",world_size=\"4294967295\"}} 1\n\
         {count}{{{own},op=\"ncclAllReduce\"}} NaN\n{count}{{{own},op=\"ncclAllReduce\"}} -Inf\n\
         {count}{{{own},op=\"ncclAllReduce\"}} 1e300\n"
    );
    let at = || reading(std::slice::from_ref(&page));
    let report = JobReport::of(&at(), at(), 2.0, &[]);
    // A process for which no time passes has ended.
    assert_eq!((report.ranks, report.missing.len(), report.late.len()), (0, 0, 0));
}

#[test]
fn a_process_that_ended_is_none_of_the_ranks() {
    let at = |seconds| {
        let waits = |rank| page(rank, 100, "cudaStreamSynchronize", "futex", seconds);
        reading(&[waits(0), page(1, 40, "cudaMemcpy", "futex", 60), waits(2)])
    };
    let report = JobReport::of(&at(60), at(62), 2.0, &[]);
    assert_eq!((report.ranks, &*report.missing, report.late.len()), (2, &[1][..], 0));
}

#[test]
fn a_job_without_a_rank_is_answered_with_how_jobs_are_named() {
    let report = JobReport::of(&reading(&[]), reading(&[]), 2.0, &[]);
    assert_eq!(report.outcome, Outcome::NotObserved);
    let text = report.render();
    assert!(text.starts_with("JOB  42: 0 of 0 ranks observed\nNO RANK  "), "{text}");
    assert!(text.contains("name a job by its number in Slurm"), "{text}");
}
