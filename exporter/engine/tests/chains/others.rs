//! Waits for other processes: those that serve a file, make room, compute for the victim, or end; and waits for nobody.

use gpucause_abi::state::{Phase, Reason, Relation, State};
use gpucause_engine::chain::{Cause, Chain, Place, Severity};

use crate::host::{Host, takes};
use crate::process::{KERNEL, MS, Task};
use crate::scenarios::{FAULT_WINDOWS, steady, trained};

/// A trainer that waits for a task for 900 ms of each window; that task owes a part of it.
fn waiting(reason: Reason, task: Task, owed: u64) -> Host {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.waits(reason, task, 900 * MS, owed);
    });
    host
}

fn culprit(chain: &Chain) -> (&str, u32) {
    chain.culprit.as_ref().map(|culprit| (&*culprit.comm, culprit.pid)).unwrap()
}

#[test]
fn the_reader_of_a_full_pipe_is_named_whether_it_is_a_child_or_not() {
    for relation in [Relation::Other, Relation::Worker] {
        let reader = Task("log-shipper", 300, relation);
        let host = waiting(Reason::Poll, reader, 900 * MS);
        let chain = host.only(Cause::ProcessWait);
        assert_eq!((culprit(chain), chain.severity), (("log-shipper", 300), Severity::High));
        assert!(chain.fix.contains("write less"), "{}", chain.fix);
        takes(chain, u64::from(FAULT_WINDOWS) * 900 * MS);
    }
}

#[test]
fn a_child_that_computes_is_waited_for_and_one_that_sleeps_is_not() {
    let compiler = Task("ptxas", 300, Relation::Other);
    let host = waiting(Reason::Child, compiler, 850 * MS);
    let chain = host.only(Cause::ProcessWait);
    assert_eq!(culprit(chain), ("ptxas", 300));
    assert!(chain.sentence.contains("its child ptxas"), "{}", chain.sentence);
    assert!(chain.fix.contains("warm up all shapes"), "{}", chain.fix);
    waiting(Reason::Child, Task("sleep", 300, Relation::Other), 5 * MS).is_silent();
}

#[test]
fn a_parent_that_prepares_the_work_is_named_and_an_idle_client_is_not() {
    let engine = Task("engine", 90, Relation::Other);
    let host = waiting(Reason::Poll, engine, 880 * MS);
    assert_eq!(culprit(host.only(Cause::ProcessWait)), ("engine", 90));
    for owed in [0, 300, 700] {
        waiting(Reason::Net, Task("client", 90, Relation::Other), owed * MS).is_silent();
    }
}

#[test]
fn a_process_that_prepares_the_work_in_shared_memory_is_named_unless_it_idles() {
    let engine = Task("engine", 90, Relation::Other);
    let host = waiting(Reason::Futex, engine, 880 * MS);
    let chain = host.only(Cause::ProcessWait);
    assert_eq!(culprit(chain), ("engine", 90));
    takes(chain, u64::from(FAULT_WINDOWS) * 880 * MS);
    waiting(Reason::Futex, engine, 300 * MS).is_silent();
}

#[test]
fn who_has_the_lock_of_a_file_is_named_with_the_command_that_lists_it() {
    let host = waiting(Reason::Other, Task("cache-warmer", 300, Relation::Other), 900 * MS);
    let chain = host.only(Cause::ProcessWait);
    assert_eq!(culprit(chain), ("cache-warmer", 300));
    assert!(
        chain.sentence.contains("the lock of a file that cache-warmer had"),
        "{}",
        chain.sentence
    );
    assert!(chain.fix.contains("lslocks -u -p 300"), "{}", chain.fix);
    takes(chain, u64::from(FAULT_WINDOWS) * 900 * MS);
}

#[test]
fn the_rest_of_the_blocked_time_is_not_named_after_who_has_the_lock_of_a_file() {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.waits(Reason::Other, Task("cache-warmer", 300, Relation::Other), 500 * MS, 500 * MS);
        train.waits(Reason::Other, KERNEL, 400 * MS, 0);
    });
    let chains = host.chains();
    let of = |cause| chains.iter().find(|chain| chain.cause == cause).unwrap();
    takes(of(Cause::ProcessWait), u64::from(FAULT_WINDOWS) * 500 * MS);
    let rest = of(Cause::Unexplained);
    assert!(rest.sentence.contains("of it in getrandom, ended by the kernel"), "{}", rest.sentence);
    assert!(!rest.sentence.contains("cache-warmer"), "{}", rest.sentence);
}

#[test]
fn of_several_processes_none_is_named_for_all_of_the_wait() {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        for (name, pid, reason, ms) in [
            ("cache-warmer", 300, Reason::Other, 300),
            ("ptxas", 301, Reason::Child, 290),
            ("log-shipper", 302, Reason::Poll, 280),
        ] {
            train.waits(reason, Task(name, pid, Relation::Other), ms * MS, ms * MS);
        }
    });
    let chain = host.only(Cause::ProcessWait);
    let expected = "Waiting for other processes, longest for cache-warmer, took";
    assert!(chain.sentence.contains(expected), "{}", chain.sentence);
}

#[test]
fn who_serves_the_file_system_is_named_and_no_disk() {
    let server = Task("archive-mount", 300, Relation::Other);
    for (reason, cause) in [(Reason::Io, Cause::BlockIo), (Reason::PageFault, Cause::PageFault)] {
        let host = waiting(reason, server, 900 * MS);
        let chain = host.only(cause);
        assert_eq!(culprit(chain), ("archive-mount", 300));
        let text = format!("{} {}", chain.sentence, chain.fix);
        assert!(text.contains("that archive-mount serves"), "{text}");
        assert!(!text.contains("Disk") && !text.contains("more memory"), "{text}");
        assert!(!text.contains("archive-mount serves /"), "{text}");
        let serves = vec!["/data/archive (fuse.ratarmount)".to_owned()];
        let mut host = host;
        host.set_places([(300, Place { serves, ..Place::default() })]);
        let fix = &host.only(cause).fix;
        assert!(fix.contains(" archive-mount serves /data/archive (fuse.ratarmount). "), "{fix}");
    }
}

#[test]
fn page_faults_that_read_files_are_no_lack_of_memory() {
    let host = waiting(Reason::PageFault, KERNEL, 900 * MS);
    let chain = host.only(Cause::PageFault);
    assert!(chain.sentence.contains("read mapped files"), "{}", chain.sentence);
    assert!(!chain.fix.contains("more memory"), "{}", chain.fix);
    let host = waiting(Reason::PageFault, KERNEL, 0);
    assert!(host.only(Cause::PageFault).fix.contains("more memory"));
}

#[test]
fn time_in_which_a_thread_frees_memory_is_no_wait_for_a_file_or_its_server() {
    for ended_by in [KERNEL, Task("archive-mount", 300, Relation::Other)] {
        let mut host = trained();
        host.run(FAULT_WINDOWS, |train| {
            steady(train);
            train.off(Phase::Host, Reason::PageFault, 880 * MS);
            train.waits(Reason::PageFault, ended_by, 20 * MS, 20 * MS);
        });
        let chain = host.only(Cause::PageFault);
        assert!(chain.sentence.contains("freeing memory"), "{}", chain.sentence);
        assert!(chain.fix.contains("more memory"), "{}", chain.fix);
        assert_eq!(chain.culprit, None);
    }
}

#[test]
fn waits_for_files_name_a_device_only_where_one_was_busy() {
    let host = waiting(Reason::Io, KERNEL, 0);
    let chain = host.only(Cause::BlockIo);
    assert_eq!(chain.path[0].from, "file system");
    assert!(!chain.fix.contains("faster disk"), "{}", chain.fix);
}

#[test]
fn blocked_time_without_a_name_is_said_with_its_seconds_and_its_ender() {
    let host = waiting(Reason::Other, Task("peer", 300, Relation::Other), 0);
    let chain = host.only(Cause::Unexplained);
    assert!(chain.severity <= Severity::Medium);
    for expected in ["900 ms in system calls", "900 ms of it in getrandom, ended by peer"] {
        assert!(chain.sentence.contains(expected), "{}", chain.sentence);
    }
}

#[test]
fn a_thread_that_yields_loses_nothing() {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.off(Phase::Host, Reason::Yield, 900 * MS);
    });
    host.is_silent();
    assert!(!State::Off(Reason::Yield).is_lost_in(Phase::Host));
}
