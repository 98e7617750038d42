//! Several causes at once in known shares: each lands where it belongs, and under its culprit's name.

use std::process::Command;

use anyhow::{Result, ensure};
use gpucause_abi::state::Reason;
use gpucause_probes::Options;

use crate::disturbance::undisturbed;
use crate::observe::Observed;
use crate::shares::{Measured, check_culprit, started, waited};
use crate::workload::{StandIns, number};

/// At least 95 % of the time that was waited for these reasons was waited for `name`.
fn check_name(measured: &Measured, reasons: &[Reason], name: &str) -> Result<()> {
    let (of_name, of_all) = waited(&measured.process, reasons, name);
    ensure!(of_all > 100_000_000, "{of_all} ns of {reasons:?} show nothing");
    ensure!(
        of_name * 100 >= of_all * 95,
        "{name}: {of_name} of {of_all} ns of {reasons:?}: {:?}",
        measured.process.waits
    );
    Ok(())
}

/// Preemption is all that the only thread lost in shares that never block, and may be what it lost in others: schedstat
/// does not say.
fn check_preempted(measured: &Measured) -> Result<()> {
    let thread = &measured.truth()["threads"][0];
    let queued = |share: &str| number(thread, &format!("/spent/{share}/queued_ns"));
    let least = queued("host") + queued("launch");
    let most = number(thread, "/thread/schedstat/wait_ns");
    let (wall, seen) = (number(thread, "/thread/wall_ns"), measured.off(Reason::Preempted));
    ensure!(least * 100 > wall * 5, "preempted {least} of {wall} ns shows nothing");
    ensure!(
        seen + wall / 50 >= least && seen <= most + wall / 50,
        "preempted {seen} ns instead of {least} to {most} of {wall} ns"
    );
    Ok(())
}

#[test]
fn a_preemptor_a_lock_and_a_disk_get_what_each_took() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start(Options::default())?;
    undisturbed(&observed, || {
        let measured = Measured::take(
            &observed,
            &stand_ins,
            "split --seconds 4 --cpu 1 --burners 1 --burner-nice 6 --burner-name noisy-neighb \
             --shares host=50,launch=25,lock=15,io=10",
        )?;
        measured.check_shares()?;
        check_preempted(&measured)?;
        check_culprit(&measured.process, &measured.truth()["threads"][0], "noisy-neighb")?;
        check_name(&measured, &[Reason::Lock], "lock-holder")
    })
}

#[test]
fn what_happens_inside_calls_is_charged_to_their_phase() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start(Options::default())?;
    undisturbed(&observed, || {
        let measured = Measured::take(
            &observed,
            &stand_ins,
            "split --seconds 4 --threads 2 \
             --shares host=25,launch=20,call-lock=15,call-io=10,call-futex=10,sync-poll=10,sleep=10",
        )?;
        measured.check_shares()
    })
}

#[test]
fn every_way_to_block_gets_its_own_share() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start(Options::default())?;
    undisturbed(&observed, || {
        let measured = Measured::take(
            &observed,
            &stand_ins,
            "split --seconds 4 --round 40ms \
             --shares host=25,launch=10,page_fault=7,call-page_fault=3,net=10,sync-ioctl=15,call-pipe=10,lock=10,io=5",
        )?;
        measured.check_shares()?;
        check_name(&measured, &[Reason::Lock], "lock-holder")?;
        check_name(&measured, &[Reason::Net], "net-sender")?;
        check_name(&measured, &[Reason::Poll], "pipe-writer")
    })
}

#[test]
fn who_takes_the_cpu_for_a_moment_is_not_blamed_for_what_runs_after_it() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start(Options::default())?;
    let mut brief = stand_ins.start(
        "--wait --comm brief split --seconds 4 --round 3ms --cpu 1 --shares host=3,sleep=97",
    )?;
    let mut victim = started(
        &observed,
        &stand_ins,
        "contend --seconds 3 --spin 20us --cpu 1 --burner-name noisy-neighb",
    )?;
    brief.go()?;
    victim.result()?;
    let had = number(&brief.result()?["threads"][0], "/thread/cpu_ns");
    let process = observed.process(victim.pid())?;
    let (blamed, _) = waited(&process, &[Reason::Preempted], "brief");
    ensure!(blamed > 0, "it never came between: {:?}", process.waits);
    ensure!(blamed <= had + had / 50, "blamed for {blamed} ns, but {had} ns on the CPU");
    Ok(())
}

#[test]
fn who_leaves_the_cpu_last_is_not_blamed_for_what_ran_before_it_while_a_woken_thread_waited()
-> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start(Options::default())?;
    let mut brief = stand_ins.start(
        "--wait --comm brief split --seconds 4 --round 2ms --cpu 1 --shares host=5,sleep=95",
    )?;
    let mut victim = started(
        &observed,
        &stand_ins,
        "split --seconds 3 --round 2ms --cpu 1 --burners 3 --burner-name noisy-neighb \
         --shares launch=10,sleep=90",
    )?;
    // Others run for long before one that is nice gets the CPU after it was woken.
    for task in std::fs::read_dir(format!("/proc/{}/task", victim.pid()))? {
        let tid = task?.file_name();
        let status = Command::new("renice").args(["-n", "15", "-p"]).arg(tid).output()?.status;
        ensure!(status.success(), "{status}");
    }
    brief.go()?;
    victim.result()?;
    let process = observed.process(victim.pid())?;
    let (by_brief, waited_for) = waited(&process, &[Reason::Runqueue], "brief");
    ensure!(waited_for > 1_000_000_000, "{waited_for} ns show nothing");
    ensure!(by_brief * 8 <= waited_for, "blamed for {by_brief} of {waited_for} ns");
    Ok(())
}
