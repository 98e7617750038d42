//! The jobs of this host that have ranks on others, and the question about them.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;

use gpucause_abi::ProcId;
use gpucause_abi::snapshot::ProcessSnapshot;
use gpucause_investigations::prometheus::string_literal;
use gpucause_observe::process_details::Details;

/// Jobs that are asked for at most.
const MAX_JOBS: usize = 8;
/// Ranks of a job on this host that are asked for at most.
const MAX_LOCAL: usize = 64;
/// The two ranks of each job that wait least.
pub(super) const LEAST: &str = "rank:gpucause_nccl_wait:least2_1m";
/// All ranks.
const ALL: &str = "process:gpucause_nccl_wait:ratio_rate1m";
/// How many they are.
const COUNT: &str = "peers:gpucause_nccl_wait:count";
/// The rules whose series are asked for.
pub(crate) const RULES: [&str; 3] = [LEAST, ALL, COUNT];
/// Labels that the ranks of a job share.
const JOB: &str = "job, comm, slurm_job, namespace, world_size";
/// A value is not used when it was recorded this many seconds before: rules are evaluated every 30 s.
const STALE: u32 = 45;

/// A rank of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LocalRank {
    pub(super) process: ProcId,
    pub(super) pid: u32,
    pub(super) rank: u32,
}

/// A job with fewer ranks on this host than it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) comm: String,
    pub(super) slurm_job: String,
    pub(super) world_size: u32,
    pub(super) ranks: Vec<LocalRank>,
}

/// The jobs that these processes are ranks of, where other hosts have ranks of them, too. A number that is here twice is of two jobs,
/// which are not compared.
pub(super) fn across_hosts(processes: &[ProcessSnapshot], details: &Details) -> Vec<Job> {
    let mut jobs: BTreeMap<(String, String, u32), Vec<LocalRank>> = BTreeMap::new();
    for process in processes.iter().filter(|own| own.ended.is_none()) {
        let details = details.get(&process.id);
        let Some((rank, world_size)) = process.rank else { continue };
        let slurm_job = details.map(|own| own.slurm_job.to_string()).unwrap_or_default();
        let key = (process.comm.to_text(), slurm_job, world_size);
        let local = LocalRank { process: process.id, pid: process.tgid.0, rank };
        jobs.entry(key).or_default().push(local);
    }
    let jobs = jobs.into_iter().map(|((comm, slurm_job, world_size), ranks)| Job {
        comm,
        slurm_job,
        world_size,
        ranks,
    });
    jobs.filter(Job::is_across_hosts).take(MAX_JOBS).collect()
}

impl Job {
    fn is_across_hosts(&self) -> bool {
        let numbers: HashSet<u32> = self.ranks.iter().map(|own| own.rank).collect();
        let all = usize::try_from(self.world_size).unwrap_or(usize::MAX);
        numbers.len() == self.ranks.len() && numbers.len() < all && numbers.len() <= MAX_LOCAL
    }

    /// Returns the name by which users know it.
    pub(super) fn name(&self) -> String {
        match &*self.slurm_job {
            "" => self.comm.clone(),
            slurm_job => format!("{slurm_job} ({})", self.comm),
        }
    }

    /// Label matchers of its series.
    fn matchers(&self) -> String {
        let Self { comm, slurm_job, world_size, .. } = self;
        format!(
            "comm={},slurm_job={},world_size=\"{world_size}\"",
            string_literal(comm),
            string_literal(slurm_job)
        )
    }
}

/// The expression for these jobs: of each the ranks that wait least, if all ranks are known, and those of this host.
pub(super) fn query(jobs: &[Job]) -> String {
    let mut text = String::new();
    for job in jobs {
        let pids: Vec<_> = job.ranks.iter().map(|own| own.pid.to_string()).collect();
        let (matchers, pids, world_size) = (job.matchers(), pids.join("|"), job.world_size);
        let least = format!("{LEAST}{{{matchers}}}");
        let own = format!("{ALL}{{{matchers},pid=~\"{pids}\"}}");
        let complete = format!(" and on ({JOB}) ({COUNT}{{{matchers}}} == {world_size})");
        for (selector, and) in [(least, &*complete), (own, "")] {
            let or = if text.is_empty() { "" } else { " or " };
            let fresh = format!("timestamp({selector}) > time() - {STALE}");
            let _ = write!(text, "{or}({selector} and {fresh}{and})");
        }
    }
    text
}
