//! Waits for another process are named with it, whatever the system call; a thread that yields its CPU waits for nobody.

use super::chains::chain_of;
use super::python::Python;
use gpucause_fixture::exporter::Exporter;
use gpucause_fixture::poll::until;
use gpucause_fixture::workload::{Workload, libraries};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/host/end_to_end/other_process.py");
/// Launches of a process before something is wrong: it is warm then.
const WARM: f64 = 20_000.0;
/// Causes that are found at all are found by then.
const FOUND_WITHIN: Duration = Duration::from_secs(12);

/// A program that is about to wait for another process.
struct Waiter {
    kind: &'static str,
    python: Python,
    pid: String,
}

impl Waiter {
    fn start(kind: &'static str) -> Self {
        let python = Command::new("/usr/bin/python3")
            .args([SCRIPT, kind])
            .arg(libraries().join("libcudart.so.12"))
            .env("GPUCAUSE_FAKE", "cudaLaunchKernel:spin=20us")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut python = Python(python.expect("python3 is installed"));
        let mut pid = String::new();
        BufReader::new(python.0.stdout.take().unwrap()).read_line(&mut pid).unwrap();
        Self { kind, python, pid: pid.trim().to_owned() }
    }

    fn until_warm(&self, exporter: &Exporter) {
        until("launches", || {
            let launches = exporter.samples().sum("gpucause_launches_total", &[("pid", &self.pid)]);
            (launches > WARM).then_some(())
        });
    }

    fn go(&mut self) {
        writeln!(self.python.0.stdin.as_mut().unwrap()).unwrap();
    }
}

fn observed() -> (Exporter, Workload) {
    let exporter = Exporter::start(&[]);
    let mut keeper = Workload::start(&["calls", "--calls=1"]);
    keeper.work();
    exporter.until_attached(&libraries().join("libcudart.so.12"));
    (exporter, keeper)
}

#[test]
fn whom_a_thread_waits_for_is_named_whatever_the_system_call() {
    let (exporter, _keeper) = observed();
    // Waiters of one list run together, as they leave the CPUs idle.
    let together: [&[_]; 3] = [
        &[
            ("reader", "process_wait", "log-shipper"),
            ("stat", "block_io", "archive-mount"),
            ("read", "block_io", "archive-mount"),
            ("fault", "page_fault", "archive-mount"),
            ("flock", "process_wait", "cache-warmer"),
            ("lockf", "process_wait", "cache-warmer"),
        ],
        &[("child", "process_wait", "ptxas")],
        &[("parent", "process_wait", "engine")],
    ];
    for kinds in together {
        let mut waiters: Vec<_> = kinds.iter().map(|(kind, ..)| Waiter::start(kind)).collect();
        waiters.iter().for_each(|waiter| waiter.until_warm(&exporter));
        waiters.iter_mut().for_each(Waiter::go);
        for (waiter, &(_, cause, culprit)) in waiters.iter().zip(kinds) {
            let chain = until(waiter.kind, || {
                let chain = chain_of(&exporter, &waiter.pid, cause)?;
                // Its first window has healthy time, too.
                let is_most = chain["explained"].as_f64()? >= 0.8;
                (is_most && chain["culprit"]["comm"] == culprit).then_some(chain)
            });
            let text = format!("{} {}", chain["sentence"], chain["fix"]);
            assert!(text.contains(culprit), "{text}");
            assert!(!text.contains("faster disk") && !text.contains("more memory"), "{text}");
        }
    }
}

#[test]
fn nobody_is_named_for_time_that_was_given_away_or_for_a_child_that_sleeps() {
    let (exporter, _keeper) = observed();
    let mut waiter = Waiter::start("yield");
    let mut parent = Waiter::start("sleeper");
    waiter.go();
    parent.go();
    let spent = |waiter: &Waiter, state: &str| {
        let labels = [("pid", &*waiter.pid), ("state", state)];
        exporter.samples().sum("gpucause_dispatcher_seconds_total", &labels)
    };
    until("time that it gave away", || (spent(&waiter, "yield") > 1.0).then_some(()));
    until("waits for a child", || (spent(&parent, "child") > 0.5).then_some(()));
    let begin = Instant::now();
    until("evaluations", || (begin.elapsed() > FOUND_WITHIN).then_some(()));
    for cause in ["cpu_preemption", "runqueue_wait"] {
        let chain = chain_of(&exporter, &waiter.pid, cause);
        let is_much = |chain: &serde_json::Value| chain["severity"] != "low";
        assert!(!chain.as_ref().is_some_and(is_much), "{chain:?}");
    }
    assert_eq!(chain_of(&exporter, &parent.pid, "process_wait"), None);
}
