//! Where dispatcher threads' time goes: that it adds up to wall time, and that culprits and holders are named.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gpucause_abi::snapshot::{DispatcherSnapshot, ProcessSnapshot, TimeAccount, Wait};
use gpucause_abi::state::{Phase, Reason, Relation, State};
use gpucause_fake_cuda::clock::monotonic_ns;
use gpucause_probes::Options;

use crate::guest::is_emulated;
use crate::observe::{Observed, until};
use crate::shares::{Measured, check_culprit, started, waited};
use crate::workload::{StandIns, Workload, number};

/// How often a measurement is made that others on the CPUs can disturb.
const TRIES: usize = 3;
/// How long a workload is observed while it works.
const OBSERVATION: Duration = Duration::from_millis(700);

pub(crate) fn off(account: &TimeAccount, reason: Reason) -> u64 {
    Phase::ALL.iter().map(|&phase| account.at(phase, State::Off(reason)).0).sum()
}

/// A dispatcher may be busy with each of these, and with all of them at once.
const WORKLOADS: [(&str, &str); 9] = [
    ("spinning host code", "split --seconds 1.2 --round 5ms --shares host=98,launch=2"),
    ("a launch storm", "calls --threads 2 --calls 600000"),
    ("a wait per launch", "split --seconds 1.2 --round 2ms --shares launch=10,sync-poll=90"),
    ("locks", "split --seconds 1.2 --round 2ms --shares lock=50,call-lock=40"),
    ("reads from disk", "split --seconds 1.2 --round 5ms --shares io=50,call-io=40"),
    ("page faults", "split --seconds 1.2 --round 5ms --shares page_fault=50,call-page_fault=40"),
    ("sleep", "split --seconds 1.2 --round 5ms --shares sleep=95"),
    (
        "a CPU shared with a busy loop",
        "split --seconds 1.2 --round 5ms --shares launch=50 --cpu 1 --burners 1",
    ),
    (
        "everything",
        "split --seconds 2 --round 10ms --threads 4 --cpu 0 --burners 1 --shares \
         host=20,launch=15,sync-poll=15,lock=10,call-lock=5,io=5,call-io=5,page_fault=5,call-page_fault=5,sleep=10",
    ),
];

/// The dispatchers of a workload, and the times between which it was observed.
fn observe(
    observed: &Observed,
    workload: &Workload,
) -> Result<(Vec<DispatcherSnapshot>, [u64; 2])> {
    let before = monotonic_ns();
    let dispatchers = observed.process(workload.pid())?.dispatchers;
    Ok((dispatchers, [before, monotonic_ns()]))
}

/// Observes a workload for a while as it works.
fn observe_while_it_works(observed: &Observed, workload: &Workload) -> Result<()> {
    let (first, began) = until(
        || Ok(observe(observed, workload).ok().filter(|(dispatchers, _)| !dispatchers.is_empty())),
        || format!("process {} makes no calls", workload.pid()),
    )?;
    let mut observations = 0u32;
    let begin = Instant::now();
    while begin.elapsed() < OBSERVATION {
        observations += 1;
        for dispatcher in observe(observed, workload)?.0 {
            let (sum, wall) = (dispatcher.time.total().0, dispatcher.wall.0);
            ensure!(sum.abs_diff(wall) * 200 <= wall, "{sum} ns in all cells, {wall} ns of wall");
        }
    }
    let enough = if is_emulated() { 1 } else { 11 };
    ensure!(observations >= enough, "{observations} observations in {OBSERVATION:?}");
    let (last, ended) = observe(observed, workload)?;
    let (least, most) = (ended[0] - began[1], ended[1] - began[0]);
    for thread in &first {
        let later = last.iter().find(|later| later.tid == thread.tid).context("it is gone")?;
        let grown = later.wall.0 - thread.wall.0;
        ensure!(least <= grown && grown <= most, "{grown} ns reported, {least} to {most} passed");
    }
    Ok(())
}

#[test]
fn every_nanosecond_of_a_dispatcher_is_in_one_cell() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start(Options::default())?;
    let has_disk = !is_emulated();
    for (what, arguments) in WORKLOADS {
        if !has_disk && ["io=", "page_fault="].iter().any(|share| arguments.contains(share)) {
            continue;
        }
        let arguments =
            if is_emulated() { arguments.replace("600000", "6000") } else { arguments.to_owned() };
        let workload = started(&observed, &stand_ins, &arguments)?;
        let check = || {
            observe_while_it_works(&observed, &workload)?;
            let measured = Measured::of(&observed, workload)?;
            measured.check_sums()?;
            measured.check_end(&observed)
        };
        check().context(what)?;
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
    let (of_holder, of_all) = waited(&process, &[Reason::Lock], "lock-holder");
    ensure!(of_holder * 100 >= of_all * 95, "{of_holder} of {of_all} ns: {:?}", process.waits);
    let is_lock = |wait: &&Wait| wait.reason == Reason::Lock && wait.on.to_text() == "lock-holder";
    for wait in process.waits.iter().filter(is_lock) {
        ensure!(wait.relation == Relation::Thread, "{wait:?}");
        ensure!(wait.tgid == Some(process.tgid), "{wait:?}");
        let is_waiting = |thread: &DispatcherSnapshot| Some(thread.tid) == wait.tid;
        ensure!(process.dispatchers.iter().any(is_waiting), "a dispatcher waited: {wait:?}");
        ensure!(wait.held == wait.total, "a lock is held all the time: {wait:?}");
        ensure!(
            wait.holder.is_some() && wait.holder != wait.tid,
            "the holder is a thread: {wait:?}"
        );
    }
    let blocked = number(&truth, "/blocked_offcpu_ns");
    ensure!(
        of_holder * 100 >= blocked * 90 && of_holder <= blocked,
        "{of_holder} ns waited for the holder, {blocked} ns blocked and queued"
    );
    Ok(())
}

/// A workload that blocks so between its calls, when it has done so.
fn blocked(arguments: &str) -> Result<ProcessSnapshot> {
    Ok(blocked_and_truth(arguments)?.0)
}

/// Returns a workload that has blocked so between its calls, and its own account.
fn blocked_and_truth(arguments: &str) -> Result<(ProcessSnapshot, serde_json::Value)> {
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start(Options::default())?;
    let arguments = format!("block --between-calls {arguments}");
    let mut workload = started(&observed, &stand_ins, &arguments)?;
    let truth = workload.result()?;
    Ok((observed.process(workload.pid())?, truth))
}

#[test]
fn who_has_a_lock_that_is_polled_is_named_for_all_of_the_wait() -> Result<()> {
    let process = blocked("--kind polled --each 8ms --count 100")?;
    let (of_holder, of_all) = waited(&process, &[Reason::Lock, Reason::Futex], "lock-holder");
    // The first waits are nobody's, until it is known to be a lock; on an emulated CPU some later ones, too.
    ensure!(of_holder * 100 >= of_all * 95, "{of_holder} of {of_all} ns: {:?}", process.waits);
    // Less than it was held, where another program is in the way.
    ensure!(of_holder >= 300_000_000, "{of_holder} ns: {:?}", process.waits);
    let lost = off(&process.dispatcher_time, Reason::Lock);
    ensure!(lost * 100 >= of_all * 95, "{lost} ns are a lock's: {:?}", process.waits);
    let is_lock = |wait: &&Wait| wait.reason == Reason::Lock && wait.on.to_text() == "lock-holder";
    for wait in process.waits.iter().filter(is_lock) {
        let is_held = wait.held <= wait.total && wait.held.0 * 10 >= wait.total.0 * 9;
        ensure!(is_held, "the holder works all the time: {wait:?}");
        ensure!(wait.holder.is_some(), "{wait:?}");
    }
    Ok(())
}

#[test]
fn who_has_a_lock_that_is_polled_is_named_where_each_wait_times_out() -> Result<()> {
    // Beside other programs a turn of `unseen` takes several waits, and eight are kept.
    for (kind, turns, least) in [
        ("switched", "8ms --count 100", 97),
        ("spun", "8ms --count 100", 97),
        ("unseen", "500us --count 1000", 80),
    ] {
        let process = blocked(&format!("--kind {kind} --each {turns}"))?;
        let (of_holder, of_all) = waited(&process, &[Reason::Lock], "lock-holder");
        let shown = || format!("{kind}: {of_holder} of {of_all} ns: {:?}", process.waits);
        ensure!(of_holder * 100 >= of_all * least, shown());
        ensure!(of_holder >= 300_000_000, shown());
    }
    Ok(())
}

#[test]
fn a_wait_for_room_in_a_pipe_is_for_the_thread_that_reads_it() -> Result<()> {
    let process = blocked("--kind full_pipe --each 5ms --count 100")?;
    let (of_reader, of_all) = waited(&process, &[Reason::Poll], "pipe-reader");
    ensure!(of_reader * 100 >= of_all * 97, "{of_reader} of {of_all} ns: {:?}", process.waits);
    ensure!(of_reader >= 480_000_000, "{of_reader} ns: {:?}", process.waits);
    Ok(())
}

#[test]
fn a_wait_for_another_threads_work_is_for_no_lock_however_busy_that_is() -> Result<()> {
    let process = blocked("--kind work --each 8ms --count 100")?;
    ensure!(off(&process.dispatcher_time, Reason::Lock) == 0, "{:?}", process.waits);
    let waited = off(&process.dispatcher_time, Reason::Futex);
    ensure!(waited >= 600_000_000, "{waited} ns: {:?}", process.waits);
    Ok(())
}

/// A wakeup that finds a thread on its CPU, about to block, does not end the next time that it blocks.
#[test]
fn a_thread_that_was_woken_before_it_left_the_cpu_waits_for_no_cpu() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start(Options::default())?;
    let arguments = "block --kind woken --between-calls --each 40ms --count 40";
    let mut workload = started(&observed, &stand_ins, arguments)?;
    let account = || observed.process(workload.pid());
    until(|| Ok(account().ok()), || "it makes no calls".into())?;
    let (begin, mut most, mut observations) = (Instant::now(), 0, 0u32);
    while begin.elapsed() < Duration::from_millis(1_200) {
        most = most.max(off(&account()?.dispatcher_time, Reason::Runqueue));
        observations += 1;
    }
    let asleep = off(&account()?.dispatcher_time, Reason::Sleep);
    let truth = number(&workload.result()?, "/thread/schedstat/wait_ns");
    ensure!(most <= truth + 10_000_000, "{most} ns in the run queue, {truth} ns by the kernel");
    ensure!(asleep >= 600_000_000, "{asleep} ns asleep");
    ensure!(observations >= if is_emulated() { 1 } else { 20 }, "{observations} observations");
    Ok(())
}

#[test]
fn waits_that_time_out_and_that_nobody_ends_are_the_timers_and_none_is_lost() -> Result<()> {
    let (process, truth) = blocked_and_truth("--kind futex --each 5ms --count 300")?;
    let (of_timer, of_all) = waited(&process, &[Reason::Futex], "kernel");
    // The account also has the wait for its end, which has not ended.
    let in_account = off(&process.dispatcher_time, Reason::Futex);
    let queued = number(&truth, "/thread/schedstat/wait_ns");
    let blocked = number(&truth, "/blocked_offcpu_ns").saturating_sub(queued);
    ensure!(of_timer * 100 >= of_all * 99, "{of_timer} of {of_all} ns: {:?}", process.waits);
    ensure!(of_timer >= 1_000_000_000, "{of_timer} ns: {:?}", process.waits);
    ensure!(
        of_all <= in_account && of_all + blocked / 100 >= blocked,
        "{of_all} ns waited for somebody, {blocked} ns blocked, {in_account} ns in the account"
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
        check_culprit(&process, &truth, "noisy-neighb")?;
        let preempted = off(&process.dispatcher_time, Reason::Preempted);
        let wall = number(&truth, "/thread/wall_ns");
        let share = number(&truth, "/thread/offcpu_ns").abs_diff(preempted);
        // A switch takes an emulated processor a tenth of a millisecond.
        let of_wall = if is_emulated() { 20 } else { 50 };
        ensure!(share * of_wall <= wall, "{preempted} ns preempted: {truth}");
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
