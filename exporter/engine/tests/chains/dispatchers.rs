//! Several dispatcher threads of one process, which wait for each other, for another thread, or are kept from launching.

use gpucause_abi::state::{Phase, Reason, Relation, State};
use gpucause_engine::chain::{Cause, Severity};

use crate::host::WINDOW;
use crate::process::{MS, Process, Task, US};
use crate::scenarios::{FAULT_WINDOWS, HOLDER, trained};

#[test]
fn a_thread_that_waits_for_another_that_launches_loses_nothing() {
    let mut host = trained();
    // Forward on one thread, backward on the other, as PyTorch does it.
    host.run(20, |train| {
        train.on(100).rests(Phase::Sync, State::Off(Reason::GpuDriver)).launches(2_000, 5 * US);
        train.waits(
            Reason::Futex,
            Task("pt_autograd_0", 100, Relation::Thread),
            1_200 * MS,
            1_190 * MS,
        );
        train.on(101).launches(4_000, 5 * US);
        train.waits(Reason::Futex, Task("train", 100, Relation::Thread), 790 * MS, 780 * MS);
    });
    host.is_silent();
}

/// PyTorch far over the probe budget: in a window, some launches of one thread happen to be observed, and none of the other's.
#[test]
fn a_thread_whose_launches_are_not_observed_launches_all_the_same() {
    let mut host = trained();
    host.run(4, |train| {
        train.on(100).launches(2_000, 5 * US).rests(Phase::Sync, State::Off(Reason::GpuDriver));
        train.on(101).launches(4_000, 5 * US).rests(Phase::Host, State::Off(Reason::Poll));
    });
    for observed in [101, 100].repeat(5) {
        host.run(1, |train| {
            train.now.launches.unobserved.0 += WINDOW * 9 / 10;
            let waits = [(100, "pt_autograd_0", 1_200 * MS), (101, "train", 790 * MS)];
            for (tid, other, ns) in waits {
                train.on(tid).rests(Phase::Host, State::Running);
                train.launches(u64::from(tid == observed) * 10, 5 * US);
                train.waits(Reason::Futex, Task(other, 100, Relation::Thread), ns, ns - 10 * MS);
            }
        });
    }
    host.is_silent();
}

#[test]
fn threads_that_end_together_had_waited_for_each_other() {
    let mut host = trained();
    let forward_and_backward = |train: &mut Process, part: u64| {
        train.on(100).rests(Phase::Sync, State::Off(Reason::GpuDriver)).launches(1_000, 5 * US);
        let autograd = Task("pt_autograd_0", 100, Relation::Thread);
        train.waits(Reason::Futex, autograd, 1_000 * MS / part, 990 * MS / part);
        train.on(101).launches(1_000, 5 * US);
        let train_thread = Task("train", 100, Relation::Thread);
        train.waits(Reason::Futex, train_thread, 950 * MS / part, 940 * MS / part);
    };
    host.run(20, |train| forward_and_backward(train, 1));
    let end = host.now + WINDOW / 2;
    host.run_all(1, |processes, _| {
        forward_and_backward(&mut processes[0], 2);
        processes[0].fill(WINDOW / 2);
        processes[0].ends(end);
    });
    host.is_silent();
}

#[test]
fn a_thread_that_rarely_launched_holds_up_others_like_any_thread() {
    let mut host = trained();
    host.run(4, |train| {
        train.on(100).launches(2_000, 5 * US).rests(Phase::Sync, State::Off(Reason::GpuDriver));
        train.on(101).launches(1, 5 * US).rests(Phase::Sync, State::Off(Reason::GpuDriver));
    });
    host.run(FAULT_WINDOWS, |train| {
        train.now.launches.unobserved.0 += WINDOW * 9 / 10;
        train.on(101);
        train.on(100).launches(10, 5 * US);
        let holder = Task("lock-holder", 100, Relation::Thread);
        train.waits(Reason::Lock, holder, 900 * MS, 890 * MS);
    });
    assert_eq!(host.only(Cause::LockWait).severity, Severity::High);
}

#[test]
fn what_keeps_one_thread_from_launching_is_no_lock_for_the_other() {
    for unobserved in [0, WINDOW * 9 / 10] {
        one_thread_is_kept_from_launching(unobserved);
    }
}

fn one_thread_is_kept_from_launching(unobserved: u64) {
    let mut host = trained();
    host.run(2, |train| {
        train.on(100).launches(2_000, 5 * US);
        train.on(101).launches(4_000, 5 * US);
    });
    // While launches are not observed, none of this thread's is.
    let seen = u64::from(unobserved == 0);
    host.run(FAULT_WINDOWS, |train| {
        train.now.launches.unobserved.0 += unobserved;
        train.on(100).rests(Phase::Sync, State::Off(Reason::GpuDriver)).launches(2_000, 5 * US);
        let autograd = Task("pt_autograd_0", 100, Relation::Thread);
        train.waits(Reason::Futex, autograd, 1_200 * MS, 1_190 * MS);
        train.on(101).launches(4_000 * seen, 5 * US);
        train.off(Phase::Host, Reason::Preempted, 1_000 * MS);
        train.blame(
            Phase::Host,
            Reason::Preempted,
            Task("backup", 900, Relation::Other),
            1_000 * MS,
            0,
        );
        train.waits(Reason::Futex, Task("train", 100, Relation::Thread), 790 * MS, 780 * MS);
    });
    let chain = host.only(Cause::CpuPreemption);
    assert_eq!(chain.culprit.as_ref().unwrap().comm, "backup");
}

#[test]
fn two_threads_that_launch_are_both_held_up_by_a_third() {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        for tid in [100, 101] {
            train.on(tid).launches(1_000, 5 * US).rests(Phase::Host, State::Off(Reason::Poll));
            train.off(Phase::Host, Reason::Lock, 1_500 * MS);
            train.off(Phase::Host, Reason::Sleep, 300 * MS);
            train.blame(Phase::Host, Reason::Lock, HOLDER, 1_500 * MS, 1_500 * MS);
        }
    });
    assert_eq!(host.only(Cause::LockWait).severity, Severity::Critical);
}
