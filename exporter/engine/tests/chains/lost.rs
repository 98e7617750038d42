//! The law of lost time: chains name nearly all of what is shown as lost.

use gpucause_abi::Nanos;
use gpucause_abi::state::{Reason, Relation};
use gpucause_engine::chain::Cause;

use crate::host::{Host, WINDOW};
use crate::process::{KERNEL, Process, Task, US};
use crate::scenarios::{HOG, trained};

/// Most of the time that may be lost without a chain that has it.
const MOST_UNNAMED: f64 = 0.03;
/// Short waits for CPUs that the program's own threads have are no cause.
const MOST_FOR_OWN_CPUS: f64 = 0.05;
const WINDOWS: u32 = 20;

/// Thousandths of a thread's time, by what it loses them to.
type Losses = [(Reason, u64)];

fn lose(train: &mut Process, tid: u32, losses: &Losses, competitor: Task) {
    train.on(tid).launches(500, 5 * US);
    for &(reason, thousandths) in losses {
        let by = match reason {
            Reason::Preempted | Reason::Runqueue => competitor,
            Reason::Lock => Task("holder", 100, Relation::Thread),
            _ => KERNEL,
        };
        let held = if reason == Reason::Lock { WINDOW * thousandths / 1_000 } else { 0 };
        train.waits(reason, by, WINDOW * thousandths / 1_000, held);
    }
}

/// The share of the time that is shown as lost, and the share that chains took, once there can be chains.
fn shares(threads: &[&Losses], competitor: Task) -> (f64, f64) {
    let mut host = trained();
    let account = |host: &Host| {
        let time = host.processes[0].now.dispatcher_time;
        (time.all_lost().as_secs_f64(), time.total().as_secs_f64())
    };
    let before = account(&host);
    host.run(WINDOWS, |train| {
        for (tid, losses) in (100..).zip(threads) {
            lose(train, tid, losses, competitor);
        }
    });
    let after = account(&host);
    let lost = (after.0 - before.0) / (after.1 - before.1);
    let wall = (u64::from(WINDOWS) * WINDOW) as f64 / 1e9;
    (lost, taken(&host) / wall)
}

/// Lost to a cause, or to none.
fn taken(host: &Host) -> f64 {
    let own = host.engine.stalls().map(|stall| match stall.cause {
        Cause::Unexplained => stall.attributed,
        _ => stall.lost,
    });
    own.map(Nanos::as_secs_f64).sum()
}

#[test]
fn what_is_lost_is_named_but_for_three_percent_of_the_time() {
    let reasons = [
        Reason::Preempted,
        Reason::Runqueue,
        Reason::Lock,
        Reason::KernelLock,
        Reason::Io,
        Reason::PageFault,
    ];
    for reason in reasons {
        for thousandths in [10u64, 19, 25, 40, 60, 90, 150, 300, 600] {
            let (own, half) = ([(reason, thousandths)], [(reason, thousandths.div_ceil(2))]);
            for threads in [
                &[&own[..]][..],
                &[&own, &half],
                &[&own, &own],
                &[&half, &[], &own],
                &[&own, &own, &own, &own, &own, &own],
            ] {
                let (lost, taken) = shares(threads, HOG);
                assert!(
                    lost - taken <= MOST_UNNAMED,
                    "{reason:?} {thousandths} thousandths of {threads:?}: {lost} lost, {taken} named"
                );
            }
        }
    }
}

#[test]
fn little_waits_of_many_kinds_are_named_together() {
    for io in [0, 9, 19, 25] {
        for (page_fault, lock) in [(0, 0), (19, 19), (9, 30), (30, 9), (15, 15)] {
            let losses = [(Reason::Io, io), (Reason::PageFault, page_fault), (Reason::Lock, lock)];
            let (lost, taken) = shares(&[&losses], HOG);
            assert!(lost - taken <= MOST_UNNAMED, "{losses:?}: {lost} lost, {taken} named");
            assert!(taken <= lost + 1e-3, "{losses:?}: {lost} lost, {taken} named");
        }
    }
}

#[test]
fn what_threads_lose_to_different_causes_is_named() {
    let all = [
        [(Reason::Lock, 300), (Reason::Io, 19)],
        [(Reason::Io, 400), (Reason::PageFault, 50)],
        [(Reason::Preempted, 200), (Reason::PageFault, 19)],
    ];
    let threads: Vec<&Losses> = all.iter().map(|own| &own[..]).collect();
    let (lost, taken) = shares(&threads, HOG);
    assert!(lost - taken <= MOST_UNNAMED, "{lost} lost, {taken} named");
    // A cause of one thread is not named again for another.
    let same: [&Losses; 3] =
        [&[(Reason::Lock, 300)], &[(Reason::Lock, 290)], &[(Reason::Lock, 280)]];
    let (_, taken) = shares(&same, HOG);
    assert!(taken <= 0.31, "{taken} named");
}

#[test]
fn waits_for_cpus_that_the_program_itself_has_are_named_from_a_twentieth_on() {
    let own = Task("pt_autograd_0", 100, Relation::Thread);
    for thousandths in [10u64, 20, 30, 40, 50, 60, 80, 120] {
        let losses = [(Reason::Preempted, thousandths)];
        let (lost, taken) = shares(&[&losses, &losses], own);
        assert!(
            lost - taken <= MOST_FOR_OWN_CPUS,
            "{thousandths} thousandths: {lost} lost, {taken} named"
        );
    }
}
