//! Waits for locks of the kernel: that they are charged as such, whatever the thread was in, what the lock is for, and who had it.

use anyhow::{Result, ensure};
use gpucause_abi::snapshot::{ProcessSnapshot, Wait};
use gpucause_abi::state::{LockKind, Phase, Reason, Relation, State};
use gpucause_probes::Options;

use crate::observe::Observed;
use crate::shares::{started, waited};
use crate::workload::StandIns;

/// Name of the stand-in's thread that has the locks.
const HOLDER: &str = "kernel-holder";

/// A workload that blocks so between its calls, or in them, when it has done so.
fn contended(way: &str, place: &str) -> Result<ProcessSnapshot> {
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start(Options::default())?;
    observed.expect_programs(&["lock_begin", "lock_end"])?;
    let arguments = format!("block --kind {way} --{place} --each 5ms --count 40");
    let mut workload = started(&observed, &stand_ins, &arguments)?;
    workload.result()?;
    observed.process(workload.pid())
}

fn off(process: &ProcessSnapshot, reason: Reason) -> u64 {
    let time = |&phase| process.dispatcher_time.at(phase, State::Off(reason)).0;
    Phase::ALL.iter().map(time).sum()
}

/// Nearly all time that was lost is that of waits for this kind of lock, and for the thread that had it.
fn check(process: &ProcessSnapshot, kind: LockKind) -> Result<()> {
    let lost = off(process, Reason::KernelLock);
    let others = [Reason::Io, Reason::PageFault, Reason::Other].map(|reason| off(process, reason));
    ensure!(lost >= 60_000_000, "{lost} ns: {:?}", process.waits);
    ensure!(others.iter().sum::<u64>() * 10 <= lost, "{lost} ns, and {others:?}");
    let (of_holder, of_all) = waited(process, &[Reason::KernelLock], HOLDER);
    ensure!(of_holder * 100 >= of_all * 90, "{of_holder} of {of_all} ns: {:?}", process.waits);
    let is_lock = |wait: &&Wait| wait.reason == Reason::KernelLock && wait.on.to_text() == HOLDER;
    let waits: Vec<_> = process.waits.iter().filter(is_lock).collect();
    let of_kind = waits.iter().filter(|wait| wait.lock == Some(kind));
    let of_kind: u64 = of_kind.map(|wait| wait.total.0).sum();
    ensure!(of_kind * 100 >= of_holder * 95, "{of_kind} of {of_holder} ns: {waits:?}");
    for wait in waits {
        ensure!(wait.relation == Relation::Thread && wait.tgid == Some(process.tgid), "{wait:?}");
        ensure!(wait.holder.is_some() && wait.holder != wait.tid, "{wait:?}");
        ensure!(wait.held == wait.total, "it had the lock all the time: {wait:?}");
    }
    Ok(())
}

#[test]
fn a_system_call_that_waits_for_the_address_space_waits_for_the_thread_that_fills_memory()
-> Result<()> {
    check(&contended("kernel_mappings", "between-calls")?, LockKind::AddressSpace)
}

#[test]
fn a_page_fault_that_waits_for_the_address_space_is_no_lack_of_memory() -> Result<()> {
    let process = contended("kernel_faults", "between-calls")?;
    check(&process, LockKind::AddressSpace)
}

#[test]
fn a_write_to_a_file_that_another_thread_fills_waits_for_that_thread_and_no_disk() -> Result<()> {
    check(&contended("kernel_files", "between-calls")?, LockKind::Inode)
}

#[test]
fn a_call_of_the_library_that_waits_for_the_kernels_lock_is_charged_with_it() -> Result<()> {
    let process = contended("kernel_mappings", "inside-call")?;
    check(&process, LockKind::AddressSpace)?;
    let launch = process.dispatcher_time.at(Phase::Launch, State::Off(Reason::KernelLock)).0;
    let all = off(&process, Reason::KernelLock);
    ensure!(launch * 100 >= all * 95, "{launch} of {all} ns");
    Ok(())
}
