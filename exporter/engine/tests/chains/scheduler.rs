//! Who had the CPU.

use gpucause_abi::op::CopyKind;
use gpucause_abi::state::{Phase, Reason, Relation, State};
use gpucause_engine::chain::{Cause, Culprit, Effect, Severity};

use crate::host::{Host, lost, takes};
use crate::process::{MS, Task, US};
use crate::scenarios::{self, FAULT_WINDOWS, HOG, steady, trained};

const SCHEDULER: [Cause; 3] = [Cause::CpuPreemption, Cause::RunqueueWait, Cause::NoisyCgroup];

fn hog() -> Culprit {
    Culprit { pid: 900, comm: "hog".into(), ..Culprit::default() }
}

#[test]
fn a_process_that_takes_the_cpu_inside_launches_is_named() {
    let host = scenarios::preempted();
    let chain = host.only(Cause::CpuPreemption);
    assert_eq!((chain.effect, chain.severity), (Effect::LaunchTail, Severity::High));
    assert_eq!(chain.culprit, Some(hog()));
    assert!(chain.explained > 0.95, "{}", chain.explained);
    assert_eq!((chain.victim.pid, chain.victim.tid, &*chain.victim.comm), (100, 100, "train"));
    lost(chain, u64::from(FAULT_WINDOWS) * 600 * MS);
}

#[test]
fn waiting_for_a_cpu_after_waking_is_distinguished_from_preemption() {
    let host = scenarios::queued();
    let chain = host.only(Cause::RunqueueWait);
    assert_eq!((chain.effect, chain.severity), (Effect::LaunchGap, Severity::High));
    assert_eq!(chain.culprit, Some(hog()));
    lost(chain, u64::from(FAULT_WINDOWS) * 600 * MS);
}

#[test]
fn a_cpu_limit_is_not_blamed_on_who_had_the_cpu() {
    let host = scenarios::throttled();
    let chain = host.only(Cause::NoisyCgroup);
    assert_eq!((chain.severity, &chain.culprit), (Severity::High, &None));
    lost(chain, u64::from(FAULT_WINDOWS) * 600 * MS);
}

#[test]
fn a_limit_that_stopped_others_of_the_cgroup_leaves_the_preemption() {
    let mut host = trained();
    host.throttled_cgroups = vec![(gpucause_abi::ProcId(1), 0)];
    host.run(1, steady);
    host.throttled_cgroups[0].1 += 50 * MS;
    host.run(1, |train| {
        steady(train);
        train.waits(Reason::Preempted, HOG, 600 * MS, 0);
    });
    assert_eq!(host.only(Cause::CpuPreemption).culprit, Some(hog()));
}

#[test]
fn a_limit_is_charged_for_no_more_than_it_stopped_anybody_and_others_for_the_rest() {
    let mut host = trained();
    host.throttled_cgroups = vec![(gpucause_abi::ProcId(1), 0)];
    host.run(1, steady);
    for _ in 0..3 {
        host.throttled_cgroups[0].1 += 800 * MS;
        host.run(1, |train| {
            steady(train);
            train.off(Phase::Host, Reason::Preempted, 1_000 * MS);
        });
    }
    let [limit, others] = host.chains()[..] else { panic!("{:#?}", host.chains()) };
    assert_eq!((limit.cause, others.cause), (Cause::NoisyCgroup, Cause::CpuPreemption));
    assert!((limit.explained - 0.8).abs() < 0.01, "{}", limit.explained);
    assert!((others.explained - 0.2).abs() < 0.01, "{}", others.explained);
    lost(limit, 3 * 800 * MS);
    lost(others, 3 * 200 * MS);
}

#[test]
fn many_small_culprits_are_not_one() {
    let mut host = trained();
    host.run(2, |train| {
        steady(train);
        for (name, tgid) in [("a", 1), ("b", 2), ("c", 3)] {
            let task = Task(name, tgid, Relation::Other);
            train.waits(Reason::Preempted, task, 200 * MS, 0);
        }
    });
    let chain = host.only(Cause::CpuPreemption);
    assert_eq!(chain.culprit, None);
    assert!(chain.sentence.contains("top CPU competitor: a, 33 % of it"), "{}", chain.sentence);
}

#[test]
fn a_thread_that_waits_for_an_idle_cpu_to_wake_up_has_no_competitors() {
    let mut host = trained();
    let nobody = Task("idle", 0, Relation::None);
    host.run(2, |train| {
        steady(train);
        train.waits(Reason::Runqueue, nobody, 500 * MS, 0);
        train.waits(Reason::Runqueue, HOG, 20 * MS, 0);
    });
    let chain = host.only(Cause::RunqueueWait);
    assert_eq!(chain.culprit, None);
    assert!(chain.sentence.contains("The CPU was idle for 96 % of it"), "{}", chain.sentence);
    assert!(chain.fix.contains("cpupower idle-info"), "{}", chain.fix);
    assert!(!chain.fix.contains("fewer tasks"), "{}", chain.fix);
}

#[test]
fn a_culprit_of_earlier_windows_is_not_shown_once_the_cpus_are_idle() {
    let mut host = trained();
    host.run(2, |train| {
        steady(train);
        train.waits(Reason::Runqueue, HOG, 500 * MS, 0);
    });
    assert_eq!(host.only(Cause::RunqueueWait).culprit, Some(hog()));
    host.run(6, |train| {
        steady(train);
        train.waits(Reason::Runqueue, Task("idle", 0, Relation::None), 500 * MS, 0);
    });
    let chain = host.only(Cause::RunqueueWait);
    assert!(chain.fix.contains("cpupower idle-info"), "{}", chain.fix);
    assert_eq!(chain.culprit, None);
}

#[test]
fn a_preempted_thread_beside_an_idle_cpu_was_not_woken_late() {
    let mut host = trained();
    host.run(2, |train| {
        steady(train);
        train.waits(Reason::Preempted, Task("idle", 0, Relation::None), 500 * MS, 0);
    });
    let chain = host.only(Cause::CpuPreemption);
    assert!(!chain.sentence.contains("wakeup") && !chain.fix.contains("cpupower"), "{chain:#?}");
}

#[test]
fn a_name_that_several_processes_have_is_shown_without_a_pid() {
    let mut host = trained();
    for tgid in [7, 7, 8] {
        host.run(1, |train| {
            steady(train);
            let task = Task("rustc", tgid, Relation::Other);
            train.waits(Reason::Preempted, task, 600 * MS, 0);
            train.now.waits[0].tgid = Some(gpucause_abi::Tgid(tgid));
        });
        let losses = &host.only(Cause::CpuPreemption).losses;
        assert_eq!(losses[0].pid, (tgid == 7).then_some(7), "{losses:?}");
    }
}

#[test]
fn losing_the_cpu_while_the_gpu_works_is_no_loss() {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.off(Phase::Sync, Reason::Preempted, 600 * MS);
        train.blame(Phase::Sync, Reason::Preempted, HOG, 600 * MS, 0);
    });
    host.is_silent();
}

/// A neighbour burns CPU time on another core: the thread is delayed now and then, for less than a percent of its time.
fn busy_neighbour(train: &mut crate::process::Process) {
    train.waits(Reason::Preempted, HOG, 4 * MS, 0).waits(Reason::Runqueue, HOG, 4 * MS, 0);
}

#[test]
fn first_launches_beside_a_busy_neighbour_are_not_the_schedulers() {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.cold_launches(40, 13 * MS);
        busy_neighbour(train);
    });
    host.does_not_blame(&SCHEDULER);
    takes(host.only(Cause::ColdStart), u64::from(FAULT_WINDOWS) * 520 * MS);
}

#[test]
fn large_copies_beside_a_busy_neighbour_are_not_the_schedulers() {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.copies("cudaMemcpyAsync", 0, CopyKind::H2d, 500, 10 * US);
        train.copies("cudaMemcpyAsync", 4, CopyKind::H2d, 14, 55 * MS);
        // A long copy is preempted like anything else that is long.
        train.off(Phase::Memcpy, Reason::Preempted, 6 * MS);
        busy_neighbour(train);
    });
    host.does_not_blame(&SCHEDULER);
    host.only(Cause::LargeCopy);
}

#[test]
fn long_waits_for_the_gpu_beside_a_busy_neighbour_are_not_the_schedulers() {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        train.on(100).launches(2_000, 5 * US);
        let waits = [(Reason::GpuDriver, 300 * MS), (Reason::Preempted, 10 * MS)];
        train.calls("cudaDeviceSynchronize", 5, US, &waits);
        train.calls("cudaDeviceSynchronize", 300, 10 * US, &[]);
        busy_neighbour(train);
    });
    host.is_silent();
}

#[test]
fn a_slow_launch_that_stayed_on_the_cpu_is_not_explained_by_other_calls() {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.launches(40, 5 * MS);
        // Off the CPU for as long in all: in other launches that are quick, in syncs, in host code.
        train.calls("cudaLaunchKernel", 1_000, 4 * US, &[(Reason::Preempted, 12 * US)]);
        train.off(Phase::Sync, Reason::Preempted, 200 * MS);
        train.waits(Reason::Poll, HOG, 300 * MS, 0);
    });
    host.does_not_blame(&SCHEDULER);
    assert_eq!(host.only(Cause::Unexplained).explained, 0.0);
}

#[test]
fn a_slow_launch_that_was_briefly_off_the_cpu_is_not_explained_by_others() {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.calls("cudaLaunchKernel", 30, MS, &[(Reason::Preempted, US)]);
        train.calls("cudaLaunchKernel", 1_800, 2 * US, &[(Reason::Preempted, 16 * US)]);
    });
    host.does_not_blame(&SCHEDULER);
}

#[test]
fn a_tail_that_costs_next_to_nothing_is_not_severe_however_long_it_is() {
    let mut host = Host::training();
    let few = |train: &mut crate::process::Process| {
        train.on(100).launches(150, 10 * US);
        train.calls("cudaStreamSynchronize", 20, 90 * MS, &[]);
    };
    host.run(8, few);
    host.run(FAULT_WINDOWS, |train| {
        few(train);
        train.calls("cudaLaunchKernel", 3, 10 * US, &[(Reason::Preempted, 5 * MS)]);
    });
    host.is_silent();
    host.run(FAULT_WINDOWS, |train| {
        few(train);
        train.calls("cudaLaunchKernel", 3, 10 * US, &[(Reason::Preempted, 20 * MS)]);
        train.blame(Phase::Launch, Reason::Preempted, HOG, 60 * MS, 0);
    });
    let chain = host.only(Cause::CpuPreemption);
    assert_eq!((chain.effect, chain.severity), (Effect::LaunchTail, Severity::Low));
    assert!(chain.evidence.get("spread") > Some(1_000.0));
}

#[test]
fn a_short_wait_for_cpus_that_nobody_else_has_is_no_cause() {
    let mut host = trained();
    for own in [Task("pt_autograd_0", 100, Relation::Thread), Task("idle", 0, Relation::None)] {
        host.run(FAULT_WINDOWS, |train| {
            steady(train);
            train.waits(Reason::Runqueue, own, 80 * MS, 0);
        });
    }
    host.is_silent();
}

#[test]
fn a_tail_on_fewer_than_a_hundred_calls_is_none() {
    let mut host = Host::training();
    let few = |train: &mut crate::process::Process| {
        train.on(100).launches(8, 10 * US);
    };
    host.run(8, few);
    host.run(20, |train| {
        few(train);
        train.calls("cudaLaunchKernel", 1, 10 * US, &[(Reason::Preempted, 100 * MS)]);
    });
    host.is_silent();
}

#[test]
fn one_burst_of_slow_calls_is_not_seen_again_in_the_longer_window() {
    let mut host = Host::training();
    let few = |train: &mut crate::process::Process| {
        train.on(100).rests(Phase::Sync, State::Off(Reason::GpuDriver)).launches(60, 10 * US);
    };
    host.run(8, few);
    host.run(1, |train| {
        few(train);
        train.calls("cudaLaunchKernel", 8, 10 * US, &[(Reason::Preempted, 12 * MS)]);
    });
    host.run(10, few);
    host.is_silent();
}

#[test]
fn a_tail_of_a_program_that_launches_rarely_is_detected_over_several_windows() {
    let mut host = Host::training();
    let few = |train: &mut crate::process::Process| {
        train.on(100).rests(Phase::Sync, State::Off(Reason::GpuDriver)).launches(60, 10 * US);
    };
    host.run(8, few);
    host.run(6, |train| {
        few(train);
        train.calls("cudaLaunchKernel", 3, 10 * US, &[(Reason::Preempted, 40 * MS)]);
        train.blame(Phase::Launch, Reason::Preempted, HOG, 120 * MS, 0);
    });
    let chain = host.only(Cause::CpuPreemption);
    assert_eq!((chain.effect, &chain.culprit), (Effect::LaunchTail, &Some(hog())));
}

#[test]
fn a_chain_is_of_the_thread_that_suffers() {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        // Another thread launches a little, and idles.
        train.on(101).launches(10, 5 * US).rests(Phase::Host, State::Off(Reason::Poll));
        train.on(102).launches(900, 5 * US).waits(Reason::Preempted, HOG, 700 * MS, 0);
    });
    let chain = host.only(Cause::CpuPreemption);
    assert_eq!(chain.victim.tid, 102);
    lost(chain, u64::from(FAULT_WINDOWS) * 700 * MS);
}

#[test]
fn quick_launches_that_rarely_lose_the_cpu_for_long_are_a_tail_all_the_same() {
    let mut host = trained();
    host.run(2, |train| {
        steady(train);
        train.calls("cudaLaunchKernel", 10, 5 * US, &[(Reason::Preempted, 60 * MS)]);
        train.blame(Phase::Launch, Reason::Preempted, HOG, 600 * MS, 0);
    });
    let chain = host.only(Cause::CpuPreemption);
    assert_eq!((chain.effect, chain.severity), (Effect::LaunchTail, Severity::High));
    assert!(chain.culprit.is_some() && !chain.sentence.contains("p99"), "{chain:#?}");
    lost(chain, 1_200 * MS);
}

#[test]
fn rare_long_launches_on_the_cpu_are_nobodys() {
    let mut host = trained();
    host.run(4, |train| {
        steady(train);
        train.launches(10, 60 * MS);
    });
    host.is_silent();
}
