//! Worker processes of Python are named however they were started: since 3.14 by a server, whose children they are.

use super::chains::chain_of;
use super::python::{Python, pythons};
use gpucause_fixture::exporter::Exporter;
use gpucause_fixture::poll::until;
use gpucause_fixture::workload::{Workload, libraries};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/host/end_to_end/start_methods.py");
const SYSTEMS: &str = "/usr/bin/python3";

/// A program that waits for its worker.
struct Training {
    /// The first process of the program.
    _python: Python,
    worker: u64,
    /// The process that launches.
    pid: String,
}

impl Training {
    fn start(python: &Path, method: &str, first: &str) -> Self {
        let child = Command::new(python)
            .arg(SCRIPT)
            .arg(libraries().join("libcudart.so.12"))
            .args([method, first])
            .env("GPUCAUSE_FAKE", "cudaLaunchKernel:spin=200us")
            .stdout(Stdio::piped())
            .spawn();
        let mut python = Python(child.expect("Python is installed"));
        let mut line = String::new();
        BufReader::new(python.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (worker, pid) = line.trim().split_once(' ').unwrap();
        Self { _python: python, worker: worker.parse().unwrap(), pid: pid.to_owned() }
    }

    /// Waits until the worker is named for the waits of the program.
    fn expect_starvation(&self, exporter: &Exporter, what: &str) {
        self.expect(exporter, "dataloader_starvation", what);
    }

    fn expect(&self, exporter: &Exporter, cause: &str, what: &str) {
        let chain = until(&format!("a chain of {what}"), || chain_of(exporter, &self.pid, cause));
        assert_eq!(chain["culprit"]["pid"], self.worker, "{what}: {chain}");
        assert!(chain["explained"].as_f64().unwrap() >= 0.5, "{what}: {chain}");
    }
}

/// With probes on the stand-in library.
fn exporter() -> Exporter {
    let exporter = Exporter::start(&[]);
    let mut keeper = Workload::start(&["calls", "--calls=1"]);
    keeper.work();
    exporter.until_attached(&libraries().join("libcudart.so.12"));
    exporter
}

#[test]
fn a_worker_that_does_not_keep_up_is_named_by_whichever_method_it_was_started() {
    let exporter = exporter();
    let methods = ["fork", "spawn", "forkserver"].map(|method| (Path::new(SYSTEMS), method));
    let pythons = pythons();
    let defaults = pythons.iter().map(|own| (&**own, "default"));
    // Each worker has a CPU.
    for pair in methods.into_iter().chain(defaults).collect::<Vec<_>>().chunks(2) {
        let start = |&(python, method)| Training::start(python, method, "call");
        let started: Vec<_> = pair.iter().map(start).collect();
        for (training, (python, method)) in started.iter().zip(pair) {
            training.expect_starvation(&exporter, &format!("{} {method}", python.display()));
        }
    }
}

#[test]
fn a_worker_of_a_server_that_is_older_than_the_first_call_or_the_exporter_is_named() {
    let older = Training::start(Path::new(SYSTEMS), "forkserver", "call");
    let exporter = exporter();
    older.expect_starvation(&exporter, "a program older than the exporter");
    drop(older);
    let late = Training::start(Path::new(SYSTEMS), "forkserver", "worker");
    late.expect_starvation(&exporter, "a first call behind the worker");
}

#[test]
#[ignore = "takes a while: make test-waits has it"]
fn a_worker_below_a_process_that_never_launches_is_named_though_its_own_parent_has_ended() {
    let exporter = exporter();
    for first in ["call", "worker"] {
        // Each worker has a CPU.
        let trees = ["torchrun", "srun"];
        let started = trees.map(|tree| Training::start(Path::new(SYSTEMS), tree, first));
        for (training, tree) in started.iter().zip(trees) {
            training.expect_starvation(&exporter, &format!("{tree}, {first} first"));
        }
    }
}

#[test]
#[ignore = "takes a while: make test-waits has it"]
fn a_process_that_another_one_started_beside_the_program_is_named_for_what_it_prepares() {
    let exporter = exporter();
    for first in ["call", "worker"] {
        let training = Training::start(Path::new(SYSTEMS), "ray", first);
        training.expect(&exporter, "process_wait", first);
    }
}
