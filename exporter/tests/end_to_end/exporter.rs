//! The exporter as a process of its own.

use crate::http_client::{self, Response};
use crate::poll::until;
use crate::samples::Samples;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

/// A running exporter on a port of its own. Killed when dropped; a failing test shows its log.
pub(crate) struct Exporter {
    child: Child,
    pub(crate) address: SocketAddr,
    log: Arc<Mutex<String>>,
}

/// The program with arguments.
pub(crate) fn gpucause(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpucause"));
    command.args(arguments);
    command
}

impl Exporter {
    /// Starts it and waits until it is ready.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut child = gpucause(&["exporter", "--web.listen-address=127.0.0.1:0"])
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = child.stderr.take().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let keeping = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                *keeping.lock().unwrap() += &format!("{line}\n");
            }
        });
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut exporter = Self { child, address: any, log };
        exporter.address = until("the address in the log", || {
            let ended = exporter.child.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", exporter.log());
            address_in(&exporter.log())
        });
        until("readiness", || {
            (http_client::get(exporter.address, "/-/ready").status == 200).then_some(())
        });
        exporter
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has logged so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Scrapes with these headers, each a whole line.
    pub(crate) fn scrape(&self, headers: &str) -> Response {
        let response = http_client::request(self.address, "GET", "/metrics", headers);
        assert_eq!(response.status, 200, "{}", String::from_utf8_lossy(&response.body));
        response
    }

    pub(crate) fn samples(&self) -> Samples {
        Samples::parse(self.scrape("").text())
    }

    /// Waits until the probes of a library are attached.
    pub(crate) fn until_attached(&self, library: &Path) {
        let path = library.canonicalize().unwrap();
        let labels =
            [("probe", "call"), ("library", path.to_str().unwrap()), ("verdict", "attached")];
        until("the probes of the library", || {
            self.samples().has("gpucause_probe_info", &labels).then_some(())
        });
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid().try_into().unwrap()), signal).unwrap();
    }

    /// Waits for its end.
    pub(crate) fn ended(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("log of the exporter:\n{}", self.log());
        }
    }
}

fn address_in(log: &str) -> Option<SocketAddr> {
    let (_, rest) = log.split_once("127.0.0.1:")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit())?;
    Some(([127, 0, 0, 1], rest[..digits].parse().ok()?).into())
}
