//! Where dispatcher threads' time goes: that it adds up to wall time, and that culprits and holders are named.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use gpucause_abi::snapshot::{ProcessSnapshot, TimeAccount, Wait};
use gpucause_abi::state::{Phase, Reason, Relation, State};
use gpucause_probes::Options;

use crate::observe::{Observed, until};
use crate::workload::{StandIns, Workload, number};

/// How often a measurement is made that others on the CPUs can disturb.
const TRIES: usize = 3;
const SHORTEST: Duration = Duration::from_secs(2);

fn started(observed: &Observed, stand_ins: &StandIns, arguments: &str) -> Result<Workload> {
    let mut workload = stand_ins.start(&format!("{arguments} --wait --hold"))?;
    observed.wait_for_runtime(stand_ins)?;
    workload.go()?;
    Ok(workload)
}

fn off(account: &TimeAccount, reason: Reason) -> u64 {
    Phase::ALL.iter().map(|&phase| account.at(phase, State::Off(reason)).0).sum()
}

/// Time that a process waited for those of this name, and for anybody, for some reasons.
fn waited(process: &ProcessSnapshot, reasons: &[Reason], name: &str) -> (u64, u64) {
    let mut times = (0, 0);
    for wait in process.waits.iter().filter(|wait| reasons.contains(&wait.reason)) {
        times.1 += wait.total.0;
        if wait.on.to_text() == name {
            times.0 += wait.total.0;
        }
    }
    times
}

#[test]
fn every_nanosecond_of_a_dispatcher_is_in_one_cell() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start(Options::default())?;
    for arguments in [
        "contend --seconds 4 --spin 20us",
        "rate --per-second 50000 --seconds 4 --threads 2",
        "split --seconds 4 --threads 3 --shares host=30,launch=20,lock=15,io=10,sleep=5,call-futex=10,page_fault=5",
    ] {
        let workload = started(&observed, &stand_ins, arguments)?;
        let first = until(
            || Ok(observed.process(workload.pid()).ok().filter(|p| !p.dispatchers.is_empty())),
            || format!("`{arguments}` makes no calls"),
        )?;
        let (begin, before) = (Instant::now(), first.dispatchers.clone());
        let mut looks = 0u32;
        while begin.elapsed() < SHORTEST {
            looks += 1;
            let now = observed.process(workload.pid())?;
            for dispatcher in &now.dispatchers {
                let (sum, wall) = (dispatcher.time.total().0, dispatcher.wall.0);
                ensure!(
                    sum.abs_diff(wall) * 200 <= wall,
                    "`{arguments}`: {sum} ns in all cells, {wall} ns of wall time"
                );
            }
        }
        ensure!(looks > 10, "{looks} looks in {SHORTEST:?}");
        let elapsed = begin.elapsed();
        let after = observed.process(workload.pid())?.dispatchers;
        for thread in &before {
            let later = after.iter().find(|later| later.tid == thread.tid).expect("it lives on");
            let grown = later.wall.0 - thread.wall.0;
            let elapsed = u64::try_from(elapsed.as_nanos())?;
            // The two clocks were read some milliseconds apart.
            ensure!(grown.abs_diff(elapsed) < 50_000_000, "{grown} ns told, {elapsed} ns passed");
        }
    }
    Ok(())
}

#[test]
fn who_releases_a_lock_is_named_for_the_time_it_was_waited_for() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start(Options::default())?;
    let mut workload =
        started(&observed, &stand_ins, "block --kind lock --between-calls --each 5ms --count 200")?;
    let truth = workload.result()?;
    let process = observed.process(workload.pid())?;
    // The wait for the word to begin came before the first call, and is in no account.
    let (of_holder, of_all) = waited(&process, &[Reason::Futex], "lock-holder");
    ensure!(of_holder * 100 >= of_all * 95, "{of_holder} of {of_all} ns: {:?}", process.waits);
    let is_lock = |wait: &&Wait| wait.reason == Reason::Futex && wait.on.to_text() == "lock-holder";
    for wait in process.waits.iter().filter(is_lock) {
        ensure!(wait.relation == Relation::Thread, "{wait:?}");
        ensure!(wait.tgid == Some(process.tgid), "{wait:?}");
        ensure!(wait.held == wait.total, "a lock is held all the time: {wait:?}");
    }
    let blocked = number(&truth, "/blocked_offcpu_ns");
    ensure!(
        of_holder * 100 >= blocked * 90 && of_holder <= blocked,
        "{of_holder} ns waited for the holder, {blocked} ns blocked and queued"
    );
    Ok(())
}

#[test]
fn who_takes_the_cpu_is_named_for_the_time_it_was_taken() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start(Options::default())?;
    let measure = || -> Result<()> {
        let mut workload = started(
            &observed,
            &stand_ins,
            "contend --seconds 3 --spin 20us --burner-name noisy-neighb",
        )?;
        let truth = workload.result()?;
        let process = observed.process(workload.pid())?;
        let reasons = [Reason::Preempted, Reason::Runqueue];
        let (of_culprit, of_all) = waited(&process, &reasons, "noisy-neighb");
        ensure!(of_culprit * 100 >= of_all * 95, "{of_culprit} of {of_all}: {:?}", process.waits);
        let preempted = off(&process.dispatcher_time, Reason::Preempted);
        let wall = number(&truth, "/thread/wall_ns");
        let share = number(&truth, "/thread/offcpu_ns").abs_diff(preempted);
        ensure!(share * 50 <= wall, "{preempted} ns preempted: {truth}");
        Ok(())
    };
    let mut tries = 1;
    loop {
        match measure() {
            Err(error) if tries == TRIES => return Err(error),
            Err(_) => tries += 1,
            Ok(()) => return Ok(()),
        }
    }
}
