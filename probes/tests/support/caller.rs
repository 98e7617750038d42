//! Processes to observe, which do on command what `caller.c` offers. They are killed when dropped.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Compiles the program into a directory.
pub(crate) fn build_caller(directory: &Path, name: &str, options: &[&str]) -> PathBuf {
    let program = directory.join(name);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/caller.c");
    let built = Command::new("cc")
        .args(["-O1", "-g0", "-fno-omit-frame-pointer", "-o"])
        .arg(&program)
        .args(options)
        .args([source, "-ldl"])
        .status()
        .expect("cc must be installed");
    assert!(built.success());
    program
}

/// A running caller.
pub(crate) struct Caller {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Caller {
    pub(crate) fn start(program: &Path) -> Self {
        Self::started_by(&mut Command::new(program))
    }

    pub(crate) fn started_by(command: &mut Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
        let commands = child.stdin.take().expect("piped");
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        let mut caller = Self { child, commands, answers };
        assert_eq!(caller.answer(), "ready");
        caller
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("an answer");
        line.trim_end().to_owned()
    }

    /// Gives a command without waiting for its answer.
    pub(crate) fn send(&mut self, command: &str) {
        writeln!(self.commands, "{command}").expect("listens");
    }

    /// Waits for its answer, and returns the text behind `ok`.
    pub(crate) fn await_ok(&mut self) -> String {
        let answer = self.answer();
        let rest = answer.strip_prefix("ok");
        rest.unwrap_or_else(|| panic!("{answer:?}")).trim_start().to_owned()
    }

    /// Gives a command and waits for its answer.
    pub(crate) fn request(&mut self, command: &str) -> String {
        self.send(command);
        self.await_ok()
    }

    pub(crate) fn open(&mut self, library: &Path) {
        self.request(&format!("open {}", library.display()));
    }

    /// Calls a function with the arguments 0 to `times - 1`; returns the sum of the results and nanoseconds.
    pub(crate) fn call(&mut self, function: &str, times: u64) -> (u64, u64) {
        let answer = self.request(&format!("call {function} {times}"));
        let (sum, ns) = answer.split_once(' ').expect("two numbers");
        (sum.parse().expect("a number"), ns.parse().expect("a number"))
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.kill();
    }
}
