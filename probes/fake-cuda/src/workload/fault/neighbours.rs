//! Other processes that are busy, on the dispatcher thread's CPU or beside it.

use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::process::{ChildStdin, Command, Stdio};

use anyhow::{Context as _, Result};

use super::{Culprit, Fault};
use crate::cli::FaultOptions;
use crate::gpu::{Gpu, Pace};
use crate::loss::Kind;
use crate::process::{apart, start_burning};

/// Busy processes that wait for [`Self::go`] and have nothing else to do with this one. They end when this is dropped, or the process
/// ends: that closes their input.
pub(crate) struct Neighbours {
    name: &'static str,
    inputs: Vec<ChildStdin>,
    pids: Vec<u32>,
}

impl Neighbours {
    /// Starts programs of this name, bound to a CPU.
    pub(super) fn start(name: &'static str, cpu: usize, count: usize) -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("gpucause-{}", std::process::id()));
        std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        let link = dir.join(name);
        // The kernel names a process after the file that it executes.
        symlink(std::env::current_exe()?, &link).with_context(|| link.display().to_string())?;
        let (mut inputs, mut pids) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let mut command = Command::new(&link);
            apart(command.args(["burn", "--wait"]).stdin(Stdio::piped()));
            let (mut child, pid) = start_burning(&mut command, cpu, name)?;
            inputs.push(child.stdin.take().context("no input")?);
            pids.push(pid);
            child.wait()?;
        }
        // Whoever ends this process leaves nothing behind.
        std::fs::remove_file(&link)?;
        std::fs::remove_dir(&dir)?;
        Ok(Self { name, inputs, pids })
    }

    /// Lets them be busy.
    pub(crate) fn go(&mut self) -> Result<()> {
        for input in &mut self.inputs {
            writeln!(input, "go")?;
        }
        Ok(())
    }

    pub(super) fn culprit(&self) -> Culprit {
        Culprit { comm: self.name.to_owned(), pids: self.pids.clone() }
    }
}

/// Busy processes on the CPU of a thread that needs most of it.
pub(super) struct Contention {
    neighbours: Neighbours,
}

impl Contention {
    /// With as many as take the share of a thread that always wants to run.
    pub(super) fn new(name: &'static str, options: &FaultOptions) -> Result<Self> {
        let count = match options.strength {
            share if share < 0.6 => 1,
            share if share < 0.72 => 2,
            _ => 3,
        };
        Ok(Self { neighbours: Neighbours::start(name, options.cpu()?, count)? })
    }
}

impl Fault for Contention {
    fn pace(&self) -> Pace {
        Pace::BUSY
    }

    fn kind(&self) -> Kind {
        Kind::RunDelay
    }

    fn culprit(&self) -> Option<Culprit> {
        Some(self.neighbours.culprit())
    }

    fn inject(&mut self, _gpu: &mut Gpu) -> Result<()> {
        self.neighbours.go()
    }
}
