//! The stand-in workload: a process that feeds a simulated GPU, the fault that is injected into it, and its own account of the loss.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, getpgid};
use parking_lot::Mutex;
use serde::Deserialize;

use super::scenario::Scenario;

/// Where packages put the stand-ins.
const INSTALLED: &str = "/usr/lib/gpucause/stand-ins";
const WORKLOAD: &str = "gpucause-workload";
const TRAINER: &str = "demo-trainer";
/// Longer than any demo.
const SECONDS: &str = "86400";

/// The culprit by the workload's own account.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct TrueCulprit {
    pub(super) comm: String,
    pub(super) pids: Vec<u32>,
}

/// The fault, as reported when it begins.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Injected {
    /// The cause by its name on metrics; empty when nothing is wrong.
    pub(super) cause: String,
    pub(super) culprit: Option<TrueCulprit>,
    /// In seconds since the Unix epoch.
    pub(super) at_unix: f64,
}

/// Time lost since the fault began, by the workload's own clocks.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct Truth {
    /// In seconds since the Unix epoch.
    pub(super) at_unix: f64,
    pub(super) lost_seconds: f64,
}

/// Reports of the workload so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Account {
    pub(super) injected: Option<Injected>,
    pub(super) truths: Vec<Truth>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line {
    Injected(Injected),
    Truth(Truth),
}

impl Account {
    fn add(&mut self, line: &str) {
        match serde_json::from_str(line) {
            Ok(Line::Injected(injected)) => self.injected = Some(injected),
            Ok(Line::Truth(truth)) => self.truths.push(truth),
            // `ready` and the result.
            Err(_) => {}
        }
    }

    /// Seconds lost until a time in seconds since the Unix epoch.
    pub(super) fn lost_until(&self, unix: f64) -> Option<f64> {
        let nearest = self
            .truths
            .iter()
            .min_by(|a, b| (a.at_unix - unix).abs().total_cmp(&(b.at_unix - unix).abs()));
        nearest.map(|truth| truth.lost_seconds)
    }
}

/// The running workload, killed when dropped.
#[derive(Debug)]
pub(super) struct StandIn {
    workload: Child,
    scenario: Scenario,
    account: Arc<Mutex<Account>>,
}

impl StandIn {
    /// Starts the workload of `dir`, or else that of the build or package.
    pub(super) fn start(
        dir: Option<&Path>,
        scenario: Scenario,
        baseline: Duration,
    ) -> anyhow::Result<Self> {
        let dir = match dir {
            Some(dir) => dir.to_owned(),
            None => default_dir()?,
        };
        let program = dir.join(WORKLOAD);
        ensure!(
            program.exists(),
            "no stand-in workload at {}: `make run` builds it, or name its folder with --stand-in-dir",
            program.display()
        );
        let mut workload = Command::new(&program)
            .args(["scenario", &scenario.name(), "--with-parent", "--seconds", SECONDS])
            .args(["--every", "200ms", "--comm", TRAINER])
            .arg(format!("--baseline={}", baseline.as_secs_f64()))
            .arg("--libs")
            .arg(&dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // A group of its own, so that its other processes end with it.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let output = workload.stdout.take().context("the stand-in workload has no output")?;
        let account = Arc::default();
        listen(output, Arc::clone(&account));
        Ok(Self { workload, scenario, account })
    }

    /// Explains what is simulated and what is real.
    pub(super) fn explain(&self) -> String {
        format!(
            "Scenario {}: {}.\n\
             {TRAINER} (PID {}) stands in for a CUDA program. Simulated: the GPU and the CUDA libraries. Real: the processes,\n\
             the threads, the resources they compete for, the probes, every number.",
            self.scenario.name(),
            self.scenario.what(),
            self.workload.id()
        )
    }

    /// Returns the reports of the workload so far.
    pub(super) fn account(&self) -> Account {
        self.account.lock().clone()
    }

    /// Returns true if a process belongs to the stand-in workload.
    pub(super) fn owns(&self, pid: u32) -> bool {
        let process = |pid: u32| i32::try_from(pid).ok().map(Pid::from_raw);
        process(pid).and_then(|pid| getpgid(Some(pid)).ok()) == process(self.workload.id())
    }
}

fn listen(output: ChildStdout, account: Arc<Mutex<Account>>) {
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            account.lock().add(&line);
        }
    });
}

impl Drop for StandIn {
    fn drop(&mut self) {
        let group = i32::try_from(self.workload.id()).map(Pid::from_raw);
        // It may have ended by itself.
        let _ = group.map(|group| killpg(group, Signal::SIGKILL));
        let _ = self.workload.wait();
    }
}

fn default_dir() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find the path of this program")?;
    let beside = own.with_file_name("stand-ins");
    Ok(if beside.exists() { beside } else { INSTALLED.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workloads_account_is_read_line_by_line() {
        let mut account = Account::default();
        for line in [
            r#"ready {"pid":1}"#,
            r#"{"injected":{"cause":"lock_wait","culprit":{"comm":"x","pids":[1]},"at_unix":5.0,"pid":1}}"#,
            r#"{"truth":{"at_ns":1,"at_unix":6.0,"lost_seconds":0.5}}"#,
            r#"{"truth":{"at_ns":2,"at_unix":7.0,"lost_seconds":0.9}}"#,
        ] {
            account.add(line);
        }
        assert_eq!(account.injected.as_ref().map(|own| &*own.cause), Some("lock_wait"));
        assert_eq!(account.lost_until(6.1), Some(0.5));
        assert_eq!(account.lost_until(99.0), Some(0.9));
    }
}
