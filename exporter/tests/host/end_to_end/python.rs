//! Stacks of slow calls tell the lines of Python that made them, for every version that is here.

use super::recording::{end, record};
use super::stacks::stacks;
use gpucause_fixture::poll::until;
use gpucause_fixture::workload::libraries;
use gpucause_trace::recording::Stack;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/host/end_to_end/slow_calls.py");
const OP: &str = "cudaDeviceSynchronize";

/// A Python program, killed when dropped.
pub(crate) struct Python(pub(crate) Child);

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A Python program that makes slow calls: one round for each call of `go`.
struct Script {
    child: Python,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Script {
    fn start(python: &Path) -> Self {
        let mut child = Command::new(python)
            .arg(SCRIPT)
            .arg(libraries().join("libcudart.so.12"))
            .env("GPUCAUSE_FAKE", format!("{OP}:sleep=3ms"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut script = Self { child: Python(child), input, output };
        assert_eq!(script.line(), "ready");
        script
    }

    fn line(&mut self) -> String {
        self.output.next().unwrap().unwrap()
    }

    fn go(&mut self) -> String {
        writeln!(self.input).unwrap();
        self.line()
    }

    fn pid(&self) -> String {
        self.child.0.id().to_string()
    }
}

/// The system's Python, those that a version manager has beside it, and those that `make test` has unpacked.
pub(crate) fn pythons() -> Vec<PathBuf> {
    let mut found = vec![PathBuf::from("/usr/bin/python3")];
    let unpacked = std::env::var_os("GPUCAUSE_PYTHONS").unwrap_or_default();
    found.extend(std::env::split_paths(&unpacked).filter(|path| path.is_absolute()));
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    for entry in fs::read_dir(home.join(".pyenv/versions")).into_iter().flatten().flatten() {
        found.push(entry.path().join("bin/python3"));
    }
    found.retain(|python| python.exists());
    found
}

/// The minor version.
fn minor(python: &Path) -> u32 {
    let program = "import sys; print(sys.version_info[1] if sys.version_info[0] == 3 else 0)";
    let output = Command::new(python).args(["-c", program]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

/// The line of the script that ends so.
fn marked(comment: &str) -> u32 {
    let script = fs::read_to_string(SCRIPT).unwrap();
    let ends = |line: &str| line.ends_with(&format!("  # {comment}"));
    u32::try_from(script.lines().position(ends).unwrap()).unwrap() + 1
}

/// The innermost frames of Python in the script: function and line.
fn in_script(stack: &Stack) -> Vec<(String, u32)> {
    let python = stack.frames.iter().filter(|frame| frame.is_python);
    let own = python.take_while(|frame| frame.file.as_deref() == Some(SCRIPT));
    own.map(|frame| (frame.function.clone().unwrap(), frame.line.unwrap())).collect()
}

/// Returns the stacks that the second round must have.
fn expected(minor: u32) -> BTreeSet<Vec<(String, u32)>> {
    let named = |long: &str, short: &str| if minor >= 11 { long } else { short }.to_owned();
    let main = ("<module>".to_owned(), marked("main"));
    let work = |what: &str| ("work".to_owned(), marked(what));
    BTreeSet::from([
        vec![
            (named("Model.forward.<locals>.inner", "inner"), marked("inner")),
            (named("Model.forward", "forward"), marked("forward")),
            work("work forward"),
            main.clone(),
        ],
        vec![("spread".to_owned(), marked("spread")), work("work spread"), main.clone()],
        vec![("lazily".to_owned(), marked("lazily")), work("work lazily"), main.clone()],
        vec![(named("Loader.__init__", "__init__"), marked("init")), work("work init"), main],
        vec![("in_thread".to_owned(), marked("thread"))],
    ])
}

#[test]
fn stacks_tell_the_lines_of_python_of_every_version_that_is_supported() {
    let pythons = pythons();
    assert!(!pythons.is_empty(), "/usr/bin/python3 is not installed");
    let mut supported = 0;
    for python in pythons {
        let minor = minor(&python);
        if (9..=15).contains(&minor) {
            supported += 1;
            check(&python, minor);
        }
    }
    assert!(supported > 0, "no Python is installed of a version that is supported");
}

fn check(python: &Path, minor: u32) {
    let dir = tempfile::tempdir().unwrap();
    let (db, log) = (dir.path().join("trace.db"), dir.path().join("log"));
    let mut script = Script::start(python);
    let recorder = record(&db, &log, &["--calls-from=2ms", "--pid", &script.pid()]);
    assert_eq!(script.go(), "met");
    until("frames of Python", || {
        let text = fs::read_to_string(&log).unwrap();
        text.contains(&format!("version=\"CPython 3.{minor}\"")).then_some(())
    });
    assert_eq!(script.go(), "done");
    end(recorder, &log);
    let found = stacks(&db, &script.pid(), OP);
    let recorded: BTreeSet<_> = found.iter().map(in_script).filter(|own| !own.is_empty()).collect();
    let first = marked("first");
    let second = recorded.iter().filter(|own| !own.iter().any(|(_, line)| *line == first));
    assert_eq!(second.cloned().collect::<BTreeSet<_>>(), expected(minor), "{python:?}: {found:#?}");
    let mut files =
        found.iter().flat_map(|stack| &stack.frames).filter_map(|frame| frame.file.as_ref());
    assert!(
        !files.any(|file| file.starts_with('<') || file == "__init__"),
        "frames of the interpreter itself were recorded: {found:#?}"
    );
    let thread = ("in_thread".to_owned(), marked("thread"));
    let in_thread = found.iter().find(|stack| in_script(stack).first() == Some(&thread));
    let bootstrap = in_thread.unwrap().frames.last().unwrap();
    assert!(bootstrap.function.as_deref().unwrap().ends_with("_bootstrap"), "{bootstrap:?}");
}
