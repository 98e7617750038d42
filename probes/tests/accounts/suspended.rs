//! Threads that somebody suspends: the time is neither a page fault nor lost.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use gpucause_abi::snapshot::{ProcessSnapshot, TimeAccount};
use gpucause_abi::state::{Phase, Reason, State};
use gpucause_probes::Options;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cgroup::Cgroup;
use crate::observe::{Observed, until};
use crate::workload::{StandIns, Workload};

const SUSPENDED: Duration = Duration::from_millis(500);
/// A thread that never sleeps by itself.
const BUSY: &str = "--hold block --kind spin --between-calls --each 10ms";

/// A hierarchy whose cgroups can be frozen: where it is mounted, the file that does it, and what freezes and thaws.
type Freezer = (PathBuf, &'static str, [&'static str; 2]);

/// Returns the hierarchies of version 1 and 2 that the host has.
fn freezers() -> Result<Vec<Freezer>> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let rows = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let freezer = |row: Vec<&str>| match row[..] {
        [_, dir, "cgroup2", ..] => Some((dir.into(), "cgroup.freeze", ["1", "0"])),
        [_, dir, "cgroup", options, ..] if options.split(',').any(|own| own == "freezer") => {
            Some((dir.into(), "freezer.state", ["FROZEN", "THAWED"]))
        }
        _ => None,
    };
    Ok(rows.filter_map(freezer).collect())
}

fn time(account: &TimeAccount, reason: Reason) -> u64 {
    Phase::ALL.iter().map(|&phase| account.at(phase, State::Off(reason)).0).sum()
}

fn all_threads(process: &ProcessSnapshot, reason: Reason) -> u64 {
    time(&process.dispatcher_time, reason)
}

fn signal(workload: &Workload, signal: Signal) -> Result<()> {
    Ok(kill(Pid::from_raw(workload.pid().try_into()?), signal)?)
}

/// Waits until the thread of the workload has launched.
fn launching(observed: &Observed, workload: &Workload) -> Result<()> {
    let launches = || {
        let process = observed.process(workload.pid()).ok();
        Ok(process.filter(|process| !process.dispatchers.is_empty()).map(|_| ()))
    };
    until(launches, || "the workload does not launch".into())
}

/// Suspends a busy thread and checks what its time is charged to, while it is suspended and after.
fn check(
    observed: &Observed,
    stand_ins: &StandIns,
    reason: Reason,
    suspend: impl Fn(&Workload, bool) -> Result<()>,
) -> Result<()> {
    let mut workload = stand_ins.start(&format!("{BUSY} --count 100"))?;
    let pid = workload.pid();
    launching(observed, &workload)?;
    suspend(&workload, true)?;
    let off = |process: &ProcessSnapshot| {
        all_threads(process, reason) + all_threads(process, Reason::PageFault)
    };
    let long =
        || Ok(Some(observed.process(pid)?).filter(|p| u128::from(off(p)) > SUSPENDED.as_nanos()));
    let during = until(long, || "the thread is not suspended".into());
    suspend(&workload, false)?;
    workload.result()?;
    for process in [during?, observed.process(pid)?] {
        let [own, faults] = [reason, Reason::PageFault].map(|reason| all_threads(&process, reason));
        ensure!(faults < own / 50, "{reason:?} for {own} ns, {faults} ns in page faults");
        let lost = process.dispatcher_time.lost(State::Off(reason)).0;
        ensure!(lost == 0, "{lost} ns lost");
    }
    Ok(())
}

#[test]
fn a_busy_thread_that_is_stopped_or_frozen_is_in_no_page_fault_and_loses_nothing() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let _keeper = stand_ins.start("idle")?;
    let observed = Observed::start(Options::default())?;
    observed.wait_for_runtime(&stand_ins)?;
    check(&observed, &stand_ins, Reason::Stopped, |workload, stop| {
        signal(workload, if stop { Signal::SIGSTOP } else { Signal::SIGCONT })
    })?;
    let freezers = freezers()?;
    ensure!(!freezers.is_empty(), "the host has no hierarchy of cgroups");
    for (root, file, [freeze, thaw]) in freezers {
        let cgroup = Cgroup::below(&root)?;
        check(&observed, &stand_ins, Reason::Frozen, |workload, frozen| {
            cgroup.add(workload.pid())?;
            cgroup.set(file, if frozen { freeze } else { thaw })
        })?;
    }
    Ok(())
}

#[test]
fn a_thread_whose_sibling_dumps_core_is_in_no_page_fault() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let _keeper = stand_ins.start("idle")?;
    let observed = Observed::start(Options::default())?;
    observed.wait_for_runtime(&stand_ins)?;
    let plain = stand_ins.command(&format!("{BUSY} --count 10000"));
    let mut dumping = Command::new("sh");
    dumping.current_dir(stand_ins.dir());
    dumping.args(["-c", "ulimit -c unlimited; exec \"$0\" \"$@\""]);
    dumping.arg(plain.get_program()).args(plain.get_args());
    let mut workload = Workload::start(dumping)?;
    launching(&observed, &workload)?;
    // The main thread gets it; the other one launches.
    signal(&workload, Signal::SIGABRT)?;
    workload.end()?;
    let process = observed.process(workload.pid())?;
    let [dump, faults] =
        [Reason::CoreDump, Reason::PageFault].map(|reason| all_threads(&process, reason));
    ensure!(dump > 0, "no core was dumped, or the wait for it went elsewhere: {process:?}");
    ensure!(faults < dump / 10, "{dump} ns in the dump, {faults} ns in page faults");
    Ok(())
}
