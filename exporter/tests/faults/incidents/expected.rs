//! The right alert for each fault.

use super::webhook::Alert;

/// The name of each program under test. The exporter exports no others: other tests have programs of the same executable.
pub(crate) const COMM: &str = "alert-trainer";

/// The alert of the launch p99.
const OF_LAUNCHES: &str = "GpucauseLaunchP99SpreadHigh";

/// A fault and its alert.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected {
    pub(crate) scenario: &'static str,
    /// True if the dispatcher thread has priority over all others, so that neighbours cannot disturb it.
    pub(crate) undisturbed: bool,
    pub(crate) alert: &'static str,
    pub(crate) receiver: &'static str,
    /// Beside those of the process.
    pub(crate) labels: &'static [(&'static str, &'static str)],
    /// Parts of the description beside the victim.
    pub(crate) description: &'static [&'static str],
    /// True if the launch p99 must be notified too, to a receiver of its own.
    pub(crate) slows_launches: bool,
}

pub(crate) const LOCK: Expected = Expected {
    scenario: "lock",
    undisturbed: true,
    alert: "GpucauseLockHolder",
    receiver: "gpu-hosts",
    labels: &[],
    description: &["waiting for locks", "stats-flusher"],
    slows_launches: false,
};

pub(crate) const DATALOADER: Expected = Expected {
    scenario: "dataloader",
    undisturbed: true,
    alert: "GpucauseDataloaderStarvation",
    receiver: "gpu-hosts",
    labels: &[],
    description: &["for data that its busy workers had not produced"],
    slows_launches: false,
};

pub(crate) const CPU_CONTENTION: Expected = Expected {
    scenario: "cpu-contention",
    undisturbed: false,
    alert: "GpucauseDispatcherStarved",
    receiver: "gpu-hosts",
    labels: &[("cause", "cpu_preemption")],
    description: &["to cpu_preemption", "noisy-neighb"],
    slows_launches: true,
};

impl Expected {
    /// Returns true if an alert is the one of a process with this fault.
    pub(crate) fn is(&self, alert: &Alert, pid: u32) -> bool {
        let labels = self.labels.iter().chain(&[("severity", "warning"), ("comm", COMM)]);
        alert.name() == self.alert
            && alert.label("pid") == pid.to_string()
            && alert.receiver == self.receiver
            && labels.into_iter().all(|&(key, value)| alert.label(key) == value)
    }

    /// Returns true if an alert is that of the launch p99 of a process with this fault.
    pub(crate) fn is_of_launches(&self, alert: &Alert, pid: u32) -> bool {
        self.slows_launches
            && alert.name() == OF_LAUNCHES
            && alert.label("pid") == pid.to_string()
            && ["launch-latency", "launch-latency-critical"].contains(&&*alert.receiver)
    }

    /// The names of all alerts of a process with this fault.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        [self.alert].into_iter().chain(self.slows_launches.then_some(OF_LAUNCHES))
    }

    /// Returns what is wrong with the annotations of the right alert.
    pub(crate) fn complaints(&self, alert: &Alert, pid: u32) -> Vec<String> {
        let description = alert.annotation("description");
        let victim = format!("{COMM} (PID {pid} on ");
        let parts = self.description.iter().copied().chain([&*victim]);
        let mut complaints: Vec<String> = parts
            .filter(|part| !description.contains(part))
            .map(|part| format!("`{part}` is not in `{description}`"))
            .collect();
        let links = [
            ("runbook_url", format!("/investigations/{}.md", self.alert)),
            ("dashboard_url", format!("&var-pid={pid}")),
        ];
        for (key, end) in links {
            if !alert.annotation(key).ends_with(&end) {
                complaints.push(format!("{key} is {}", alert.annotation(key)));
            }
        }
        if alert.annotation("summary").is_empty() {
            complaints.push("there is no summary".into());
        }
        complaints
    }
}
