//! Who uses what a limit of the victim's cgroup leaves.

use gpucause_abi::state::{Phase, Reason};
use gpucause_engine::chain::{Cause, Culprit, LimitUser, Place};

use crate::host::Host;
use crate::process::MS;
use crate::scenarios::{self, FAULT_WINDOWS, steady, trained};

fn user(pid: u32, comm: &str, process: &str, threads: usize) -> LimitUser {
    let culprit = Culprit { pid, comm: comm.into(), ..Culprit::default() };
    LimitUser { culprit, process: process.into(), threads, share: 0.8, is_worker: false }
}

/// The sentence and the fix of the only chain, with its culprit, once this is known.
fn named(mut host: Host, cause: Cause, user: LimitUser) -> (String, String, Option<(u32, String)>) {
    host.limit_user = Some(user);
    host.set_places([]);
    let chain = host.only(cause);
    let culprit = chain.culprit.as_ref().map(|own| (own.pid, own.comm.clone()));
    (chain.sentence.clone(), chain.fix.clone(), culprit)
}

#[test]
fn a_pool_of_threads_that_uses_up_the_cpu_limit_is_named() {
    let pool = user(100, "omp", "train", 24);
    let (sentence, fix, culprit) = named(scenarios::throttled(), Cause::NoisyCgroup, pool);
    let clause = " 24 threads omp of train (PID 100) had 80 % of the CPU time of the cgroup.";
    assert!(sentence.contains(clause), "{sentence}");
    assert!(fix.starts_with("Have train use fewer threads (OMP_NUM_THREADS, "), "{fix}");
    assert_eq!(culprit, Some((100, "omp".into())));
}

#[test]
fn a_neighbour_in_the_cgroup_that_uses_up_its_cpu_limit_is_named() {
    let indexer = user(700, "indexer", "indexer", 0);
    let (sentence, fix, culprit) = named(scenarios::throttled(), Cause::NoisyCgroup, indexer);
    let clause = " indexer (PID 700) had 80 % of the CPU time of the cgroup.";
    assert!(sentence.contains(clause), "{sentence}");
    assert!(fix.starts_with("Move indexer out of the cgroup, or raise cpu.max "), "{fix}");
    assert_eq!(culprit, Some((700, "indexer".into())));
}

#[test]
fn a_worker_that_uses_up_the_cpu_limit_is_not_to_be_moved() {
    let worker = LimitUser { is_worker: true, ..user(700, "pt_data_worker", "pt_data_worker", 0) };
    let (_, fix, _) = named(scenarios::throttled(), Cause::NoisyCgroup, worker);
    assert!(fix.starts_with("Have its workers do less"), "{fix}");
}

#[test]
fn a_program_that_needs_all_of_its_cpu_limit_is_given_a_higher_one() {
    let own = user(100, "train", "train", 0);
    let (sentence, fix, culprit) = named(scenarios::throttled(), Cause::NoisyCgroup, own);
    assert!(sentence.contains(" train (PID 100) had 80 % of the CPU time "), "{sentence}");
    assert_eq!(culprit, None);
    assert!(fix.starts_with("Raise cpu.max of the cgroup"), "{fix}");
}

#[test]
fn who_fills_the_page_cache_at_the_memory_limit_is_named_and_no_more_memory_asked_for() {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.off(Phase::Host, Reason::PageFault, 700 * MS);
    });
    let (sentence, fix, culprit) = named(host, Cause::PageFault, user(700, "backup", "backup", 0));
    let clause = " The cgroup is at its memory limit, and backup (PID 700) fills its page cache, ";
    assert!(sentence.contains(clause), "{sentence}");
    assert!(fix.starts_with("Have backup drop what it has read and written "), "{fix}");
    assert!(!fix.contains("Give the job more memory"), "{fix}");
    assert_eq!(culprit, Some((700, "backup".into())));
}

#[test]
fn who_uses_the_limit_stays_named_in_later_windows() {
    let mut host = scenarios::throttled();
    host.limit_user = Some(user(700, "indexer", "indexer", 0));
    host.set_places([]);
    host.throttled_cgroups[0].1 += 700 * MS;
    host.run(1, |train| {
        steady(train);
        train.off(Phase::Host, Reason::Preempted, 600 * MS);
    });
    let chain = host.only(Cause::NoisyCgroup);
    assert!(chain.sentence.contains(" indexer (PID 700) had "), "{}", chain.sentence);
    assert_eq!(chain.culprit.as_ref().map(|own| own.pid), Some(700));
    host.limit_user = None;
    host.set_places([(100, Place::default())]);
    let chain = host.only(Cause::NoisyCgroup);
    assert!(!chain.sentence.contains("indexer"), "it has ended: {}", chain.sentence);
    assert_eq!(chain.culprit, None);
}
