//! `gpucause check`: whether the exporter can run on this host, and how to fix what prevents it.

mod beside;
mod capability;
mod installed;

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use gpucause_probes::feature::{AttachMode, Features};
use gpucause_probes::hazard::HazardSeverity;
use gpucause_probes::registry::{LibraryStatus, Verdict as LibraryVerdict};
use gpucause_probes::thread_records::ThreadRecords;
use gpucause_probes::verdict::Verdict;
use gpucause_probes::{Options, Probes, Status};

use crate::config;
use crate::server::{Limits, ListenAddress, Server, WebConfig};

/// Oldest kernel in whose scheduler programs can allocate map entries: [`Features::require`].
const OLDEST_KERNEL: (u32, u32) = (6, 1);
/// The inode of the kernel's initial PID namespace. `NSpid` of `/proc/self/status` is no help: a container's own `/proc` begins
/// with the PID in the container.
const HOST_PID_NAMESPACE: &str = "pid:[4026531836]";
/// Time for the discovery of mapped libraries.
const FIND_DEADLINE: Duration = Duration::from_secs(10);

/// Name of the lines about the file of `--web.config.file`.
const WEB_CONFIG: &str = "web configuration";

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Passed.
    Ok,
    /// Can be fixed: something has to be installed, granted or freed.
    Missing,
    /// Cannot be fixed on this kernel or for this file.
    Unsupported,
}

impl State {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Missing => "missing",
            Self::Unsupported => "unsupported",
        }
    }
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The result.
    pub state: State,
    /// What was checked.
    pub subject: String,
    /// The finding, and how to fix it.
    pub detail: String,
    /// Whether the exporter cannot run unless it is ok.
    pub blocks: bool,
}

/// Everything that was checked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// In the order in which the exporter needs them.
    pub lines: Vec<Line>,
}

impl Report {
    /// Checks this host.
    #[must_use]
    pub fn of_this_host(
        listen_addresses: &[ListenAddress],
        config: Option<&Path>,
        web_config: Option<&Path>,
    ) -> Self {
        let mut report = Self::default();
        report.lines.extend(listen_addresses.iter().filter_map(beside::line));
        if let Some(path) = web_config {
            report.web_config(path);
        }
        if let Some(path) = config {
            report.config(path);
        }
        report.kernel();
        report.features();
        report.pid_namespace();
        report.lines.extend(capability::report());
        report.programs();
        report.lines.extend(installed::report());
        for address in listen_addresses {
            report.port(address);
        }
        report
    }

    /// Whether the exporter can run.
    #[must_use]
    pub fn can_run(&self) -> bool {
        !self.lines.iter().any(|line| line.blocks && line.state != State::Ok)
    }

    /// Whether the web configuration is invalid.
    #[must_use]
    pub fn misconfigured(&self) -> bool {
        self.lines.iter().any(|line| line.subject == WEB_CONFIG && line.state != State::Ok)
    }

    fn web_config(&mut self, path: &Path) {
        match WebConfig::load(path) {
            Ok(config) => {
                self.add(State::Ok, WEB_CONFIG, format!("{}: {config}", path.display()), true);
            }
            Err(error) => {
                for line in error.to_string().lines() {
                    self.add(State::Missing, WEB_CONFIG, line, true);
                }
            }
        }
    }

    fn add(&mut self, state: State, subject: &str, detail: impl Into<String>, blocks: bool) {
        let line = Line { state, subject: subject.into(), detail: detail.into(), blocks };
        self.lines.push(line);
    }

    fn config(&mut self, path: &Path) {
        match config::load(path) {
            Ok(_) => self.add(State::Ok, "configuration", path.to_string_lossy(), true),
            Err(error) => {
                for line in error.to_string().lines() {
                    self.add(State::Missing, "configuration", line, true);
                }
            }
        }
    }

    fn kernel(&mut self) {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let release = release.trim();
        let (state, detail) = match version_of(release) {
            Some(version) if version >= OLDEST_KERNEL => (State::Ok, release.to_owned()),
            Some(_) if Features::detect().is_ok() => {
                (State::Ok, format!("{release}: has the eBPF of a newer kernel; not tested"))
            }
            Some(_) => (State::Unsupported, {
                let (major, minor) = OLDEST_KERNEL;
                format!("{release} is too old: {major}.{minor} or newer is needed")
            }),
            None => (State::Unsupported, format!("unknown kernel version {release:?}")),
        };
        self.add(state, "kernel", detail, true);
        for hazard in gpucause_probes::hazard::hazards(release) {
            let state = match hazard.severity {
                HazardSeverity::Warning => State::Missing,
                HazardSeverity::Note => State::Ok,
            };
            let detail = format!("{}; {}", hazard.harm, hazard.remedy);
            self.add(state, &format!("hazard {}", hazard.name), detail, false);
        }
    }

    fn pid_namespace(&mut self) {
        let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let nested = namespace.as_os_str() != HOST_PID_NAMESPACE;
        let (state, detail) = if nested {
            (
                State::Missing,
                "not the host's, so processes are not found; in a container use the host's (hostPID)",
            )
        } else {
            (State::Ok, "the host's")
        };
        self.add(state, "PID namespace", detail, true);
    }

    fn features(&mut self) {
        let features = match Features::detect() {
            Ok(features) => features,
            Err(error) => return self.add(State::Unsupported, "BTF", error.to_string(), true),
        };
        self.add(State::Ok, "BTF", gpucause_probes::feature::BTF_PATH, true);
        let detail = match features.best_mode() {
            AttachMode::Session => "uprobe.session: one link per library",
            AttachMode::Multi => {
                "uprobe.multi: two links per library (uprobe.session needs kernel 6.13)"
            }
            AttachMode::Perf => {
                "perf events: two per function, and CAP_SYS_ADMIN is required (uprobe.multi needs kernel 6.6)"
            }
        };
        self.add(State::Ok, "uprobes", detail, false);
    }

    fn programs(&mut self) {
        // Calibration makes calls, which need a record.
        let probes = match Probes::start(Options { calibrate: true, ..Options::default() }) {
            Ok(probes) => probes,
            Err(error) => {
                return self.add(State::Missing, "eBPF programs", error.to_string(), true);
            }
        };
        let start = Instant::now();
        while !probes.status().is_ready() && start.elapsed() < FIND_DEADLINE {
            std::thread::sleep(Duration::from_millis(5));
        }
        let status = probes.status();
        for program in &status.programs {
            let (state, detail) = match &program.verdict {
                Verdict::Attached => (State::Ok, "loaded and attached".to_owned()),
                Verdict::Disabled => (State::Ok, "disabled".to_owned()),
                Verdict::Unsupported(reason) => (State::Unsupported, reason.clone()),
                Verdict::Broken(reason) => (State::Missing, reason.clone()),
            };
            self.add(state, &format!("program {}", program.program), detail, false);
        }
        if status.thread_records == ThreadRecords::Refused {
            let detail = "the kernel refuses records of threads, so no call is counted: use another kernel or processor";
            self.add(State::Unsupported, "thread records", detail, true);
        }
        self.libraries(&status);
    }

    fn libraries(&mut self, status: &Status) {
        if !status.discovery.watching {
            let detail = "new libraries are found by periodic scans only; CAP_PERFMON allows attaching as they are mapped";
            self.add(State::Missing, "mmap events", detail, false);
        }
        if status.libraries.is_empty() {
            let detail = "not mapped by any process now; probes are attached when one maps them";
            self.add(State::Ok, "CUDA libraries", detail, false);
        }
        for library in &status.libraries {
            let (state, detail) = library_line(library);
            self.add(state, &library.path.to_string_lossy(), detail, false);
            let slow = library.slow.iter().map(|symbol| &**symbol);
            self.lines.extend(installed::slow_launch(&library.path, slow));
        }
    }

    fn port(&mut self, address: &ListenAddress) {
        let subject = format!("listen {address}");
        match Server::bind(std::slice::from_ref(address), Limits::default()) {
            Ok(_) => self.add(State::Ok, &subject, "free", true),
            Err(error) => self.add(State::Missing, &subject, error.to_string(), true),
        }
    }
}

fn library_line(library: &LibraryStatus) -> (State, String) {
    let state = match library.verdict {
        LibraryVerdict::Attached => State::Ok,
        LibraryVerdict::NoSymbols | LibraryVerdict::Broken(_) => State::Unsupported,
        LibraryVerdict::Refused(_) | LibraryVerdict::OverLimit => State::Missing,
    };
    let mut detail = library.verdict.to_string();
    if library.sites > 0 {
        detail.push_str(&format!(": {} functions, {} operations", library.sites, library.ops));
    }
    if !library.slow.is_empty() {
        detail.push_str(&format!(
            "; a probe costs about 10 times as much at {}",
            library.slow.join(", ")
        ));
    }
    (state, detail)
}

fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            writeln!(f, "{:<12} {:<26} {}", line.state.label(), line.subject, line.detail)?;
        }
        let verdict =
            if self.can_run() { "the exporter can run" } else { "the exporter cannot run" };
        writeln!(f, "{verdict}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_releases_are_compared_by_their_first_two_numbers() {
        assert_eq!(version_of("6.18.44-generic"), Some((6, 18)));
        assert_eq!(version_of("6.1"), Some(OLDEST_KERNEL));
        assert_eq!(version_of("rolling"), None);
        assert!(version_of("5.15.0-1").is_some_and(|version| version < OLDEST_KERNEL));
    }

    #[test]
    fn only_what_blocks_keeps_the_exporter_from_running() {
        let mut report = Report::default();
        report.add(State::Missing, "mmap events", "scans only", false);
        assert!(report.can_run());
        report.add(State::Missing, "listen :9400", "taken", true);
        assert!(!report.can_run());
        assert!(report.to_string().ends_with("the exporter cannot run\n"));
    }
}
