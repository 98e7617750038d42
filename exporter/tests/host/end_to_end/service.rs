//! The exporter under a service manager, played by the test.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gpucause_fixture::exporter::{Exporter, gpucause};
use gpucause_fixture::http_client;
use gpucause_fixture::poll::{DEADLINE, until};
use gpucause_fixture::samples::Samples;
use gpucause_fixture::workload::{Workload, libraries};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

/// Capabilities of later attaches as bits: `SYS_PTRACE`, `DAC_READ_SEARCH`, `CHECKPOINT_RESTORE`.
const KEPT: u64 = 1 << 19 | 1 << 2 | 1 << 40;

/// The socket that services write their notices to.
struct Manager {
    folder: tempfile::TempDir,
    socket: UnixDatagram,
}

impl Manager {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        Self { folder, socket }
    }

    fn exporter(&self, arguments: &[&str]) -> Exporter {
        let mut command = gpucause(&["exporter", "--web.listen-address=127.0.0.1:0"]);
        command.args(arguments).env("NOTIFY_SOCKET", self.folder.path().join("notify"));
        Exporter::of(command.env("WATCHDOG_USEC", "400000"))
    }

    /// The next notice; `None` when the service is silent for this long.
    fn notice_within(&self, timeout: Duration) -> Option<String> {
        self.socket.set_read_timeout(Some(timeout)).unwrap();
        let mut bytes = [0; 4096];
        let length = self.socket.recv(&mut bytes).ok()?;
        Some(String::from_utf8(bytes[..length].to_vec()).unwrap())
    }

    /// The next notice that is no sign of life.
    fn notice(&self) -> String {
        loop {
            let notice = self.notice_within(DEADLINE).expect("a notice");
            if notice != "WATCHDOG=1\n" {
                return notice;
            }
        }
    }
}

#[test]
fn the_service_manager_is_notified_of_start_life_reloads_and_end() {
    let manager = Manager::new();
    let config = manager.folder.path().join("config.yaml");
    std::fs::write(&config, "retention: 1m\n").unwrap();
    let exporter = manager.exporter(&["--config.file", config.to_str().unwrap()]);
    assert_eq!(manager.notice(), "READY=1\n");
    for _ in 0..3 {
        assert_eq!(manager.notice_within(DEADLINE).unwrap(), "WATCHDOG=1\n");
    }
    exporter.signal(Signal::SIGHUP);
    let reloading = manager.notice();
    let time = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").expect(&reloading);
    assert!(time.trim_end().parse::<u64>().unwrap() > 0);
    assert_eq!(manager.notice(), "READY=1\nSTATUS=\n");
    // A valid edit, and an invalid one: the daemon is as ready as it was.
    std::fs::write(&config, "retention: soon\n").unwrap();
    assert!(manager.notice().starts_with("RELOADING=1\n"));
    let refused = manager.notice();
    let expected =
        "READY=1\nSTATUS=configuration reload failed; the previous configuration is still active: ";
    assert!(refused.starts_with(expected) && refused.contains("retention"), "{refused}");
    exporter.signal(Signal::SIGTERM);
    assert_eq!(manager.notice(), "STOPPING=1\n");
    assert_eq!(exporter.ended().code(), Some(0));
    assert_eq!(manager.notice_within(Duration::from_millis(1)), None, "it says no more");
}

#[test]
fn a_daemon_that_stands_still_gives_no_sign_of_life() {
    let manager = Manager::new();
    let exporter = manager.exporter(&[]);
    assert_eq!(manager.notice(), "READY=1\n");
    exporter.signal(Signal::SIGSTOP);
    // This takes the notices that were sent before.
    while manager.notice_within(Duration::from_millis(400)).is_some() {}
    exporter.signal(Signal::SIGCONT);
    assert_eq!(manager.notice_within(DEADLINE).unwrap(), "WATCHDOG=1\n");
}

#[test]
fn a_service_manager_that_does_not_read_keeps_no_scrape_waiting() {
    let manager = Manager::new();
    let exporter = manager.exporter(&[]);
    // The kernel keeps ten notices for a reader, and there are ten a second.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(http_client::get(exporter.address, "/metrics").status, 200);
    assert_eq!(manager.notice(), "READY=1\n");
    assert_eq!(manager.notice_within(DEADLINE).unwrap(), "WATCHDOG=1\n");
}

/// Threads that run again when this is dropped: a process with a stopped thread cannot end.
struct Stopped(Vec<Pid>);

impl Drop for Stopped {
    fn drop(&mut self) {
        for thread in self.0.drain(..) {
            let _ = ptrace::detach(thread, None);
        }
    }
}

/// Stops the thread that takes samples while it waits for a task: elsewhere it may hold the allocator's lock, for which every other
/// thread would wait.
fn stop_sampler(pid: u32) -> Stopped {
    let mut tasks =
        std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|task| task.unwrap().path());
    let sampler = tasks.find(|task| {
        std::fs::read_to_string(task.join("comm")).unwrap().starts_with("gpucause-sample")
    });
    let sampler = sampler.expect("no thread takes samples");
    let thread = Pid::from_raw(sampler.file_name().unwrap().to_str().unwrap().parse().unwrap());
    ptrace::seize(thread, ptrace::Options::empty()).unwrap();
    until("the thread waits", || {
        ptrace::interrupt(thread).unwrap();
        waitpid(thread, Some(WaitPidFlag::__WALL)).unwrap();
        let call = std::fs::read_to_string(sampler.join("syscall")).unwrap();
        let waits = call.split(' ').next() == Some(&nix::libc::SYS_futex.to_string());
        if !waits {
            ptrace::cont(thread, None).unwrap();
        }
        waits.then_some(())
    });
    Stopped(vec![thread])
}

#[test]
fn a_daemon_whose_background_work_is_stuck_gives_no_sign_of_life_although_it_serves() {
    let manager = Manager::new();
    let exporter = manager.exporter(&[]);
    assert_eq!(manager.notice(), "READY=1\n");
    let stopped = stop_sampler(exporter.pid());
    let begin = Instant::now();
    while manager.notice_within(Duration::from_secs(1)).is_some() {
        assert!(begin.elapsed() < DEADLINE, "still signs of life");
    }
    assert_eq!(http_client::get(exporter.address, "/-/healthy").status, 200);
    until("a word in the log", || exporter.log().contains("task is stuck").then_some(()));
    drop(stopped);
    assert_eq!(manager.notice_within(DEADLINE).unwrap(), "WATCHDOG=1\n");
}

#[test]
fn sockets_of_the_service_manager_are_served() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let mut command = Command::new("sh");
    let script = r#"exec 3<&0 0</dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec "$@""#;
    command.args(["-c", script, "sh"]).arg(env!("CARGO_BIN_EXE_gpucause")).arg("exporter");
    // Connections wait in the socket until the daemon is there.
    let exporter = Exporter::of(command.stdin(Stdio::from(OwnedFd::from(socket))));
    assert_eq!(exporter.address, address);
    assert_eq!(http_client::get(address, "/-/healthy").status, 200);
}

#[test]
fn a_socket_that_cannot_be_served_is_a_configuration_error() {
    let mut command = Command::new("sh");
    let script = r#"exec 3</dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec "$@""#;
    command.args(["-c", script, "sh"]).arg(env!("CARGO_BIN_EXE_gpucause")).arg("exporter");
    let output = command.output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(78), "{log}");
    assert!(log.contains("ListenStream="), "{log}");
}

#[test]
fn what_is_not_needed_any_more_is_given_up_by_every_thread() {
    let _user = Workload::start(&["idle"]);
    let exporter = Exporter::start(&[]);
    exporter.until_attached(&libraries().join("libcudart.so.12"));
    let tasks = std::fs::read_dir(format!("/proc/{}/task", exporter.pid())).unwrap();
    let mut names = BTreeSet::new();
    for task in tasks.map(Result::unwrap) {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().to_owned()
        };
        let set = |name| u64::from_str_radix(&field(name), 16).unwrap();
        names.insert(field("Name:"));
        for name in ["CapPrm:", "CapEff:", "CapBnd:"] {
            assert_eq!(set(name), KEPT, "{name} of {status}");
        }
        assert_eq!((set("CapInh:"), set("CapAmb:")), (0, 0));
        assert_eq!(field("NoNewPrivs:"), "1");
    }
    assert!(names.contains("gpucause-find") && names.len() > 1, "{names:?}");
}

#[test]
fn a_restart_resets_every_counter_and_its_created_time() {
    const CALLS: &str = "gpucause_cuda_call_duration_seconds";
    let mut workload = Workload::start(&["calls", "--calls=500", "--threads=1"]);
    let pid = workload.pid();
    let openmetrics = "Accept: application/openmetrics-text;version=1.0.0\r\n";
    let times = |samples: &Samples| {
        // In whole seconds, unlike the beginning of the daemon's own counters.
        let started = samples.of("process_start_time_seconds", &[])[0].value;
        let loaded = samples.of("gpucause_processes_folded_created", &[])[0].value;
        assert!((started..started + 10.0).contains(&loaded), "{loaded} of a daemon of {started}");
        let created = samples.of(&format!("{CALLS}_created"), &[("pid", &pid)]);
        (loaded, created.first().map(|sample| sample.value))
    };
    let first = Exporter::start(&[]);
    first.until_attached(&libraries().join("libcudart.so.12"));
    workload.work();
    let (loaded, created) = times(&Samples::parse(first.scrape(openmetrics).text()));
    let created = created.expect("calls were counted");
    assert!(created >= loaded, "counted from {created} on, by a daemon that loaded at {loaded}");
    first.signal(Signal::SIGTERM);
    assert_eq!(first.ended().code(), Some(0));
    let second = Exporter::start(&[]);
    let (reloaded, none) = times(&Samples::parse(second.scrape(openmetrics).text()));
    assert!(reloaded > loaded);
    assert_eq!(none, None, "the second daemon exports nothing that the first one counted");
    let mut next = Workload::start(&["calls", "--calls=500", "--threads=1"]);
    second.until_attached(&libraries().join("libcudart.so.12"));
    next.work();
    let page = until("its calls", || {
        let samples = Samples::parse(second.scrape(openmetrics).text());
        samples.has(&format!("{CALLS}_created"), &[("pid", &next.pid())]).then_some(samples)
    });
    let created = page.of(&format!("{CALLS}_created"), &[("pid", &next.pid())])[0].value;
    assert!(created >= reloaded);
}
