//! The stand-in workload: a process that launches kernels from one thread, and a busy process that takes its CPU.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, ensure};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// Where packages put the stand-ins.
const INSTALLED: &str = "/usr/lib/gpucause/stand-ins";
const WORKLOAD: &str = "gpucause-workload";
const TRAINER: &str = "demo-trainer";
const RIVAL: &str = "cpu-burner";
/// CPU time of one launch. Slices of the scheduler are some milliseconds: one launch in a few dozen meets the end of one.
const LAUNCH: &str = "100us";
/// Longer than anybody watches.
const SECONDS: &str = "86400";

/// The running workload, killed when dropped.
#[derive(Debug)]
pub(super) struct StandIn {
    workload: Child,
}

impl StandIn {
    /// Starts it from `dir`, or from where builds and packages put it.
    pub(super) fn start(dir: Option<&Path>) -> anyhow::Result<Self> {
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
        let workload = Command::new(&program)
            .args(["contend", "--with-parent", "--seconds", SECONDS, "--spin", LAUNCH])
            .args(["--comm", TRAINER, "--burner-name", RIVAL, "--libs"])
            .arg(&dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            // A group of its own, so that its busy process ends with it.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Self { workload })
    }

    /// What is simulated and what is real.
    pub(super) fn explain(&self) -> String {
        format!(
            "No CUDA process runs here, so a stand-in does: {TRAINER} (PID {}) launches kernels while {RIVAL} fights it for\n\
             one CPU. Simulated: the CUDA libraries. Real: the processes, the contention, the probes, every number.",
            self.workload.id()
        )
    }
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
    let own = std::env::current_exe().context("cannot tell where this program is")?;
    let beside = own.with_file_name("stand-ins");
    Ok(if beside.exists() { beside } else { INSTALLED.into() })
}
