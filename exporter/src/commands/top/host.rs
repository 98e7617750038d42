//! The state of the host's probes, and advice for an empty table.

use std::path::Path;

use gpucause_abi::Tgid;
use gpucause_engine::observation::{Period, State};
use gpucause_investigations::observation::sentence;
use gpucause_probes::Status;
use gpucause_probes::registry::LibraryVerdict;

/// The state of the host's probes.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Host {
    /// State of the observation; `None` before the first one.
    pub(super) observation: Option<Period>,
    /// The libraries that were in use at start have probes.
    pub(super) ready: bool,
    /// Libraries with probes.
    pub(super) attached: usize,
    /// CUDA libraries that could not be attached to.
    pub(super) refused: usize,
    /// The only process that is shown.
    pub(super) only: Option<Tgid>,
    /// There is no such process on this host.
    pub(super) missing: bool,
}

impl Host {
    pub(super) fn of(status: &Status, observation: Period, only: Option<Tgid>) -> Self {
        let count = |is: fn(&LibraryVerdict) -> bool| {
            status.libraries.iter().filter(|library| is(&library.verdict)).count()
        };
        Self {
            observation: Some(observation),
            ready: status.is_ready(),
            attached: count(|verdict| *verdict == LibraryVerdict::Attached),
            refused: count(|verdict| {
                matches!(verdict, LibraryVerdict::Broken(_) | LibraryVerdict::Refused(_))
            }),
            only,
            missing: only.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()),
        }
    }

    /// Returns the state of the observation as text.
    pub(super) fn observation_state(&self) -> String {
        self.observation.as_ref().map_or_else(|| "not known yet".into(), sentence)
    }

    /// Why the table is empty, and what to do.
    pub(super) fn advice(&self) -> String {
        if !self.ready {
            return "Searching for the CUDA libraries in use ...".into();
        }
        if self.observation.as_ref().is_some_and(|own| own.state == State::Disabled) {
            return "Probes are disabled; no process can be shown.".into();
        }
        if let Some(pid) = self.only.filter(|_| self.missing) {
            return format!("Process {pid} does not exist or has exited.");
        }
        if let Some(pid) = self.only {
            let what = without_calls(pid.0, "top");
            return format!("{what}. Omit --pid to see all processes.");
        }
        match (self.attached, self.refused) {
            (0, 0) => {
                "No CUDA process found yet. A process is found when it loads libcudart or libcuda. \
                       To see top without one, run: gpucause demo"
                    .into()
            }
            (0, refused) => format!(
                "CUDA libraries found: {refused}; probes could be attached to none. Run `gpucause check` to see why."
            ),
            (attached, _) => {
                format!("CUDA libraries with probes: {attached}. No process has made a call yet.")
            }
        }
    }
}

/// Why nothing is known of a process since a command started.
pub(crate) fn without_calls(pid: u32, command: &str) -> String {
    format!(
        "Process {pid} has made no CUDA call since {command} started: it is idle, in a call that began before, or the wrong process"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_for_an_empty_table_has_its_advice() {
        let host = |ready, attached, refused, only| Host {
            observation: None,
            ready,
            attached,
            refused,
            only,
            missing: false,
        };
        for (host, word) in [
            (host(false, 0, 0, None), "Searching for"),
            (host(true, 0, 0, None), "gpucause demo"),
            (host(true, 0, 2, None), "gpucause check"),
            (host(true, 3, 1, None), "probes: 3"),
            (host(true, 3, 1, Some(Tgid(42))), "Process 42"),
            (
                Host { missing: true, ..host(true, 3, 1, Some(Tgid(42))) },
                "Process 42 does not exist",
            ),
            (
                Host {
                    observation: Some(Period::disabled(0.0, "SIGUSR1")),
                    ..host(true, 0, 0, None)
                },
                "Probes are disabled",
            ),
        ] {
            assert!(host.advice().contains(word), "{host:?}: {}", host.advice());
        }
    }
}
