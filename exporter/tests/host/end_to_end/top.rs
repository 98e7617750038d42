//! `gpucause top`, as plain text and on a terminal, which it gives back as it was.

use super::refusals::{outcome, outcome_as_nobody};
use gpucause_fixture::exporter::gpucause;
use gpucause_fixture::poll::until;
use gpucause_fixture::workload::{Workload, libraries};
use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{Termios, tcgetattr};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

/// Escape codes that the program writes when it ends: leave the alternate screen, show the cursor.
const LEAVE_SCREEN: &str = "\u{1b}[?1049l";
const SHOW_CURSOR: &str = "\u{1b}[?25h";

/// The program on a terminal of its own. Killed when dropped.
struct Terminal {
    child: Child,
    keys: File,
    line: OwnedFd,
    before: Termios,
    output: Arc<Mutex<String>>,
}

impl Terminal {
    fn start(mut command: Command) -> Self {
        let size = Winsize { ws_row: 24, ws_col: 160, ws_xpixel: 0, ws_ypixel: 0 };
        let OpenptyResult { master, slave } = openpty(&size, None).unwrap();
        let before = tcgetattr(&slave).unwrap();
        let end = || Stdio::from(slave.try_clone().unwrap());
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let keys = File::from(master);
        let output = Arc::new(Mutex::new(String::new()));
        let (mut reading, keeping) = (keys.try_clone().unwrap(), Arc::clone(&output));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reading.read(&mut bytes) {
                *keeping.lock().unwrap() += &String::from_utf8_lossy(&bytes[..count]);
            }
        });
        Self { child, keys, line: slave, before, output }
    }

    fn output(&self) -> String {
        self.output.lock().unwrap().clone()
    }

    fn until_it_shows(&self, text: &str) {
        until(text, || self.output().contains(text).then_some(()));
    }

    fn press(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    /// Waits for the end, which must be a good one.
    fn assert_given_back(mut self) {
        let status = until("its end", || self.child.try_wait().unwrap());
        // The reader of the terminal may be later than the end.
        for last in [LEAVE_SCREEN, SHOW_CURSOR] {
            until("the end of its output", || self.output().contains(last).then_some(()));
        }
        assert!(status.success(), "{status}: {:?}", self.output());
        assert_eq!(tcgetattr(&self.line).unwrap(), self.before);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn launching() -> Workload {
    let arguments = ["rate", "--per-second", "1000", "--seconds", "30", "--comm", "top-subject"];
    let mut workload = Workload::start(&arguments);
    workload.go();
    workload
}

#[test]
fn top_prints_the_launch_rate_of_a_process_once_and_ends() {
    let workload = launching();
    let arguments = ["top", "--once", "--interval", "1s", "--pid", &workload.pid()];
    let (code, output) = outcome(&mut gpucause(&arguments));
    assert_eq!(code, Some(0), "{output}");
    let row = output.lines().find(|line| line.contains("top-subject")).expect(&output);
    let fields: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(fields[..2], [&workload.pid(), "top-subject"]);
    let launches: f64 = fields[2].parse().unwrap();
    assert!((600.0..1400.0).contains(&launches), "{row}");
    workload.kill();
}

#[test]
fn top_names_the_process_that_has_the_cpu_by_its_pid() {
    let mut workload = Workload::start(&[
        "contend",
        "--seconds=25",
        "--spin=100us",
        "--burners=3",
        "--burner-name=top-culprit",
    ]);
    let pid = workload.pid();
    workload.go();
    let arguments = ["top", "--once", "--interval", "1s", "--pid", &pid];
    let culprit = until("a culprit with its PID", || {
        let (code, output) = outcome(&mut gpucause(&arguments));
        assert_eq!(code, Some(0), "{output}");
        let (_, rest) = output.split_once("CPU: top-culprit (")?;
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse::<u32>().ok()
    });
    let comm = std::fs::read_to_string(format!("/proc/{culprit}/comm")).unwrap();
    assert_eq!(comm.trim(), "top-culprit");
    workload.kill();
}

#[test]
fn top_without_a_process_says_what_to_do_and_so_it_does_without_root() {
    let (code, output) =
        outcome(&mut gpucause(&["top", "--once", "--interval", "100ms", "--pid", "1"]));
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("Process 1 has made no CUDA call"), "{output}");
    let (code, output) = outcome_as_nobody(&["top", "--once"]);
    assert_eq!(code, Some(1), "{output}");
    assert!(output.starts_with("error: ") && output.contains(" - run it with sudo"), "{output}");
}

#[test]
fn a_terminal_is_as_it_was_after_the_key_that_quits() {
    let workload = launching();
    let mut terminal = Terminal::start(gpucause(&["top", "--interval", "200ms"]));
    terminal.until_it_shows("top-subject");
    terminal.press(b"\r");
    terminal.until_it_shows("OFF CPU");
    terminal.press(b"q");
    terminal.assert_given_back();
    workload.kill();
}

#[test]
fn a_terminal_is_as_it_was_after_a_signal_and_after_the_last_interval() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let terminal = Terminal::start(gpucause(&["top"]));
        terminal.until_it_shows("gpucause");
        terminal.signal(signal);
        terminal.assert_given_back();
    }
    Terminal::start(gpucause(&["top", "-n", "1", "--interval", "100ms"])).assert_given_back();
}

#[test]
fn the_demo_shows_the_same_view_and_its_address_on_a_terminal() {
    let directory = libraries().to_str().unwrap();
    let arguments =
        ["demo", "--stand-in", "--web.listen-address=127.0.0.1:0", "--stand-in-dir", directory];
    let mut terminal = Terminal::start(gpucause(&arguments));
    terminal.until_it_shows("http://127.0.0.1:");
    terminal.until_it_shows("demo-trainer");
    terminal.press(b"q");
    terminal.assert_given_back();
}
