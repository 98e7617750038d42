//! Stand-in workloads: child processes that call CUDA libraries and then tell the truth about it.

use serde_json::Value;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

/// The workload program, built beside the exporter.
fn program() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_gpucause")).with_file_name("gpucause-workload");
    assert!(
        program.exists(),
        "{} is not built; run: cargo build -p gpucause-fake-cuda -p gpucause-fake-cudart \
         -p gpucause-fake-cuda-driver -p gpucause-fake-nccl -p gpucause-fake-nvml",
        program.display()
    );
    program
}

/// The stand-in libraries under the names that programs open.
pub(crate) fn libraries() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("end_to_end");
        let laid_out = Command::new(program()).arg("lay-out").arg(&dir).status().unwrap();
        assert!(laid_out.success(), "the stand-in libraries are not built");
        dir
    })
}

/// A workload that waits to be told to go, and stays after its work until it is ended. Killed when dropped.
pub(crate) struct Workload {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

impl Workload {
    /// With the stand-in libraries; returns when they are mapped and the threads exist.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let libraries = libraries().to_str().unwrap();
        Self::with(&[arguments, &["--libs", libraries]].concat())
    }

    /// With the libraries that the arguments name.
    pub(crate) fn with(arguments: &[&str]) -> Self {
        let mut child = Command::new(program())
            .args(arguments)
            .args(["--wait", "--hold"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = output.next().expect("the workload says that it is ready").unwrap();
        assert!(ready.starts_with("ready "), "{ready}");
        Self { child, input, output }
    }

    pub(crate) fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Lets it work.
    pub(crate) fn go(&mut self) {
        writeln!(self.input.as_mut().unwrap(), "go").unwrap();
    }

    /// Waits for the end of the work; the process lives on.
    pub(crate) fn truth(&mut self) -> Value {
        let line = self.output.next().expect("the workload tells what it did").unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// Both.
    pub(crate) fn work(&mut self) -> Value {
        self.go();
        self.truth()
    }

    /// Lets the process exit.
    pub(crate) fn end(mut self) {
        drop(self.input.take());
        assert!(self.child.wait().unwrap().success());
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
