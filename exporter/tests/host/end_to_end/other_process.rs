//! Waits for another process are named with it, whatever the system call; a thread that yields its CPU waits for nobody.

use super::chains::chain_of;
use super::waiter::{Waiter, check_seconds, observed, started};
use gpucause_fixture::exporter::Exporter;
use gpucause_fixture::poll::until;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

const SCRIPT: &str = "other_process.py";
/// Causes that are found at all are found by then.
const FOUND_WITHIN: Duration = Duration::from_secs(9);
/// Least part of the waits that are the culprit's.
const CULPRITS: f64 = 0.9;

/// A way to wait, and the cause and the culprit that it must have.
type Expected = (&'static str, &'static str, &'static str);

/// Programs that wait in these ways have their causes and culprits.
fn have_culprits(exporter: &Exporter, together: &[Expected]) -> Vec<Waiter> {
    let kinds: Vec<_> = together.iter().map(|(kind, ..)| *kind).collect();
    let waiters = started(exporter, SCRIPT, &kinds);
    for (waiter, &(kind, cause, culprit)) in waiters.iter().zip(together) {
        let chain = waiter.expect(exporter, cause, culprit);
        let text = format!("{} {}", chain["sentence"], chain["fix"]);
        assert!(text.contains(culprit), "{kind}: {text}");
        assert!(!text.contains("faster disk") && !text.contains("more memory"), "{kind}: {text}");
        let share = &chain["evidence"]["culprit_share"];
        assert!(share.as_f64().is_none_or(|share| share >= CULPRITS), "{kind}: {chain}");
        if cause != "process_wait" {
            until(&format!("the mount of {kind}"), || {
                let chain = chain_of(exporter, &waiter.pid, cause)?;
                chain["fix"].as_str()?.contains(" archive-mount serves /").then_some(())
            });
        }
    }
    waiters
}

/// Programs that wait in these ways, which leave the CPUs idle, have their causes and culprits for all of their waits.
fn are_named(together: &[Expected]) {
    let (exporter, _keeper) = observed();
    let mut waiters = have_culprits(&exporter, together);
    let causes: Vec<_> = together.iter().map(|(_, cause, _)| *cause).collect();
    check_seconds(&exporter, &mut waiters, &causes);
}

#[test]
fn whom_a_thread_waits_for_is_named_whatever_the_system_call() {
    are_named(&[
        ("reader", "process_wait", "log-shipper"),
        ("stat", "block_io", "archive-mount"),
        ("close", "block_io", "archive-mount"),
        ("fault", "page_fault", "archive-mount"),
        ("lockf-beside-another", "process_wait", "cache-warmer"),
    ]);
}

#[test]
#[ignore = "takes a while: make test-waits has it"]
fn who_does_not_read_what_a_thread_sends_is_named_whatever_the_socket() {
    are_named(&[
        ("stream", "process_wait", "log-shipper"),
        ("datagram", "process_wait", "log-shipper"),
    ]);
}

#[test]
#[ignore = "takes a while: make test-waits has it"]
fn who_serves_a_file_system_is_named_whatever_the_operation() {
    are_named(&[
        ("open", "block_io", "archive-mount"),
        ("read", "block_io", "archive-mount"),
        ("list", "block_io", "archive-mount"),
        ("write", "block_io", "archive-mount"),
        ("ioctl", "process_wait", "archive-mount"),
        ("ioctl-flags", "process_wait", "archive-mount"),
        ("ioctl-folder", "process_wait", "archive-mount"),
    ]);
}

/// A setting of the kernel, which is as before when this is dropped.
struct Setting<'a> {
    path: &'a Path,
    before: String,
}

impl<'a> Setting<'a> {
    fn of(path: &'a Path, value: &str) -> Self {
        let before = fs::read_to_string(path).unwrap();
        fs::write(path, value).unwrap();
        Self { path, before }
    }
}

impl Drop for Setting<'_> {
    fn drop(&mut self) {
        fs::write(self.path, &self.before).unwrap();
    }
}

#[test]
#[ignore = "takes a while: make test-waits has it"]
fn who_serves_a_file_system_by_io_uring_is_named_where_the_kernel_has_that() {
    let path = Path::new("/sys/module/fuse/parameters/enable_uring");
    assert!(path.exists(), "needs FUSE over io_uring, which Linux has from 6.14 on");
    let _allowed = Setting::of(path, "Y");
    are_named(&[
        ("ring-stat", "block_io", "archive-mount"),
        ("ring-read", "block_io", "archive-mount"),
        ("ring-fault", "page_fault", "archive-mount"),
    ]);
}

#[test]
#[ignore = "takes a while: make test-waits has it"]
fn who_has_the_lock_of_a_file_is_named() {
    are_named(&[
        ("flock", "process_wait", "cache-warmer"),
        ("lockf", "process_wait", "cache-warmer"),
    ]);
}

/// Processes that compute are named for the waits of programs, one program at a time. They owe what they computed.
fn are_busy(kinds: &[(&'static str, &'static str)]) {
    let (exporter, _keeper) = observed();
    for (kind, culprit) in kinds {
        have_culprits(&exporter, &[(kind, "process_wait", culprit)]);
    }
}

#[test]
#[ignore = "takes a while: make test-waits has it"]
fn a_child_that_computes_is_named_and_so_is_one_that_waits_for_its_own() {
    are_busy(&[("child", "ptxas"), ("grandchild", "nvcc")]);
}

#[test]
#[ignore = "takes a while: make test-waits has it"]
fn a_parent_that_prepares_the_work_is_named_however_it_hands_it_over() {
    are_busy(&[("parent", "engine"), ("parent-socket", "engine"), ("parent-semaphore", "engine")]);
}

/// Time of a program's threads that launch in a state.
fn spent(exporter: &Exporter, waiter: &Waiter, state: &str) -> f64 {
    let labels = [("pid", &*waiter.pid), ("state", state)];
    exporter.samples().sum("gpucause_dispatcher_seconds_total", &labels)
}

/// No cause of waits for a CPU is found for a program that gives its CPU away.
fn loses_nothing(exporter: &Exporter, waiter: &Waiter) {
    until("time that it gave away", || (spent(exporter, waiter, "yield") > 1.0).then_some(()));
    let begin = Instant::now();
    until("evaluations", || (begin.elapsed() > FOUND_WITHIN).then_some(()));
    for cause in ["cpu_preemption", "runqueue_wait"] {
        let chain = chain_of(exporter, &waiter.pid, cause);
        let blames_idle =
            |chain: &Value| chain["fix"].as_str().unwrap().contains("Idle CPUs wake up late");
        let is_much = |chain: &Value| chain["severity"] != "low" || blames_idle(chain);
        assert!(!chain.as_ref().is_some_and(is_much), "{}: {chain:?}", waiter.kind);
    }
}

#[test]
fn nobody_is_named_for_time_that_was_given_away_or_for_a_child_that_sleeps() {
    let (exporter, _keeper) = observed();
    let mut waiter = Waiter::start(SCRIPT, "yield");
    let mut parent = Waiter::start(SCRIPT, "sleeper");
    waiter.go();
    parent.go();
    until("waits for a child", || (spent(&exporter, &parent, "child") > 0.5).then_some(()));
    loses_nothing(&exporter, &waiter);
    assert_eq!(chain_of(&exporter, &parent.pid, "process_wait"), None);
}

#[test]
#[ignore = "takes a while: make test-waits has it"]
fn nobody_is_named_for_time_that_was_given_away_to_several_or_to_a_thread_of_the_program() {
    let (exporter, _keeper) = observed();
    for kind in ["yield-to-several", "yield-to-own"] {
        let mut waiter = Waiter::start(SCRIPT, kind);
        waiter.go();
        loses_nothing(&exporter, &waiter);
    }
}
