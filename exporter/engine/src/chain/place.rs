//! Where on the host a process runs, and what each culprit took.

use serde::{Deserialize, Serialize};

use super::LimitUser;

/// Where a process runs. Unknown fields are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Place {
    /// The system's systemd unit that its cgroup belongs to.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub unit: String,
    /// Its Kubernetes pod, `NAMESPACE/NAME`, or the pod's UID if the name is unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pod: String,
    /// Full id of its container.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub container: String,
    /// Path of its cgroup.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cgroup: String,
    /// The file that holds the innermost CPU limit of its cgroups: `cpu.max`, or `cpu.cfs_quota_us` of version 1.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cpu_limit: String,
    /// CPUs that it may run on, such as `0-3,8`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cpus: String,
    /// True if it runs Python. Like the fields below, it is for commands and known only on its host.
    #[serde(skip)]
    pub python: bool,
    /// The autogroup that it is scheduled in, such as `/autogroup-12`: nice values count within one. Empty where it is in none.
    #[serde(skip)]
    pub autogroup: String,
    /// Threads of the process and of its workers that used a CPU lately; 0 where that is unknown.
    #[serde(skip)]
    pub busy_threads: usize,
    /// CPUs that its cgroup allows; empty where that is unknown.
    #[serde(skip)]
    pub cpuset: String,
    /// All threads of the process and of its workers may run on one CPU only, the same.
    #[serde(skip)]
    pub on_one_cpu: bool,
    /// Mount points of the file systems that it serves from user space, as its victim has them.
    #[serde(skip)]
    pub serves: Vec<String>,
}

impl Place {
    /// The pod, else the container, else the unit.
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

    /// PID, owner and CPUs, such as `PID 7, fluent-bit.service, allowed on CPUs 0-3`.
    pub fn describe(&self, pid: u32) -> String {
        let owner = self.owner().map(|owner| format!(", {owner}")).unwrap_or_default();
        format!("PID {pid}{owner}{}", self.allowed_on())
    }

    /// The clause about its CPUs; empty where they are unknown.
    pub(super) fn allowed_on(&self) -> String {
        let cpus = &*self.cpus;
        match cpus.parse::<u32>() {
            _ if cpus.is_empty() => String::new(),
            Ok(cpu) => format!(", allowed on CPU {cpu}"),
            Err(_) => format!(", allowed on CPUs {cpus}"),
        }
    }
}

/// Where the tasks of an ongoing chain run. What is not known is `None`.
#[derive(Debug, Clone, Default)]
pub struct Located {
    /// The victim, with the CPUs of its thread.
    pub victim: Option<Place>,
    /// The culprit, with the CPUs of `thread`, or of all of its threads.
    pub culprit: Option<Place>,
    /// The thread of the culprit's process that did it.
    pub thread: Option<Thread>,
    /// Who uses most of what a limit of the victim's cgroup leaves, where that is the cause.
    pub user: Option<LimitUser>,
}

/// A thread of a culprit's process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Thread {
    /// Its id.
    pub tid: u32,
    /// Its own name.
    pub comm: String,
}

/// CPUs of a host, as lists such as `0-3,8`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostCpus {
    /// Online CPUs.
    pub online: String,
    /// Online CPUs that were idle and on which no process may run that is observed or that a chain names, apart from culprits that may
    /// run on all CPUs; empty where that is unknown.
    pub unused: String,
    /// All of them that were idle lately; empty where that is unknown.
    pub idle: String,
}

/// Time of a chain that one task took.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Loss {
    /// Its process, if known.
    pub pid: Option<u32>,
    /// Its name.
    pub comm: String,
    /// In total.
    pub seconds: f64,
}
