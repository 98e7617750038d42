//! Threads of the program itself that have the CPU.

use gpucause_abi::Nanos;
use gpucause_abi::state::{Reason, Relation};
use gpucause_engine::chain::{Cause, Place, Severity};

use crate::host::{Host, lost};
use crate::process::{MS, Process, Task, US};
use crate::scenarios::{HOG, WORKER, steady, trained};

const AUTOGRAD: Task = Task("pt_autograd_0", 100, Relation::Thread);

/// The dispatcher thread waits for a CPU for half of the time: for the autograd thread and for workers.
fn competes(train: &mut Process) {
    steady(train);
    train.waits(Reason::Preempted, AUTOGRAD, 250 * MS, 0);
    train.waits(Reason::Runqueue, AUTOGRAD, 350 * MS, 0);
    train.waits(Reason::Runqueue, WORKER, 350 * MS, 0);
    train.waits(Reason::Preempted, HOG, 50 * MS, 0);
}

fn competing() -> Host {
    let mut host = trained();
    host.start_worker(0, 200);
    host.run(4, competes);
    host
}

fn place(cpus: &str, busy_threads: usize) -> Place {
    Place { cpus: cpus.into(), busy_threads, ..Place::default() }
}

#[test]
fn own_threads_that_compete_for_cpus_are_one_chain_that_says_so_first_and_is_low() {
    let mut host = competing();
    let chain = host.only(Cause::CpuPreemption);
    assert_eq!(chain.severity, Severity::Low);
    let begin = "Its own threads compete for CPUs. This took 50 % of the last ";
    assert!(chain.sentence.starts_with(begin), "{}", chain.sentence);
    assert!(
        chain.sentence.contains("pt_autograd_0 had most of the CPU time"),
        "{}",
        chain.sentence
    );
    let named = chain.culprit.as_ref().map(|own| (own.pid, &*own.comm));
    assert_eq!(named, Some((100, "pt_autograd_0")));
    assert!(
        chain.fix.contains("OMP_NUM_THREADS") && !chain.fix.contains("renice"),
        "{}",
        chain.fix
    );
    lost(chain, 4 * 1_000 * MS);
    host.set_places([(100, place("0-1", 5))]);
    let chain = host.only(Cause::CpuPreemption);
    let begin = "Its own threads compete for CPUs: 5 threads on 2 CPUs. This took ";
    assert!(chain.sentence.starts_with(begin), "{}", chain.sentence);
}

#[test]
fn numbers_are_not_named_that_do_not_say_who_lacks_a_cpu() {
    let mut host = competing();
    for place in [place("", 5), place("0-3", 0), place("0-3", 3)] {
        host.set_places([(100, place)]);
        let sentence = &host.only(Cause::CpuPreemption).sentence;
        assert!(sentence.starts_with("Its own threads compete for CPUs. This"), "{sentence}");
    }
}

#[test]
fn windows_that_are_mostly_preempted_or_mostly_queued_are_of_one_chain() {
    let mut host = trained();
    for _ in 0..4 {
        for reason in [Reason::Preempted, Reason::Runqueue] {
            host.run(4, |train| {
                steady(train);
                train.waits(reason, AUTOGRAD, 600 * MS, 0);
            });
        }
    }
    lost(host.only(Cause::CpuPreemption), 32 * 600 * MS);
}

#[test]
fn waits_for_workers_that_have_ended_since_are_those_for_the_program_itself() {
    let mut host = trained();
    host.start_worker(0, 200).now.measures.ended_waits = Nanos(1);
    host.run(2, |train| {
        steady(train);
        train.waits(Reason::Runqueue, WORKER, 400 * MS, 0);
    });
    host.processes.pop();
    for _ in 0..2 {
        host.run(1, |train| {
            steady(train);
            train.waits(Reason::Runqueue, WORKER, 150 * MS, 0);
        });
        let chain = host.only(Cause::CpuPreemption);
        assert_eq!(chain.severity, Severity::Low);
        assert!(chain.sentence.starts_with("Its own threads compete"), "{}", chain.sentence);
    }
}

#[test]
fn own_threads_that_no_single_one_keeps_from_a_cpu_have_no_culprit() {
    let mut host = trained();
    host.run(4, |train| {
        steady(train);
        for (name, relation) in
            [("a", Relation::Thread), ("b", Relation::Thread), ("c", Relation::Thread)]
        {
            train.waits(Reason::Runqueue, Task(name, 0, relation), 200 * MS, 0);
        }
    });
    let chain = host.only(Cause::CpuPreemption);
    assert_eq!((&chain.culprit, chain.severity), (&None, Severity::Low));
    assert_eq!(chain.path[0].from, "its own threads");
    assert!((chain.path[0].seconds - 0.6).abs() < 0.01, "{}", chain.path[0].seconds);
}

#[test]
fn own_threads_beside_cpus_that_are_idle_and_that_they_may_not_use_are_severe() {
    let mut host = competing();
    host.idle_cpus = "1-3";
    host.set_places([(100, place("0-1", 5))]);
    host.run(2, competes);
    let chain = host.only(Cause::CpuPreemption);
    assert_eq!(chain.severity, Severity::Critical);
    assert!(
        chain.fix.contains(" It may not run on CPUs 2-3, which had nothing to do."),
        "{}",
        chain.fix
    );
    let command = "Run: `for p in 100 $(for c in $(pgrep -P 100); do echo $c; pgrep -P $c; done); \
                   do taskset -acp 0-3 $p; done`.";
    assert!(chain.fix.ends_with(command), "{}", chain.fix);
    lost(chain, 6 * 1_000 * MS);
}

#[test]
fn own_threads_are_not_severe_where_only_their_own_cpus_are_idle_or_theirs_are_unknown() {
    for (idle, cpus) in [("0-1", "0-1"), ("2-3", ""), ("", "0-1")] {
        let mut host = competing();
        host.idle_cpus = idle;
        host.set_places([(100, place(cpus, 5))]);
        host.run(2, competes);
        let chain = host.only(Cause::CpuPreemption);
        assert_eq!(chain.severity, Severity::Low, "{idle} idle, {cpus} its own");
        let list =
            " To see what uses the CPUs: `ps -Lo pid,tid,psr,pcpu,comm --sort=-pcpu 100 $(for ";
        assert!(chain.fix.contains(list) && !chain.fix.contains("Run:"), "{}", chain.fix);
    }
}

#[test]
fn a_job_that_is_on_one_cpu_by_its_own_mask_is_moved_as_a_whole() {
    for (cpuset, on_one_cpu, moved) in
        [("", true, Some("0-3")), ("0-2", true, Some("0-2")), ("0", true, None), ("", false, None)]
    {
        let mut host = competing();
        let own = Place { cpuset: cpuset.into(), on_one_cpu, ..place("0", 5) };
        host.set_places([(100, own)]);
        host.run(2, competes);
        let fix = &host.only(Cause::CpuPreemption).fix;
        let clause = |cpus| {
            format!(
                " All threads of train and of its workers may run on CPU 0 only, by their own CPU mask; they may use CPUs {cpus}."
            )
        };
        assert_eq!(fix.contains(" by their own CPU mask"), moved.is_some(), "{cpuset}: {fix}");
        let says = |cpus| {
            fix.contains(&clause(cpus))
                && fix.contains(&format!("do taskset -acp {cpus} $p; done`."))
        };
        assert!(moved.is_none_or(says), "{cpuset}: {fix}");
        assert!(moved.is_some() || !fix.contains("taskset"), "{cpuset}: {fix}");
    }
}

#[test]
fn cpus_that_the_cgroup_does_not_allow_are_of_no_use_however_idle() {
    let mut host = competing();
    host.idle_cpus = "1-3";
    host.set_places([(100, Place { cpuset: "0-1".into(), ..place("0-1", 5) })]);
    host.run(2, competes);
    let fix = &host.only(Cause::CpuPreemption).fix;
    assert!(!fix.contains("which had nothing to do") && !fix.contains("taskset"), "{fix}");
}

#[test]
fn another_process_that_has_most_of_the_cpu_is_blamed_as_ever() {
    for (reason, cause) in
        [(Reason::Preempted, Cause::CpuPreemption), (Reason::Runqueue, Cause::RunqueueWait)]
    {
        let mut host = trained();
        host.start_worker(0, 200);
        host.run(4, |train| {
            steady(train);
            train.waits(reason, HOG, 600 * MS, 0);
            train.waits(reason, AUTOGRAD, 200 * MS, 0);
            train.waits(reason, WORKER, 200 * MS, 0);
        });
        let chain = host.only(cause);
        assert_eq!(chain.severity, Severity::Critical);
        assert_eq!(chain.culprit.as_ref().map(|own| own.pid), Some(900));
        assert!(!chain.sentence.contains("own threads"), "{}", chain.sentence);
    }
}

#[test]
fn a_child_that_feeds_a_gpu_itself_is_another_job() {
    let mut host = trained();
    host.start_worker(0, 200);
    let serves = |processes: &mut [Process], fault: u64| {
        steady(&mut processes[0]);
        processes[0].waits(Reason::Preempted, WORKER, fault * MS, 0);
        processes[1].on(200).launches(2_000, 5 * US);
    };
    host.run_all(8, |processes, _| serves(processes, 0));
    host.run_all(4, |processes, _| serves(processes, 600));
    let own: Vec<_> = host.chains().into_iter().filter(|chain| chain.victim.pid == 100).collect();
    let [chain] = own[..] else { panic!("{own:#?}") };
    assert_eq!((chain.cause, chain.severity), (Cause::CpuPreemption, Severity::High));
    assert!(chain.fix.contains("feeds a GPU itself"), "{}", chain.fix);
}

#[test]
fn a_child_that_prepares_no_data_is_a_culprit_like_any_program() {
    let mut host = trained();
    host.start_worker(0, 200);
    host.run(4, |train| {
        steady(train);
        train.waits(Reason::Preempted, Task("monitor", 200, Relation::Worker), 900 * MS, 0);
    });
    let chain = host.only(Cause::CpuPreemption);
    assert_eq!((chain.culprit.as_ref().unwrap().pid, chain.severity), (200, Severity::High));
    assert!(chain.fix.starts_with("Keep monitor off the CPUs of train"), "{}", chain.fix);
}
