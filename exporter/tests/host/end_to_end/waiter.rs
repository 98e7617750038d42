//! A program of Python that launches, and that waits for something in each step from when it is asked to on.

use super::chains::chain_of;
use super::python::Python;
use gpucause_fixture::exporter::Exporter;
use gpucause_fixture::poll::until;
use gpucause_fixture::workload::{Workload, libraries};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{ChildStdout, Command, Stdio};

/// Launches of a process before something is wrong: it is warm then.
const WARM: f64 = 20_000.0;
/// The share by which the seconds of a chain may differ from those of the program's clock.
const TOLERANCE: f64 = 0.1;
/// Least part of an effect that what is wrong explains: its first window has healthy time, too.
const EXPLAINED: f64 = 0.8;

/// The program, killed when dropped.
pub(crate) struct Waiter {
    python: Python,
    output: Lines<BufReader<ChildStdout>>,
    /// PID of the process that launches.
    pub(crate) pid: String,
    /// Words that say how it waits.
    pub(crate) kind: String,
}

impl Waiter {
    /// Starts a script beside this file with these words as its arguments, and with the library behind them.
    pub(crate) fn start(script: &str, kind: &str) -> Self {
        let script = format!("{}/tests/host/end_to_end/{script}", env!("CARGO_MANIFEST_DIR"));
        let python = Command::new("/usr/bin/python3")
            .args(["-B", &script])
            .args(kind.split(' '))
            .arg(libraries().join("libcudart.so.12"))
            .env("GPUCAUSE_FAKE", "cudaLaunchKernel:spin=20us")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut python = Python(python.expect("python3 is installed"));
        let mut output = BufReader::new(python.0.stdout.take().unwrap()).lines();
        let pid = output.next().expect("it launches").unwrap();
        Self { python, output, pid, kind: kind.to_owned() }
    }

    pub(crate) fn until_warm(&self, exporter: &Exporter) {
        until("launches", || {
            let launches = exporter.samples().sum("gpucause_launches_total", &[("pid", &self.pid)]);
            (launches > WARM).then_some(())
        });
    }

    /// Lets it wait in each step, or no more.
    pub(crate) fn go(&mut self) {
        writeln!(self.python.0.stdin.as_mut().unwrap()).unwrap();
    }

    /// Waits until most of what is wrong is of this cause and of this culprit.
    pub(crate) fn expect(&self, exporter: &Exporter, cause: &str, culprit: &str) -> Value {
        until(&format!("{cause} of {}", self.kind), || {
            let chain = chain_of(exporter, &self.pid, cause)?;
            let is_most = chain["explained"].as_f64()? >= EXPLAINED;
            (is_most && chain["culprit"]["comm"] == culprit).then_some(chain)
        })
    }

    /// Lets it wait no more; returns for how many seconds it was blocked.
    fn end(&mut self) -> f64 {
        self.go();
        self.output.next().expect("it says how long it was blocked").unwrap().parse().unwrap()
    }
}

/// An exporter with probes on the stand-in library.
pub(crate) fn observed() -> (Exporter, Workload) {
    let exporter = Exporter::start(&[]);
    let mut keeper = Workload::start(&["calls", "--calls=1"]);
    keeper.work();
    exporter.until_attached(&libraries().join("libcudart.so.12"));
    (exporter, keeper)
}

/// Starts programs that leave the CPUs idle, and lets them wait once they are warm.
pub(crate) fn started(exporter: &Exporter, script: &str, kinds: &[&str]) -> Vec<Waiter> {
    let mut waiters: Vec<_> = kinds.iter().map(|kind| Waiter::start(script, kind)).collect();
    waiters.iter().for_each(|waiter| waiter.until_warm(exporter));
    waiters.iter_mut().for_each(Waiter::go);
    waiters
}

/// Lets programs wait no more, and compares what they lost with what the chains of these causes took.
pub(crate) fn check_seconds(exporter: &Exporter, waiters: &mut [Waiter], causes: &[&str]) {
    let truth: Vec<f64> = waiters.iter_mut().map(Waiter::end).collect();
    for ((waiter, truth), cause) in waiters.iter().zip(truth).zip(causes) {
        until(&format!("the end of {}", waiter.kind), || {
            let chain = chain_of(exporter, &waiter.pid, cause)?;
            (chain["ongoing"] == false).then_some(())
        });
        let labels = [("pid", &*waiter.pid), ("cause", cause)];
        let taken = exporter.samples().sum("gpucause_causal_chain_seconds_total", &labels);
        let kind = &waiter.kind;
        assert!(
            (taken / truth - 1.0).abs() <= TOLERANCE,
            "{kind}: {cause} took {taken} s of {truth} s"
        );
    }
}
