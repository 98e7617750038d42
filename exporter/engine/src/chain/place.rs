//! Where on the host a process runs, and who took how much.

use serde::{Deserialize, Serialize};

/// Where a process runs. What is not known is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Place {
    /// The systemd unit of the system's manager that its cgroup belongs to.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub unit: String,
    /// Its Kubernetes pod, `NAMESPACE/NAME`, or the pod's UID where the name is not known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pod: String,
    /// Full id of its container.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub container: String,
    /// Path of its cgroup.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cgroup: String,
    /// CPUs that it may run on, such as `0-3,8`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cpus: String,
}

impl Place {
    /// The pod, the container or the unit, whichever says most: what a person asks for.
    #[must_use]
    pub fn owner(&self) -> Option<String> {
        let short = |id: &str| id.chars().take(12).collect::<String>();
        match self {
            Self { pod, .. } if !pod.is_empty() => Some(format!("pod {pod}")),
            Self { container, .. } if !container.is_empty() => {
                Some(format!("container {}", short(container)))
            }
            Self { unit, .. } if !unit.is_empty() => Some(unit.clone()),
            _ => None,
        }
    }

    /// The PID with what is known of the place, such as `PID 7, fluent-bit.service, CPUs 0-3`.
    #[must_use]
    pub fn describe(&self, pid: u32) -> String {
        let owner = self.owner().map(|owner| format!(", {owner}")).unwrap_or_default();
        let cpus =
            if self.cpus.is_empty() { String::new() } else { format!(", CPUs {}", self.cpus) };
        format!("PID {pid}{owner}{cpus}")
    }
}

/// What one task took of a chain's time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Loss {
    /// Its process, when it is one.
    pub pid: Option<u32>,
    /// Its name.
    pub comm: String,
    /// How much, in seconds, in all.
    pub seconds: f64,
}
