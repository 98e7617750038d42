//! Commands on a trace file of many events: memory that does not grow with them, progress on a terminal and nowhere else, and no
//! half file when they are interrupted.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use gpucause_abi::op::Api;
use gpucause_abi::state::Reason;
use gpucause_abi::{ProcId, Tgid};
use gpucause_investigations::any_format::open;
use gpucause_trace::recording::{Call, OffCpu, Stack, StackFrame, Task};
use gpucause_trace::trace::{NewEvent, NewKind, Start, Writer};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

const START: i64 = 1_700_000_000_000_000_000;
const EVENTS: u64 = 300_000;
const FEW_EVENTS: u64 = 10_000;
/// Many events may cost a command so many KiB more: caches of SQLite fill up, in a merge those of both files and of the index.
const MOST_OF_READING: u64 = 4 * 1024;
const MOST_OF_MERGING: u64 = 10 * 1024;
/// A row group, in memory as text and as it is encoded.
const MOST_OF_PARQUET: u64 = 32 * 1024;
const DEADLINE: Duration = Duration::from_secs(300);

/// Written once, for all tests.
static TRACES: LazyLock<Traces> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, events| write(&folder.path().join(name), name, events);
    Traces { few: write("few", FEW_EVENTS), many: write("many", EVENTS), _folder: folder }
});

struct Traces {
    few: PathBuf,
    many: PathBuf,
    _folder: TempDir,
}

/// Calls of one thread, with waits between them.
fn write(path: &Path, node: &str, events: u64) -> PathBuf {
    let start =
        Start { node: node.into(), recorder: "test".into(), started_ns: START, ..Start::default() };
    let mut writer = Writer::create(path, &start).unwrap();
    let process = writer.process(ProcId(1), Tgid(42), "train").unwrap();
    let frame = StackFrame { address: 7, function: Some("step".into()), ..StackFrame::default() };
    let stack = writer.stack(&Stack { frames: vec![frame] }).unwrap();
    let call = Call {
        api: Api::Runtime,
        op: "cudaLaunchKernel",
        cold: Some(false),
        outermost: true,
        code: 0,
        off_cpu_ns: Some(0),
        bytes: None,
        copy: None,
        kernel: None,
    };
    let by = Some(Task { pid: Some(7), comm: "neighbor" });
    let wait = OffCpu { reason: Some(Reason::Preempted), by };
    let event = |at: u64| NewEvent {
        start_ns: START + (at * 10_000).cast_signed(),
        duration_ns: 9_000,
        process,
        tid: 43,
        kind: if at.is_multiple_of(2) { NewKind::Call(call) } else { NewKind::OffCpu(wait) },
        stack: at.is_multiple_of(2).then_some(stack),
    };
    writer.add_events((0..events).map(event)).unwrap();
    writer.finish().unwrap();
    path.to_owned()
}

fn gpucause(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpucause"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().try_into().unwrap()), signal).unwrap();
}

/// The most memory that a command has at a time, in KiB.
fn peak(arguments: &[&str]) -> u64 {
    let mut child = gpucause(arguments).stderr(Stdio::null()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    let ended = loop {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let own = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let own = own.and_then(|own| own.trim().strip_suffix(" kB")?.parse().ok());
        peak = own.unwrap_or(peak);
        if let Some(ended) = child.try_wait().unwrap() {
            break ended;
        }
        thread::sleep(Duration::from_millis(2));
    };
    // Nothing found in the file is 2.
    assert!(matches!(ended.code(), Some(0 | 2 | 3)), "{arguments:?}: {ended}");
    peak
}

#[test]
fn memory_does_not_grow_with_the_events_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let (out, lake) = (out.to_str().unwrap(), folder.path().join("lake"));
    let lake = lake.to_str().unwrap();
    for (command, most) in [
        (&["explain", "--db"][..], MOST_OF_READING),
        (&["merge", "--force", "-o", out], MOST_OF_MERGING),
        (&["export", "--format=perfetto", "--force", "-o", out, "--db"], MOST_OF_READING),
        (&["export", "--format=parquet", "--force", "-o", lake, "--db"], MOST_OF_PARQUET),
    ] {
        let of = |trace: &Path| peak(&[command, &[trace.to_str().unwrap()]].concat());
        // One run can end between two looks at it.
        let few = (0..3).map(|_| of(&TRACES.few)).max().unwrap();
        let many = of(&TRACES.many);
        println!("{command:?}: {few} KiB of few events, {many} KiB of many");
        assert!(many < few + most, "{command:?}: {few} KiB of few events, {many} KiB of many");
    }
}

/// The names and sizes of the files in a folder and those below it.
fn listed(folder: &Path) -> Vec<(String, u64)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()) {
        match entry.metadata() {
            Ok(folder) if folder.is_dir() => files.extend(listed(&entry.path())),
            Ok(file) => files.push((entry.file_name().into_string().unwrap(), file.len())),
            // It was given its name meanwhile.
            Err(_) => {}
        }
    }
    files.sort();
    files
}

/// Interrupts the command once something of its output is written.
fn interrupted(folder: &Path, arguments: &[&str], by: Signal) {
    let before = listed(folder);
    let own = gpucause(arguments);
    // These tests may be in the background of a script, which ignores SIGINT, and then so would the command.
    let mut command = Command::new("env");
    command.arg("--default-signal").arg(own.get_program()).args(own.get_args());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let begun = Instant::now();
    let is_hidden = |(name, size): &(String, u64)| name.starts_with('.') && *size > 0;
    while !listed(folder).iter().any(is_hidden) {
        assert!(begun.elapsed() < DEADLINE && child.try_wait().unwrap().is_none(), "{arguments:?}");
        thread::sleep(Duration::from_millis(1));
    }
    signal(&child, by);
    let ended = child.wait().unwrap();
    assert_eq!(ended.signal(), Some(by as i32), "{arguments:?}: {ended}");
    assert_eq!(listed(folder), before, "{arguments:?}");
    let mut said = String::new();
    child.stderr.unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "", "{arguments:?}");
}

#[test]
fn an_interrupted_command_leaves_no_half_file_and_what_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let (new, old) = (folder.path().join("new"), folder.path().join("old"));
    fs::write(&old, "previous").unwrap();
    let (new, old) = (new.to_str().unwrap(), old.to_str().unwrap());
    let trace = TRACES.many.to_str().unwrap();
    interrupted(folder.path(), &["merge", "-o", new, trace], Signal::SIGINT);
    interrupted(folder.path(), &["merge", "--force", "-o", old, trace], Signal::SIGTERM);
    let export = ["export", "--format=perfetto", "--db", trace, "-o"];
    interrupted(folder.path(), &[&export[..], &[new]].concat(), Signal::SIGHUP);
    interrupted(folder.path(), &[&export[..], &[old, "--force"]].concat(), Signal::SIGINT);
    assert_eq!(fs::read(old).unwrap(), b"previous");
    let lake = folder.path().join("lake");
    let export = ["export", "--format=parquet", "--db", trace, "-o", lake.to_str().unwrap()];
    interrupted(folder.path(), &export, Signal::SIGINT);
}

#[test]
fn a_command_that_fails_leaves_what_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let (damaged, old) = (folder.path().join("damaged.db"), folder.path().join("old"));
    fs::write(&old, "previous").unwrap();
    let mut content = fs::read(&TRACES.few).unwrap();
    // Events are in the first half.
    let at = content.len() / 4;
    content[at..at + 4_000].fill(0xff);
    fs::write(&damaged, content).unwrap();
    assert!(open(&damaged).is_ok(), "what is damaged are events");
    let (damaged, old) = (damaged.to_str().unwrap(), old.to_str().unwrap());
    let before = listed(folder.path());
    for command in [
        &["merge", "--force", "-o", old, damaged][..],
        &["export", "--format=perfetto", "--force", "-o", old, "--db", damaged],
    ] {
        let ended = gpucause(command).status().unwrap();
        assert_eq!(ended.code(), Some(1), "{command:?}");
        assert_eq!(listed(folder.path()), before, "{command:?}");
    }
    assert_eq!(fs::read(old).unwrap(), b"previous");
    let salvaged = folder.path().join("salvaged");
    let export = ["export", "--format=perfetto", "--db", damaged, "-o", salvaged.to_str().unwrap()];
    let output = gpucause(&export).stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("salvaged has the events before the damage"), "{said}");
    assert!(fs::metadata(&salvaged).unwrap().len() > 0 && listed(folder.path()).len() == 3);
}

#[test]
fn progress_is_on_the_terminal_of_standard_error_and_nowhere_else() {
    let trace = TRACES.many.to_str().unwrap();
    let export = ["export", "--format=perfetto", "--db", trace, "-o", "-"];
    let size = Winsize { ws_row: 24, ws_col: 160, ws_xpixel: 0, ws_ypixel: 0 };
    let OpenptyResult { master, slave } = openpty(&size, None).unwrap();
    // A program that another test starts meanwhile would keep the terminal open.
    for end in [&master, &slave] {
        fcntl(end, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).unwrap();
    }
    let mut command = gpucause(&export);
    command.env("TERM", "xterm").stdout(Stdio::piped()).stderr(Stdio::from(slave));
    let mut child = command.spawn().unwrap();
    // Its ends of the terminal are closed with it.
    drop(command);
    let reading = thread::spawn(move || {
        let (mut shown, mut master) = (Vec::new(), File::from(master));
        // Ends with an error once nobody writes to the terminal.
        let _ = master.read_to_end(&mut shown);
        String::from_utf8(shown).unwrap()
    });
    let mut exported = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut exported).unwrap();
    assert!(child.wait().unwrap().success());
    let shown = reading.join().unwrap();
    assert!(shown.contains(" % of 300,000 events, ") && shown.contains("/s"), "{shown}");
    assert!(shown.contains(" s left"), "{shown}");
    assert!(exported.len() > 1_000_000, "{} bytes", exported.len());
    let last = shown.rsplit('\r').next().unwrap();
    assert!(!last.contains('%'), "it is removed: {last:?}");

    let export = ["export", "--format=perfetto", "--db", trace, "-o", "-"];
    let piped = gpucause(&export).output().unwrap();
    assert!(piped.status.success() && piped.stderr.is_empty());
}
