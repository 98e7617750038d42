//! Several faults at once: each is named, with its own share and its own seconds.

use gpucause_abi::ProcId;
use gpucause_abi::state::{Phase, Reason, Relation, State};
use gpucause_engine::chain::{Cause, Chain, Effect};
use gpucause_engine::settings::Settings;

use crate::host::{Host, WINDOW, lost, takes};
use crate::process::{KERNEL, MS, Process, Task, US};
use crate::scenarios::{FAULT_WINDOWS, HOG, HOLDER, WORKER, steady, trained};

/// The chain of a cause, one of `all` chains.
#[track_caller]
fn of(host: &Host, cause: Cause, all: usize) -> &Chain {
    let chains = host.chains();
    let causes: Vec<_> = chains.iter().map(|chain| chain.cause).collect();
    assert_eq!(causes.len(), all, "{causes:?}");
    chains.into_iter().find(|chain| chain.cause == cause).unwrap_or_else(|| panic!("{causes:?}"))
}

/// Asserts that the shares in an effect and the unexplained share add up to 1.
#[track_caller]
fn shares_add_up(host: &Host, effect: Effect) {
    let chains = host.chains();
    let own: Vec<_> = chains.iter().filter(|chain| chain.effect == effect).collect();
    let shares: f64 = own.iter().map(|chain| chain.explained).sum();
    assert!(shares <= 1.0 + 1e-9, "{shares}");
    for chain in own {
        let rest = chain.evidence.get(Chain::UNEXPLAINED).unwrap();
        assert!((shares + rest - 1.0).abs() < 1e-6, "{shares} and {rest}: {}", chain.sentence);
    }
}

fn locked(train: &mut Process, ns: u64) {
    train.waits(Reason::Lock, HOLDER, ns, ns * 98 / 100);
}

#[test]
fn a_lock_beside_a_busy_neighbour_is_named_as_well() {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.waits(Reason::Preempted, HOG, 750 * MS, 0);
        locked(train, 250 * MS);
    });
    let windows = u64::from(FAULT_WINDOWS);
    let preempted = of(&host, Cause::CpuPreemption, 2);
    lost(preempted, windows * 750 * MS);
    assert_eq!(preempted.culprit.as_ref().unwrap().comm, "hog");
    assert_eq!(host.chains()[0].cause, Cause::CpuPreemption, "the largest first");
    let lock = of(&host, Cause::LockWait, 2);
    lost(lock, windows * 245 * MS);
    assert_eq!(lock.culprit.as_ref().unwrap().comm, "lock-holder");
    assert!((preempted.explained - 0.75).abs() < 0.01, "{}", preempted.explained);
    assert!((lock.explained - 0.245).abs() < 0.01, "{}", lock.explained);
    shares_add_up(&host, Effect::LaunchGap);
}

#[test]
fn several_holders_of_a_lock_are_named_and_none_of_them_is_the_culprit() {
    let mut host = trained();
    let (metrics, logger) =
        (Task("metrics", 100, Relation::Thread), Task("logger", 100, Relation::Thread));
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.waits(Reason::Lock, metrics, 430 * MS, 420 * MS);
        train.waits(Reason::Lock, logger, 400 * MS, 390 * MS);
        train.waits(Reason::Lock, KERNEL, 50 * MS, 0);
    });
    let lock = host.only(Cause::LockWait);
    assert!(lock.culprit.is_none(), "{lock:?}");
    assert!(
        lock.sentence.contains("held by metrics (49 %) and logger (45 %) took"),
        "{}",
        lock.sentence
    );
    assert!(
        lock.fix.contains("what metrics and logger do while they hold the lock"),
        "{}",
        lock.fix
    );
}

#[test]
fn three_faults_are_three_chains() {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.waits(Reason::Preempted, HOG, 400 * MS, 0);
        train.waits(Reason::Io, KERNEL, 300 * MS, 0);
        locked(train, 200 * MS);
    });
    let windows = u64::from(FAULT_WINDOWS);
    lost(of(&host, Cause::CpuPreemption, 3), windows * 400 * MS);
    lost(of(&host, Cause::BlockIo, 3), windows * 300 * MS);
    lost(of(&host, Cause::LockWait, 3), windows * 196 * MS);
    shares_add_up(&host, Effect::LaunchGap);
}

#[test]
fn the_wait_for_a_cpu_after_a_lock_was_released_is_no_wait_for_the_lock() {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        locked(train, 400 * MS);
        train.waits(Reason::Runqueue, HOG, 200 * MS, 0);
    });
    lost(of(&host, Cause::LockWait, 2), u64::from(FAULT_WINDOWS) * 392 * MS);
    lost(of(&host, Cause::RunqueueWait, 2), u64::from(FAULT_WINDOWS) * 200 * MS);
}

#[test]
fn a_cpu_limit_and_a_lock_are_both_named() {
    let mut host = trained();
    host.throttled_cgroups = vec![(ProcId(1), 0)];
    host.run(1, steady);
    for _ in 0..FAULT_WINDOWS {
        host.throttled_cgroups[0].1 += 620 * MS;
        host.run(1, |train| {
            steady(train);
            train.off(Phase::Host, Reason::Preempted, 600 * MS);
            locked(train, 300 * MS);
        });
    }
    lost(of(&host, Cause::NoisyCgroup, 2), u64::from(FAULT_WINDOWS) * 600 * MS);
    lost(of(&host, Cause::LockWait, 2), u64::from(FAULT_WINDOWS) * 294 * MS);
}

#[test]
fn workers_that_do_not_keep_up_and_first_launches_are_both_named() {
    let mut host = trained();
    host.start_worker(0, 200);
    host.run_all(FAULT_WINDOWS, |processes, _| {
        steady(&mut processes[0]);
        processes[0].cold_launches(10, 40 * MS);
        processes[0].waits(Reason::Poll, WORKER, 500 * MS, 0);
        processes[1].works(&[(State::Running, 2_000 * MS)]);
    });
    takes(of(&host, Cause::ColdStart, 2), u64::from(FAULT_WINDOWS) * 400 * MS);
    takes(of(&host, Cause::DataloaderStarvation, 2), u64::from(FAULT_WINDOWS) * 500 * MS);
}

#[test]
fn time_without_a_cpu_in_first_launches_is_not_charged_to_them_as_well() {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        train.on(100).launches(2_000, 200 * US);
        train.calls("cudaStreamSynchronize", 20, 100 * US, &[(Reason::GpuDriver, 40 * MS)]);
        train.calls_of("cudaLaunchKernel", true, 5, 60 * MS, &[(Reason::Preempted, 40 * MS)]);
        train.waits(Reason::Preempted, HOG, 200 * MS, 0);
    });
    takes(of(&host, Cause::ColdStart, 2), u64::from(FAULT_WINDOWS) * 300 * MS);
    lost(of(&host, Cause::CpuPreemption, 2), u64::from(FAULT_WINDOWS) * 400 * MS);
}

#[test]
fn a_front_end_that_parses_a_little_of_each_wait_holds_no_lock_for_an_idle_server() {
    let mut host = trained();
    let frontend = Task("frontend", 100, Relation::Thread);
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        // 20 requests: 2 ms of each 60 ms.
        train.waits(Reason::Futex, frontend, 1_080 * MS, 40 * MS);
    });
    host.is_silent();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.waits(Reason::Futex, frontend, 600 * MS, 40 * MS);
        train.waits(Reason::Preempted, HOG, 400 * MS, 0);
    });
    lost(host.only(Cause::CpuPreemption), u64::from(FAULT_WINDOWS) * 400 * MS);
}

#[test]
fn a_lock_is_found_beside_waits_for_a_thread_that_idles() {
    let mut host = trained();
    let frontend = Task("frontend", 100, Relation::Thread);
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.waits(Reason::Futex, frontend, 700 * MS, 20 * MS);
        locked(train, 200 * MS);
    });
    lost(host.only(Cause::LockWait), u64::from(FAULT_WINDOWS) * 196 * MS);
}

#[test]
fn the_unexplained_share_is_reported() {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.waits(Reason::Io, KERNEL, 400 * MS, 0).waits(Reason::Poll, KERNEL, 500 * MS, 0);
    });
    let chain = host.only(Cause::BlockIo);
    assert!((chain.explained - 4.0 / 9.0).abs() < 0.01, "{}", chain.explained);
    assert!(
        chain.sentence.contains("56 % of the gaps between launches are unexplained."),
        "{}",
        chain.sentence
    );
    shares_add_up(&host, Effect::LaunchGap);
}

#[test]
fn what_a_cause_that_is_charged_to_slow_launches_took_of_the_gaps_is_not_unexplained() {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.calls("cudaLaunchKernel", 40, 5 * US, &[(Reason::Runqueue, 5 * MS)]);
        train.blame(Phase::Launch, Reason::Runqueue, HOG, 200 * MS, 0);
        train.waits(Reason::Runqueue, HOG, 240 * MS, 0);
        locked(train, 360 * MS);
        train.waits(Reason::Poll, KERNEL, 60 * MS, 0);
    });
    let waits = of(&host, Cause::RunqueueWait, 2);
    assert_eq!(waits.effect, Effect::LaunchTail);
    let lock = of(&host, Cause::LockWait, 2);
    assert_eq!(lock.effect, Effect::LaunchGap);
    // 60 ms of the gaps of 660 ms are in poll.
    let rest = lock.evidence.get(Chain::UNEXPLAINED).unwrap();
    assert!((rest - 0.091).abs() < 0.005, "{rest}: {}", lock.sentence);
}

#[test]
fn what_a_cause_that_is_charged_to_gaps_took_of_slow_launches_is_not_unexplained() {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        // Half a window without a CPU between launches, but little of the tail.
        train.calls("cudaLaunchKernel", 40, 5 * US, &[(Reason::Lock, 5 * MS)]);
        train.blame(Phase::Launch, Reason::Lock, HOLDER, 200 * MS, 200 * MS);
        train.calls("cudaLaunchKernel", 20, 5 * US, &[(Reason::Preempted, 4 * MS)]);
        train.blame(Phase::Launch, Reason::Preempted, HOG, 80 * MS, 0);
        train.waits(Reason::Preempted, HOG, 800 * MS, 0);
    });
    assert_eq!(of(&host, Cause::CpuPreemption, 2).effect, Effect::LaunchGap);
    let lock = of(&host, Cause::LockWait, 2);
    assert_eq!(lock.effect, Effect::LaunchTail);
    assert!(!lock.sentence.contains("unexplained"), "{}", lock.sentence);
}

#[test]
fn the_part_of_a_tail_that_no_cause_explains_is_unexplained() {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.calls("cudaLaunchKernel", 40, 5 * US, &[(Reason::Preempted, 6 * MS)]);
        train.blame(Phase::Launch, Reason::Preempted, HOG, 240 * MS, 0);
        train.launches(40, 4 * MS);
    });
    let preempted = of(&host, Cause::CpuPreemption, 2);
    assert!((preempted.explained - 0.6).abs() < 0.05, "{}", preempted.explained);
    let rest = of(&host, Cause::Unexplained, 2);
    let share = rest.evidence.get(Chain::UNEXPLAINED).unwrap();
    assert!((preempted.explained + share - 1.0).abs() < 1e-9, "{share}");
    assert!(rest.sentence.contains("For 40 % of their excess time"), "{}", rest.sentence);
    assert!(rest.fix.contains("a full launch queue looks the same"), "{}", rest.fix);
    assert_eq!(rest.lost_seconds, 0.0);
}

#[test]
fn launches_that_were_slow_without_a_cpu_are_explained_when_slow_copies_are_charged_with_it() {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.calls("cudaLaunchKernel", 40, 5 * US, &[(Reason::Preempted, 5 * MS)]);
        train.blame(Phase::Launch, Reason::Preempted, HOG, 200 * MS, 0);
        train.calls("cudaMemcpyAsync", 2_000, 10 * US, &[]);
        train.calls("cudaMemcpyAsync", 60, 10 * US, &[(Reason::Preempted, 10 * MS)]);
        train.blame(Phase::Memcpy, Reason::Preempted, HOG, 600 * MS, 0);
    });
    let chain = host.only(Cause::CpuPreemption);
    assert_eq!(chain.effect, Effect::CopyTail);
    lost(chain, u64::from(FAULT_WINDOWS) * 800 * MS);
}

#[test]
fn a_full_launch_queue_is_suggested_only_where_launches_waited_for_nothing_else() {
    for (reason, task, suggested) in [
        (Reason::GpuDriver, KERNEL, true),
        (Reason::Futex, Task("frontend", 100, Relation::Thread), false),
    ] {
        let mut host = trained();
        host.run(FAULT_WINDOWS, |train| {
            steady(train);
            train.calls("cudaLaunchKernel", 40, 5 * US, &[(reason, 5 * MS)]);
            train.blame(Phase::Launch, reason, task, 200 * MS, 0);
        });
        let chain = host.only(Cause::Unexplained);
        assert_eq!(chain.fix.contains("full launch queue"), suggested, "{reason:?}: {}", chain.fix);
    }
}

#[test]
fn a_low_clock_takes_no_more_than_the_waits_for_the_gpu() {
    let mut host = Host::training();
    host.throttled_gpus = vec![("GPU-1", 0.0)];
    host.run(8, steady);
    host.throttled_gpus = vec![("GPU-1", 0.9)];
    host.run(FAULT_WINDOWS, |train| {
        train.on(100).launches(200, 5 * US);
        train.calls("cudaStreamSynchronize", 20, 100 * US, &[(Reason::GpuDriver, 55 * MS)]);
        locked(train, 600 * MS);
    });
    let clock = of(&host, Cause::ClockThrottling, 2);
    takes(clock, u64::from(FAULT_WINDOWS) * 1_102 * MS);
    lost(of(&host, Cause::LockWait, 2), u64::from(FAULT_WINDOWS) * 588 * MS);
}

#[test]
fn what_was_lost_before_a_chain_is_named_is_added_when_it_is_named() {
    let mut host = trained();
    // Too little to be named, then enough.
    for ns in [30, 35, 39, 700, 700] {
        host.run(1, |train| {
            steady(train);
            train.waits(Reason::Preempted, HOG, ns * MS, 0);
        });
    }
    let chain = host.only(Cause::CpuPreemption);
    let exact = 0.030 + 0.035 + 0.039 + 1.4;
    assert!((chain.lost_seconds - exact).abs() < 1e-3, "{}", chain.lost_seconds);
    let losses: f64 = chain.losses.iter().map(|loss| loss.seconds).sum();
    assert!((losses - exact).abs() < 1e-3, "{losses}");
}

#[test]
fn what_a_chain_lost_while_it_was_not_seen_is_added_when_it_is_seen_again() {
    let mut host = trained();
    for ns in [700, 30, 30, 700] {
        host.run(1, |train| {
            steady(train);
            train.waits(Reason::Io, KERNEL, ns * MS, 0);
        });
    }
    let chain = host.only(Cause::BlockIo);
    assert!((chain.lost_seconds - 1.46).abs() < 1e-3, "{}", chain.lost_seconds);
}

#[test]
fn a_chain_that_is_named_late_is_not_charged_with_what_another_was_charged_with() {
    let mut host = trained();
    for window in 1..=6 {
        host.run(1, |train| {
            train.on(100).rests(Phase::Launch, State::Off(Reason::Lock));
            train.blame(Phase::Launch, Reason::Lock, HOLDER, WINDOW, WINDOW);
            train.in_call(Some(("cudaLaunchKernel", window * WINDOW)));
        });
    }
    let lost: f64 = host.chains().iter().map(|chain| chain.lost_seconds).sum();
    assert!((lost - 12.0).abs() < 0.01, "{lost}: {:#?}", host.chains());
}

#[test]
fn a_hang_is_charged_from_its_beginning_however_long_ago_that_is() {
    let mut host = Host::with(Settings { hang_seconds: 30.0, ..Settings::default() });
    host.start("train", 100);
    host.run(8, steady);
    // It is unknown why the thread waits, so only the hang is reported.
    for window in 1..=20 {
        host.run(1, |train| {
            train.on(100).rests(Phase::Launch, State::Off(Reason::Futex));
            train.in_call(Some(("cudaLaunchKernel", window * WINDOW)));
        });
    }
    let chains = host.chains();
    let hang = chains.iter().find(|chain| chain.effect == Effect::Hang).unwrap();
    assert_eq!(hang.cause, Cause::Unexplained);
    takes(hang, 20 * WINDOW);
}
