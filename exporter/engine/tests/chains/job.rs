//! Ranks, GPUs and calls that do not return.

use gpucause_abi::ProcId;
use gpucause_abi::state::{Phase, Reason, State};
use gpucause_engine::chain::{Cause, Chain, Culprit, Effect, Severity};
use gpucause_engine::peers::{PeerJob, PeerRank, Peers, RankPlace};

use crate::host::{Host, WINDOW, takes};
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

/// A job of four: rank 0 is the only process of this host, which waits for so many nanoseconds in each window.
fn one_of_four(waits: u64, peers: Peers) -> Host {
    let mut host = Host::new();
    host.start("train", 100).now.rank = Some((0, 4));
    host.run(8, |train| rank(train, waits));
    host.engine.set_peers(peers);
    host.run(FAULT_WINDOWS, |train| rank(train, waits));
    host
}

/// Shares of the four ranks as Prometheus has them; the first is here.
fn compared(shares: [f64; 4]) -> Peers {
    let place = |rank: u32| match rank {
        0 => RankPlace::Here(ProcId(1)),
        _ => RankPlace::Elsewhere(format!("gpu-{rank}:9400")),
    };
    let ranks = (0..).zip(shares);
    let ranks =
        ranks.map(|(rank, share)| PeerRank { rank, waiting_share: share, place: place(rank) });
    Peers { age_seconds: 12.0, jobs: vec![PeerJob { world_size: 4, ranks: ranks.collect() }] }
}

#[test]
fn a_late_rank_of_another_host_is_named_with_that_host_and_without_a_process_of_this_one() {
    let host = one_of_four(900 * MS, compared([0.45, 0.45, 0.05, 0.44]));
    let chain = host.only(Cause::NcclLateRank);
    let culprit = chain.culprit.as_ref().unwrap();
    assert_eq!((culprit.local_pid(), &*culprit.name()), (None, "train on gpu-2:9400"));
    assert_eq!(
        chain.sentence.split(" Measured").next().unwrap(),
        "Rank 2 on gpu-2:9400 comes late to the collectives: rank 0 of train waits 45 % of its time in them, the late rank 5.0 % of the last minute, as Prometheus said 12 s ago."
    );
    assert!(
        chain.fix.ends_with(" Run: `gpucause explain --url http://gpu-2:9400`."),
        "{}",
        chain.fix
    );
    takes(chain, u64::from(FAULT_WINDOWS) * 800 * MS);
}

#[test]
fn no_rank_of_another_host_is_late_unless_all_others_wait_longer_for_it() {
    for shares in [
        [0.45, 0.45, 0.40, 0.44],
        [0.45, 0.05, 0.05, 0.44],
        [0.05, 0.45, 0.45, 0.44],
        [0.06, 0.45, 0.05, 0.44],
    ] {
        one_of_four(900 * MS, compared(shares)).is_silent();
    }
    let mut other = compared([0.45, 0.45, 0.05, 0.44]);
    other.jobs[0].world_size = 8;
    one_of_four(900 * MS, other).is_silent();
    let mut other = compared([0.45, 0.45, 0.05, 0.44]);
    other.jobs[0].ranks[0].rank = 3;
    one_of_four(900 * MS, other).is_silent();
}

#[test]
fn a_peer_that_lies_blames_no_time_that_was_not_measured_here() {
    let host = one_of_four(20 * MS, compared([1.0, 1.0, 0.0, 1.0]));
    host.does_not_blame(&[Cause::NcclLateRank]);
    let host = one_of_four(500 * MS, compared([1.0, 1.0, 0.0, 1.0]));
    takes(host.only(Cause::NcclLateRank), u64::from(FAULT_WINDOWS) * 500 * MS);
}

/// A job of four, with ranks 0 and 1 on this host: each waits for so many nanoseconds in a window.
fn two_of_four(waits: [u64; 2], mut peers: Peers) -> Host {
    peers.jobs[0].ranks[1].place = RankPlace::Here(ProcId(2));
    let mut host = Host::new();
    for number in 0..2 {
        host.start("train", 100 + number).now.rank = Some((number, 4));
    }
    host.run_all(8, |processes, _| processes.iter_mut().for_each(|own| rank(own, waits[0])));
    host.engine.set_peers(peers);
    host.run_all(FAULT_WINDOWS, |processes, _| {
        processes.iter_mut().zip(waits).for_each(|(own, waits)| rank(own, waits));
    });
    host
}

#[test]
fn a_rank_of_this_host_that_itself_waits_for_one_elsewhere_is_not_late() {
    let host = two_of_four([900 * MS, 400 * MS], compared([0.45, 0.20, 0.02, 0.45]));
    let mut victims: Vec<_> = host
        .chains()
        .into_iter()
        .map(|chain| (chain.victim.pid, chain.culprit.as_ref().unwrap().name()))
        .collect();
    victims.sort_unstable();
    let late = || "train on gpu-2:9400".to_owned();
    assert_eq!(victims, [(100, late()), (101, late())]);
    // Too little for the other host's, and it is the last to come all the same.
    two_of_four([900 * MS, 400 * MS], compared([0.45, 0.20, 0.18, 0.45])).is_silent();
}

#[test]
fn a_rank_of_this_host_that_has_just_become_late_is_named_before_prometheus_knows() {
    let host = two_of_four([900 * MS, 10 * MS], compared([0.45, 0.45, 0.05, 0.45]));
    let culprit = |chain: &&Chain| chain.culprit.as_ref().and_then(Culprit::local_pid);
    let chains = host.chains();
    let chains = chains.iter().map(|chain| (chain.cause, chain.victim.pid, culprit(chain)));
    let late = (Cause::NcclLateRank, 100, Some(101));
    assert_eq!(chains.collect::<Vec<_>>(), [(Cause::HostCode, 101, None), late], "it computes");
}

#[test]
fn the_fix_asks_another_host_only_where_its_name_is_an_address() {
    for (name, command) in [
        ("gpu-2.example:9400", Some("`gpucause explain --url http://gpu-2.example:9400`")),
        ("[fd00::2]:9400", Some("`gpucause explain --url 'http://[fd00::2]:9400'`")),
        ("gpu-2", None),
        ("gpu-2:0", None),
        ("x;reboot:9400", None),
        ("-x:9400", None),
        ("[`reboot`]:9400", None),
        ("me@gpu-2:9400", None),
    ] {
        let mut peers = compared([0.45, 0.45, 0.05, 0.44]);
        peers.jobs[0].ranks[2].place = RankPlace::Elsewhere(name.to_owned());
        let host = one_of_four(900 * MS, peers);
        let fix = &host.only(Cause::NcclLateRank).fix;
        assert_eq!(fix.split_once(" Run: ").map(|(_, own)| own.trim_end_matches('.')), command);
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
    // Reported after ten seconds, with what was not charged to the lock before.
    let lost: f64 = host.chains().iter().map(|chain| chain.lost_seconds).sum();
    assert!((lost - 16.0).abs() < 0.01, "{lost}: {:#?}", host.chains());
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
            train.on(100).off(Phase::Launch, Reason::Lock, waited);
            train.blame(Phase::Launch, Reason::Lock, scenarios::HOLDER, waited, waited);
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
fn a_child_that_makes_calls_and_is_killed_for_lack_of_memory_is_nobodys_worker() {
    let mut host = scenarios::trained();
    host.start_worker(0, 200).now.dispatches = true;
    host.run_all(1, |processes, _| {
        steady(&mut processes[0]);
        processes[1].now.measures.oom_kills = 1;
    });
    assert_eq!(host.only(Cause::OomKill).victim.pid, 200);
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
