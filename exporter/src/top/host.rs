//! What is known of the host while no process has a row, and what to do about it.

use std::path::Path;

use gpucause_abi::Tgid;
use gpucause_engine::observation::{Period, State};
use gpucause_investigations::observation::sentence;
use gpucause_probes::Status;
use gpucause_probes::registry::Verdict;

/// What the probes found.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Host {
    /// Whether processes are observed; `None` before that is asked.
    pub(super) observation: Option<Period>,
    /// The libraries that were in use at start are attached to.
    pub(super) ready: bool,
    /// Libraries with probes.
    pub(super) attached: usize,
    /// CUDA libraries that could not be attached to.
    pub(super) refused: usize,
    /// The only process that is asked for.
    pub(super) only: Option<Tgid>,
    /// There is no such process on this host.
    pub(super) gone: bool,
}

impl Host {
    pub(super) fn of(status: &Status, observation: Period, only: Option<Tgid>) -> Self {
        let count = |is: fn(&Verdict) -> bool| {
            status.libraries.iter().filter(|library| is(&library.verdict)).count()
        };
        Self {
            observation: Some(observation),
            ready: status.is_ready(),
            attached: count(|verdict| *verdict == Verdict::Attached),
            refused: count(|verdict| matches!(verdict, Verdict::Broken(_) | Verdict::Refused(_))),
            only,
            gone: only.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()),
        }
    }

    /// Whether processes are observed, in words.
    pub(super) fn observes(&self) -> String {
        self.observation.as_ref().map_or_else(|| "not known yet".into(), sentence)
    }

    /// Why nothing is shown, and what to do.
    pub(super) fn advice(&self) -> String {
        if !self.ready {
            return "Looking for the CUDA libraries in use ...".into();
        }
        if self.observation.as_ref().is_some_and(|own| own.state == State::Disabled) {
            return "Nothing is observed: no process can be shown.".into();
        }
        if let Some(pid) = self.only.filter(|_| self.gone) {
            return format!("There is no process {pid} on this host, or it has ended.");
        }
        if let Some(pid) = self.only {
            return format!(
                "Process {pid} has made no CUDA call since it is watched: it is idle, in a call that began before, or not the right one. \
                 Without --pid all processes are shown."
            );
        }
        match (self.attached, self.refused) {
            (0, 0) => "No CUDA process found yet. Start one: it is found as it loads libcudart or libcuda. \
                       To see what this shows without one: gpucause demo"
                .into(),
            (0, refused) => format!(
                "CUDA libraries found: {refused}, and none could be attached to: gpucause check says why."
            ),
            (attached, _) => format!(
                "CUDA libraries with probes: {attached}. No process has made a call yet; the first one shows here."
            ),
        }
    }
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
            gone: false,
        };
        for (host, word) in [
            (host(false, 0, 0, None), "Looking for"),
            (host(true, 0, 0, None), "gpucause demo"),
            (host(true, 0, 2, None), "gpucause check"),
            (host(true, 3, 1, None), "probes: 3"),
            (host(true, 3, 1, Some(Tgid(42))), "Process 42"),
            (Host { gone: true, ..host(true, 3, 1, Some(Tgid(42))) }, "no process 42"),
            (
                Host {
                    observation: Some(Period::disabled(0.0, "SIGUSR1")),
                    ..host(true, 0, 0, None)
                },
                "Nothing is observed",
            ),
        ] {
            assert!(host.advice().contains(word), "{host:?}: {}", host.advice());
        }
    }
}
