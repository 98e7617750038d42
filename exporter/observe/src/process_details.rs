//! Details of observed processes from `/proc`. Read while a process lives, kept as long as its accounts.

pub(crate) mod cgroup_use;
mod file_systems;
pub(crate) mod hierarchy;
pub mod membership;
pub mod place;
mod pods;
pub(crate) mod threads;
mod users;

use gpucause_abi::snapshot::ProcessSnapshot;
use gpucause_abi::{Nanos, ProcId, Tgid};
use gpucause_http::listeners::user_name;
use std::collections::HashMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::process_identity::is_that_process;
use membership::{Membership, is_slurm_number};

/// Details of processes beside their accounts.
pub type Details = HashMap<ProcId, Arc<ProcessDetails>>;

/// Facts about a process. What could not be read is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessDetails {
    /// Path of the executable, in its own mount namespace.
    pub exe: Arc<str>,
    /// Path in the cgroup tree.
    pub cgroup: Arc<str>,
    /// Full id of the container.
    pub container_id: Arc<str>,
    /// UID of the Kubernetes pod.
    pub pod_uid: Arc<str>,
    /// Name of the pod.
    pub pod: Arc<str>,
    /// Namespace of the pod.
    pub namespace: Arc<str>,
    /// Number of the Slurm job, or its SLUID where its number is unknown.
    pub slurm_job: Arc<str>,
    /// PID in its own PID namespace: that on the host unless it is in a container.
    pub ns_pid: Arc<str>,
    /// Name of the real user in the host's user database, or the uid where it has none.
    pub user: Arc<str>,
    /// Its rank, as the launcher of a distributed job sets it in the environment.
    pub rank: Arc<str>,
    /// The rank among the processes of this host, mostly the number of the GPU too.
    pub local_rank: Arc<str>,
    /// Ranks of the job.
    pub world_size: Arc<str>,
}

impl ProcessDetails {
    /// The details that are known, by label.
    #[must_use]
    pub fn named(&self) -> Vec<(String, String)> {
        let mut details = self.clone();
        let known = details.fields().into_iter().filter(|(_, value)| !value.is_empty());
        known.map(|(name, value)| (name.to_owned(), value.to_string())).collect()
    }

    /// The inverse of [`named`](Self::named); unknown names are ignored.
    #[must_use]
    pub fn of_named(named: &[(String, String)]) -> Self {
        let mut details = Self::default();
        for (name, field) in details.fields() {
            if let Some((_, value)) = named.iter().find(|(own, _)| own == name) {
                *field = value.as_str().into();
            }
        }
        details
    }

    /// Its rank and the number of ranks, as its launcher set them.
    pub(crate) fn launched_as(&self) -> Option<(u32, u32)> {
        let (rank, ranks) = (self.rank.parse().ok()?, self.world_size.parse().ok()?);
        (rank < ranks).then_some((rank, ranks))
    }

    fn fields(&mut self) -> [(&'static str, &mut Arc<str>); 12] {
        let Self {
            exe,
            cgroup,
            container_id,
            pod_uid,
            pod,
            namespace,
            slurm_job,
            ns_pid,
            user,
            rank,
            local_rank,
            world_size,
        } = self;
        [
            ("exe", exe),
            ("cgroup", cgroup),
            ("container_id", container_id),
            ("pod_uid", pod_uid),
            ("pod", pod),
            ("namespace", namespace),
            ("slurm_job", slurm_job),
            ("ns_pid", ns_pid),
            ("user", user),
            ("rank", rank),
            ("local_rank", local_rank),
            ("world_size", world_size),
        ]
    }

    /// Returns true if a later read cannot add anything.
    fn is_complete(&self) -> bool {
        !(self.exe.is_empty()
            || self.cgroup.is_empty()
            || self.user.is_empty()
            || self.ns_pid.is_empty())
    }
}

/// The details of every process under observation.
#[derive(Debug)]
pub struct DetailsCache {
    proc_root: PathBuf,
    passwd: PathBuf,
    pod_logs: PathBuf,
    entries: HashMap<ProcId, Arc<ProcessDetails>>,
}

impl Default for DetailsCache {
    fn default() -> Self {
        Self::at("/proc", "/etc/passwd", pods::LOGS)
    }
}

impl DetailsCache {
    /// With these files.
    #[must_use]
    pub fn at(
        proc_root: impl Into<PathBuf>,
        passwd: impl Into<PathBuf>,
        pod_logs: impl Into<PathBuf>,
    ) -> Self {
        Self {
            proc_root: proc_root.into(),
            passwd: passwd.into(),
            pod_logs: pod_logs.into(),
            entries: HashMap::new(),
        }
    }

    /// The details of `processes`, which are read until they are complete or the process has ended. Forgets other processes.
    pub fn refresh(
        &mut self,
        processes: &[ProcessSnapshot],
    ) -> HashMap<ProcId, Arc<ProcessDetails>> {
        let mut entries = HashMap::with_capacity(processes.len());
        for process in processes {
            let known = self.entries.remove(&process.id).unwrap_or_default();
            let details = if process.ended.is_some() || known.is_complete() {
                known
            } else {
                self.read(process.tgid, process.started_boottime).map_or(known, Arc::new)
            };
            entries.insert(process.id, details);
        }
        self.entries = entries.clone();
        entries
    }

    /// The cached details.
    #[must_use]
    pub const fn known(&self) -> &HashMap<ProcId, Arc<ProcessDetails>> {
        &self.entries
    }

    /// `None` when the PID is not that of the process any more.
    fn read(&self, tgid: Tgid, started: Nanos) -> Option<ProcessDetails> {
        let dir = self.proc_root.join(tgid.to_string());
        let text = |file: &str| fs::read_to_string(dir.join(file)).unwrap_or_default();
        let (status, environment) = (text("status"), environment(&dir));
        let Membership { cgroup, container_id, pod_uid, slurm_job } =
            Membership::of(&text("cgroup"));
        let pod = pod_uid.as_deref().and_then(|uid| pods::name_of(uid, &self.pod_logs));
        let (namespace, pod) = pod.unwrap_or_default();
        let [rank, local_rank, world_size] = ranks(&environment);
        let details = ProcessDetails {
            exe: exe(&dir).into(),
            cgroup: cgroup.into(),
            container_id: container_id.unwrap_or_default().into(),
            pod_uid: pod_uid.unwrap_or_default().into(),
            pod: pod.into(),
            namespace: namespace.into(),
            slurm_job: job_number(slurm_job, &environment).into(),
            ns_pid: ns_pid(&status).unwrap_or_default().into(),
            user: self.user(&status).unwrap_or_default().into(),
            rank,
            local_rank,
            world_size,
        };
        // Checked last, to detect that the PID was reused before or during the reads.
        is_that_process(&dir, started).then_some(details)
    }

    fn user(&self, status: &str) -> Option<String> {
        let uid = users::real_uid(status)?;
        let passwd = fs::read(&self.passwd).unwrap_or_default();
        Some(user_name(uid, &passwd).unwrap_or_else(|| uid.to_string()))
    }
}

/// Bytes of the environment that are read.
const MAX_ENVIRONMENT: u64 = 256 * 1024;

fn environment(dir: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Unreadable counts as empty.
    let _ = fs::File::open(dir.join("environ"))
        .and_then(|file| file.take(MAX_ENVIRONMENT).read_to_end(&mut bytes));
    bytes
}

/// The variables of each launcher: rank, rank on the host, ranks of the job. The innermost launcher comes first, as its processes
/// inherit the variables of those outside it: torchrun, Open MPI, MPICH and its kin, Slurm.
const LAUNCHERS: [[&str; 3]; 4] = [
    ["RANK", "LOCAL_RANK", "WORLD_SIZE"],
    ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"],
    ["PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"],
    ["SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"],
];

/// Rank, rank on the host, and ranks of the job, all by one launcher; empty where unknown.
fn ranks(environment: &[u8]) -> [Arc<str>; 3] {
    let numbers = LAUNCHERS.map(|names| names.map(|name| number_in(environment, name)));
    let launcher = numbers.into_iter().find(|[rank, ..]| rank.is_some());
    launcher.unwrap_or_default().map(|number| number.unwrap_or_default().into())
}

/// The number of the Slurm job that a process is in: as its cgroup has it, else its environment, else what its cgroup has instead.
/// Slurm 26.05 names cgroups by SLUID, and a Slurm that does not limit jobs makes none.
fn job_number(of_cgroup: Option<String>, environment: &[u8]) -> String {
    let number = of_cgroup.clone().filter(|job| is_slurm_number(job));
    number.or_else(|| number_in(environment, "SLURM_JOB_ID")).or(of_cgroup).unwrap_or_default()
}

/// The value of a variable, if it is a number: nothing else of the environment leaves this module.
fn number_in(environment: &[u8], name: &str) -> Option<String> {
    let value = environment
        .split(|&byte| byte == 0)
        .find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
    let text = std::str::from_utf8(value).ok()?;
    text.parse::<u32>().ok().map(|number| number.to_string())
}

/// The PID in the innermost namespace, out of a `/proc/PID/status` file.
fn ns_pid(status: &str) -> Option<&str> {
    status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace().next_back()
}

fn exe(dir: &Path) -> String {
    let link = fs::read_link(dir.join("exe")).unwrap_or_default();
    let path = link.to_string_lossy();
    path.strip_suffix(" (deleted)").unwrap_or(&path).to_owned()
}

#[cfg(test)]
mod tests;
