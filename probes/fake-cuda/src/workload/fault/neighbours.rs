//! Other processes that are busy, on the feeding thread's CPU or beside it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::symlink;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};

use super::{Culprit, Fault};
use crate::cli::FaultOptions;
use crate::gpu::{Gpu, Pace};
use crate::loss::Kind;

/// Busy processes that wait to be let go. They end when this is dropped, or the process does.
pub(crate) struct Neighbours {
    name: &'static str,
    running: Vec<Child>,
}

impl Neighbours {
    /// Starts programs of this name, bound to a CPU.
    pub(super) fn start(name: &'static str, cpu: usize, count: usize) -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("gpucause-{}", std::process::id()));
        std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        let link = dir.join(name);
        // The kernel names a process after the file that it executes.
        symlink(std::env::current_exe()?, &link).with_context(|| link.display().to_string())?;
        let mut neighbours = Self { name, running: Vec::new() };
        for _ in 0..count {
            let mut child = Command::new(&link)
                .args(["burn", "--wait", "--cpu", &cpu.to_string(), "--name", name])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let output = child.stdout.take().context("no output")?;
            neighbours.running.push(child);
            let mut line = String::new();
            BufReader::new(output).read_line(&mut line)?;
            if line.trim() != "burning" {
                bail!("{name} on CPU {cpu} did not start");
            }
        }
        // Whoever ends this process leaves nothing behind.
        std::fs::remove_file(&link)?;
        std::fs::remove_dir(&dir)?;
        Ok(neighbours)
    }

    /// Lets them be busy.
    pub(crate) fn go(&mut self) -> Result<()> {
        for child in &mut self.running {
            let input = child.stdin.as_mut().context("no input")?;
            writeln!(input, "go")?;
        }
        Ok(())
    }

    pub(super) fn culprit(&self) -> Culprit {
        let pids = self.running.iter().map(Child::id).collect();
        Culprit { comm: self.name.to_owned(), pids }
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        for child in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
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
