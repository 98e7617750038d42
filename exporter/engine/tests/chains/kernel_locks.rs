//! Waits for locks of the kernel.

use gpucause_abi::Tid;
use gpucause_abi::snapshot::Wait;
use gpucause_abi::state::{LockKind, Phase, Reason, Relation, State};
use gpucause_engine::chain::{Cause, Chain, Culprit, Effect, Severity};

use crate::host::{Host, lost};
use crate::process::{KERNEL, MS, Process, Task, US, comm};
use crate::scenarios::{self, FAULT_WINDOWS, steady, trained};

/// Makes all waits so far for locks of the kernel ones for this, held by this thread.
fn held(train: &mut Process, lock: LockKind, by: Option<u32>) {
    for wait in train.now.waits.iter_mut().filter(|wait| wait.reason == Reason::KernelLock) {
        (wait.lock, wait.holder) = (Some(lock), by.map(Tid));
    }
}

/// A trainer that waits for such a lock for most of its time.
pub(crate) fn contended(lock: LockKind, task: Task, by: Option<u32>) -> Host {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.waits(Reason::KernelLock, task, 700 * MS, 700 * MS);
        held(train, lock, by);
    });
    host
}

fn said(chain: &Chain, wanted: &[&str]) {
    for part in wanted {
        assert!(chain.sentence.contains(part), "{part}: {}", chain.sentence);
    }
}

#[test]
fn the_thread_that_holds_the_lock_of_the_address_space_is_named_with_the_lock() {
    let host = scenarios::locked_in_the_kernel();
    let chain = host.only(Cause::KernelLock);
    assert_eq!((chain.effect, chain.severity), (Effect::LaunchGap, Severity::High));
    let (comm, tid) = ("shm-loader".to_owned(), Some(117));
    assert_eq!(chain.culprit, Some(Culprit { pid: 100, comm, tid, ..Culprit::default() }));
    said(chain, &["mmap_lock", "held by shm-loader (thread 117)"]);
    assert!(chain.fix.contains("munmap"), "{}", chain.fix);
    lost(chain, u64::from(FAULT_WINDOWS) * 700 * MS);
    let of_loader = chain.losses.iter().find(|loss| loss.comm == "shm-loader").unwrap();
    assert_eq!(of_loader.seconds.round(), (f64::from(FAULT_WINDOWS) * 0.7).round());
}

#[test]
fn another_process_that_holds_a_files_lock_is_named_with_its_pid() {
    let task = Task("rsync", 900, Relation::Other);
    let host = contended(LockKind::Inode, task, None);
    let chain = host.only(Cause::KernelLock);
    said(chain, &["file or folder", "held by rsync (pid 900)"]);
    assert_eq!(chain.culprit.as_ref().map(|own| own.pid), Some(900));
}

#[test]
fn a_lock_whose_holder_is_not_known_has_no_culprit_and_is_lost_all_the_same() {
    let host = contended(LockKind::Mutex, KERNEL, None);
    let chain = host.only(Cause::KernelLock);
    assert!(chain.culprit.is_none() && chain.losses.is_empty(), "{chain:?}");
    said(chain, &["a mutex of the kernel", "held by others,"]);
    lost(chain, u64::from(FAULT_WINDOWS) * 700 * MS);
}

#[test]
fn the_holder_is_one_of_the_lock_that_is_named() {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        for thread in ["loader-0", "loader-1", "loader-2"] {
            let own = Task(thread, 100, Relation::Thread);
            train.waits(Reason::KernelLock, own, 200 * MS, 200 * MS);
        }
        held(train, LockKind::AddressSpace, Some(117));
        train.waits(Reason::KernelLock, Task("rsync", 900, Relation::Other), 300 * MS, 300 * MS);
        let of_rsync = |wait: &&mut Wait| wait.on == comm("rsync");
        for wait in train.now.waits.iter_mut().filter(of_rsync) {
            (wait.lock, wait.holder) = (Some(LockKind::Inode), None);
        }
    });
    let chain = host.only(Cause::KernelLock);
    said(chain, &["mmap_lock", "held by others,"]);
    assert_eq!(chain.culprit, None);
}

#[test]
fn launches_that_wait_for_the_drivers_own_lock_are_slow_for_it() {
    let mut host = trained();
    let driver = Task("memory-monitor", 901, Relation::Other);
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.calls("cudaLaunchKernel", 40, 5 * US, &[(Reason::KernelLock, 5 * MS)]);
        train.blame(Phase::Launch, Reason::KernelLock, driver, 200 * MS, 200 * MS);
        held(train, LockKind::Rwsem, None);
        train.waits(Reason::Futex, Task("frontend", 100, Relation::Thread), 800 * MS, 2 * MS);
    });
    let chain = host.only(Cause::KernelLock);
    assert_eq!(chain.effect, Effect::LaunchTail);
    said(chain, &["reader-writer lock", "memory-monitor"]);
}

#[test]
fn a_call_that_hangs_behind_a_lock_of_the_kernel_says_so() {
    let mut host = trained();
    for window in 1..=8 {
        host.run(1, |train| {
            train.on(100).rests(Phase::Launch, State::Off(Reason::KernelLock));
            train.in_call(Some(("cudaLaunchKernel", window * 2_000 * MS)));
        });
    }
    let chain = host.chains()[0];
    assert_eq!((chain.cause, chain.effect), (Cause::KernelLock, Effect::Hang));
}
