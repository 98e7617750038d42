//! The workload as a child process, and what it says of itself.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;

/// The loss in seconds since the injection, at a time on the monotonic clock in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Truth {
    at_ns: u64,
    lost_seconds: f64,
}

/// A running trainer. It and its children are killed when this is dropped.
pub(crate) struct Trainer {
    child: Child,
    lines: Receiver<String>,
    /// What it said when the fault began.
    pub(crate) injected: Option<Value>,
    truths: Vec<Truth>,
    /// How it ended, if it has.
    pub(crate) ended: Option<ExitStatus>,
}

fn built(file: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_gpucause")).with_file_name(file);
    assert!(
        path.exists(),
        "{} is not built; run: cargo build -p gpucause-fake-cuda -p gpucause-fake-cudart \
         -p gpucause-fake-cuda-driver -p gpucause-fake-nccl -p gpucause-fake-nvml",
        path.display()
    );
    path
}

/// The stand-in libraries under the names that programs open.
pub(crate) fn libraries() -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("scenario-stand-ins");
    let laid_out =
        Command::new(built("gpucause-workload")).arg("lay-out").arg(&dir).status().unwrap();
    assert!(laid_out.success(), "the stand-in libraries are not built");
    dir
}

/// Gives a session more of the CPUs than all others. Without groups of sessions there is nothing to give.
fn favour(pid: u32) {
    let path = format!("/proc/{pid}/autogroup");
    if Path::new(&path).exists() {
        std::fs::write(&path, "-20").expect("needs root");
    }
}

impl Trainer {
    /// Starts one, and waits until its libraries are mapped. It and those that fight with it come before others that work on
    /// this host.
    pub(crate) fn start(libraries: &Path, arguments: &[String]) -> Self {
        // A session of its own is a group of its own to the scheduler, and to `killpg`.
        let mut child = Command::new("setsid")
            .arg(built("gpucause-workload"))
            .args(["scenario", "--wait", "--with-parent", "--every", "50ms", "--libs"])
            .arg(libraries)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = child.stdout.take().unwrap();
        let (send, lines) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.take_while(|line| send.send(line.clone()).is_ok()).count()
        });
        let ready = lines.recv_timeout(Duration::from_secs(30)).expect("it says that it is ready");
        assert!(ready.starts_with("ready "), "{ready}");
        favour(child.id());
        Self { child, lines, injected: None, truths: Vec::new(), ended: None }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets it begin.
    pub(crate) fn go(&mut self) {
        writeln!(self.child.stdin.as_mut().unwrap(), "go").unwrap();
    }

    /// Listens until a moment. False when it has ended.
    pub(crate) fn listen_until(&mut self, end: Instant) -> bool {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.take(&line),
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => {
                    self.ended = self.child.wait().ok();
                    return false;
                }
            }
        }
    }

    fn take(&mut self, line: &str) {
        let said: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
        if let Some(injected) = said.get("injected") {
            self.injected = Some(injected.clone());
        }
        let truth = said.get("truth").unwrap_or(&said);
        if let (Some(at_ns), Some(lost_seconds)) =
            (truth["at_ns"].as_u64(), truth["lost_seconds"].as_f64())
        {
            self.truths.push(Truth { at_ns, lost_seconds });
        }
    }

    /// What it had lost at a moment on the monotonic clock, by the two nearest lines.
    pub(crate) fn lost_seconds_at(&self, at_ns: u64) -> Option<f64> {
        let after = self.truths.iter().position(|truth| truth.at_ns >= at_ns)?;
        let (before, after) = (self.truths[after.checked_sub(1)?], self.truths[after]);
        let part = (at_ns - before.at_ns) as f64 / (after.at_ns - before.at_ns).max(1) as f64;
        Some(before.lost_seconds + part * (after.lost_seconds - before.lost_seconds))
    }
}

impl Drop for Trainer {
    fn drop(&mut self) {
        let group = i32::try_from(self.child.id()).map(Pid::from_raw);
        // It may have ended by itself.
        let _ = group.map(|group| killpg(group, Signal::SIGKILL));
        let _ = self.child.wait();
    }
}
