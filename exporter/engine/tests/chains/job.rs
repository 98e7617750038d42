//! Ranks, GPUs and calls that do not return.

use gpucause_abi::state::{Phase, Reason, State};
use gpucause_engine::chain::{Cause, Culprit, Effect, Severity};

use crate::host::{Host, WINDOW, lost, takes};
use crate::process::{MS, Process, US};
use crate::scenarios::{self, FAULT_WINDOWS, steady, trained};

#[test]
fn every_rank_that_waits_names_the_one_that_is_late() {
    let host = scenarios::late_rank();
    let chains = host.chains();
    let mut victims: Vec<_> = chains.iter().map(|chain| chain.victim.pid).collect();
    victims.sort_unstable();
    assert_eq!(victims, [100, 101, 103]);
    for chain in chains {
        assert_eq!((chain.cause, chain.severity), (Cause::NcclLateRank, Severity::High));
        assert_eq!(
            chain.culprit,
            Some(Culprit { pid: 102, comm: "train".into(), ..Culprit::default() })
        );
        takes(chain, u64::from(FAULT_WINDOWS) * 800 * MS);
    }
}

fn rank(process: &mut Process, waits: u64) {
    let tid = process.now.tgid.0;
    process.on(tid).launches(1_000, 5 * US).calls("ncclAllReduce", 10, waits / 10, &[]);
}

#[test]
fn ranks_that_wait_for_the_network_together_blame_none_of_them() {
    let mut host = Host::new();
    for number in 0..4 {
        host.start("train", 100 + number).now.rank = Some((number, 4));
    }
    host.run_all(20, |processes, _| processes.iter_mut().for_each(|p| rank(p, 900 * MS)));
    host.is_silent();
}

#[test]
fn ranks_that_make_other_collectives_do_not_wait_for_each_other() {
    let mut host = Host::new();
    for number in 0..4 {
        host.start("train", 100 + number).now.rank = Some((number, 4));
    }
    host.run_all(20, |processes, _| {
        rank(&mut processes[0], 100 * MS);
        rank(&mut processes[1], 900 * MS);
        for process in &mut processes[2..] {
            rank(process, 450 * MS);
            rank(process, 450 * MS);
        }
    });
    host.is_silent();
}

#[test]
fn two_jobs_of_the_same_size_are_not_one() {
    let mut host = Host::new();
    for number in 0..4 {
        host.start("train", 100 + number).now.rank = Some((number % 2, 2));
    }
    host.run_all(20, |processes, _| {
        rank(&mut processes[0], 900 * MS);
        rank(&mut processes[1], 900 * MS);
        rank(&mut processes[2], 100 * MS);
        rank(&mut processes[3], 100 * MS);
    });
    host.is_silent();
}

#[test]
fn gpus_below_their_clock_explain_a_drop_of_a_thread_that_waits_for_them() {
    let host = scenarios::slow_clock();
    let chain = host.only(Cause::ClockThrottling);
    assert_eq!((chain.effect, chain.severity), (Effect::LaunchRateDrop, Severity::Critical));
    assert!((chain.explained - 0.8).abs() < 0.01, "{}", chain.explained);
    // Half as many launches: half the time.
    takes(chain, u64::from(FAULT_WINDOWS) * WINDOW / 2);
}

#[test]
fn one_slow_gpu_of_several_explains_nothing_as_nobody_knows_whose_it_is() {
    let mut host = Host::training();
    host.run(8, steady);
    host.throttled_gpus = vec![("GPU-1", 1.0), ("GPU-2", 0.0)];
    host.run(FAULT_WINDOWS, |train| {
        train.on(100).launches(1_000, 5 * US);
        train.calls("cudaStreamSynchronize", 20, 100 * US, &[(Reason::GpuDriver, 80 * MS)]);
    });
    host.is_silent();
}

#[test]
fn a_slow_clock_without_fewer_launches_is_no_chain() {
    let mut host = trained();
    host.throttled_gpus = vec![("GPU-1", 1.0)];
    host.run(20, steady);
    host.is_silent();
}

#[test]
fn a_launch_that_does_not_return_hangs() {
    let host = scenarios::hung();
    let hangs: Vec<_> = host.chains().into_iter().filter(|c| c.effect == Effect::Hang).collect();
    let [chain] = hangs.as_slice() else { panic!("{hangs:#?}") };
    assert_eq!((chain.cause, chain.severity), (Cause::LockWait, Severity::Critical));
    assert!(chain.id.ends_with("-hang"), "{}", chain.id);
    assert_eq!(chain.evidence.get("age_seconds"), Some(16.0));
    // Reported after ten seconds, and charged from its beginning.
    lost(chain, 8 * WINDOW);
}

#[test]
fn a_process_that_is_suspended_in_a_call_does_not_hang_and_neither_does_it_after() {
    for reason in [Reason::Frozen, Reason::Stopped, Reason::CoreDump] {
        let mut host = trained();
        for window in 1..=10 {
            host.run(1, |train| {
                train.on(100).in_call(Some(("cudaLaunchKernel", window * WINDOW)));
                let state = if window > 8 { State::Running } else { State::Off(reason) };
                train.rests(Phase::Launch, state);
            });
            host.is_silent();
        }
    }
}

#[test]
fn a_hang_and_a_lock_that_share_a_wait_lose_it_once() {
    let mut host = trained();
    let waited = 1_200 * MS;
    for window in 1..=8 {
        host.run(1, |train| {
            train.on(100).off(Phase::Launch, Reason::Futex, waited);
            train.blame(Phase::Launch, Reason::Futex, scenarios::HOLDER, waited, waited);
            train.in_call(Some(("cudaLaunchKernel", window * 2_000 * MS)));
        });
    }
    let chains = host.chains();
    let locks: Vec<_> = chains.iter().filter(|chain| chain.cause == Cause::LockWait).collect();
    assert_eq!(locks.len(), 2, "{chains:#?}");
    let lost: f64 = locks.iter().map(|chain| chain.lost_seconds).sum();
    assert!((0.8..=1.0).contains(&(lost / (8.0 * 1.2))), "{lost}");
}

#[test]
fn a_long_kernel_is_waited_for_without_alarm() {
    let mut host = trained();
    for window in 1..=25 {
        host.run(1, |train| {
            train.on(100).rests(Phase::Sync, State::Off(Reason::GpuDriver));
            train.in_call(Some(("cudaDeviceSynchronize", window * WINDOW)));
        });
    }
    host.is_silent();
}

#[test]
fn a_process_that_joins_its_job_waits_for_the_other_ranks_without_alarm() {
    let mut host = Host::training();
    for window in 1..=25 {
        host.run(1, |train| {
            train.on(100).rests(Phase::Other, State::Off(Reason::Net));
            train.in_call(Some(("ncclCommInitRank", window * WINDOW)));
        });
    }
    host.is_silent();
}

#[test]
fn a_worker_that_is_killed_for_lack_of_memory_is_reported_at_once_and_once() {
    let mut host = scenarios::short_of_memory();
    let (id, sentence) = {
        let chain = host.only(Cause::OomKill);
        assert_eq!((chain.effect, chain.severity), (Effect::ProcessKilled, Severity::High));
        (chain.id.clone(), chain.sentence.clone())
    };
    assert!(sentence.starts_with("The OOM killer of the kernel killed 1 worker of train. "));
    host.run(5, steady);
    let chain = host.only(Cause::OomKill);
    assert!(chain.id == id && chain.first_seen == chain.last_seen, "{chain:?}");
}

#[test]
fn a_process_that_is_killed_for_lack_of_memory_while_it_starts_is_reported() {
    let mut host = Host::training();
    host.run(1, |train| {
        steady(train);
        train.now.measures.oom_kills = 1;
    });
    let chain = host.only(Cause::OomKill);
    assert_eq!((chain.victim.pid, chain.severity), (100, Severity::Critical));
}
