//! A job that hangs: which rank has not entered which collective, and what its thread does instead. Two readings of the pages of its
//! nodes, a moment apart, show both: what each rank has entered, and what its thread did meanwhile.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use gpucause_abi::op::{Class, op_of_symbol};
use serde::Serialize;

use crate::explain::FailureReport;
use crate::fleet::NodeFailure;
use crate::observation::Outcome;
use crate::page::{Sample, samples};
use crate::untrusted_text::line;

/// Calls between two ranks alone: their numbers differ by rank.
const POINT_TO_POINT: [&str; 3] = ["ncclSend", "ncclRecv", "ncclPutSignal"];
/// Advice where a job has no rank.
pub const HOW_JOBS_ARE_NAMED: &str = "name a job by its number in Slurm or by the name of its processes, as in the labels slurm_job and comm of \
    gpucause_process_info";
/// Ranks of a job that are compared; what has more is not read.
const MAX_RANKS: usize = 100_000;

/// Metrics of one rank, from a node's page.
#[derive(Debug, Default)]
struct Rank {
    number: u32,
    comm: String,
    world_size: u32,
    /// Calls of each collective: those that returned, and one that has not.
    entered: BTreeMap<String, f64>,
    bytes: BTreeMap<String, f64>,
    /// Seconds of its dispatchers, by phase and state.
    times: BTreeMap<(String, String), f64>,
    /// The oldest call that has not returned, and its age.
    in_call: Option<(String, f64)>,
}

impl Rank {
    fn all_entered(&self) -> f64 {
        self.entered.values().sum()
    }

    fn all_time(&self) -> f64 {
        self.times.values().sum()
    }

    fn entered(&self, op: &str) -> f64 {
        self.entered.get(op).copied().unwrap_or(0.0)
    }

    fn bytes(&self, op: &str) -> f64 {
        self.bytes.get(op).copied().unwrap_or(0.0)
    }
}

/// One reading of a job's ranks, by node and PID.
#[derive(Debug)]
pub struct Reading {
    job: String,
    ranks: BTreeMap<(String, String), Rank>,
}

impl Reading {
    /// An empty one. A job is named by its number in Slurm or by the name of its processes.
    pub fn of(job: &str) -> Self {
        Self { job: job.to_owned(), ranks: BTreeMap::new() }
    }

    /// Returns true if a rank is on this node.
    pub fn is_on(&self, node: &str) -> bool {
        self.ranks.keys().any(|(own, _)| own == node)
    }

    /// Without processes that ended, whose series stay for a while: time passes for all others.
    fn without_ended(mut self, before: &Self) -> Self {
        self.ranks.retain(|key, rank| {
            before.ranks.get(key).is_none_or(|earlier| earlier.all_time() < rank.all_time())
        });
        self
    }

    /// Adds what a node's page shows. Samples that make no sense count for nothing.
    pub fn add(&mut self, node: &str, page: &str) {
        let mut own: BTreeMap<String, Rank> = BTreeMap::new();
        for info in samples(page, "gpucause_process_info{") {
            let is_of = [info.label("slurm_job"), info.label("comm")].contains(&&*self.job);
            let number = |label| info.label(label).parse::<u32>().ok();
            let (Some(rank), Some(world_size)) = (number("rank"), number("world_size")) else {
                continue;
            };
            if is_of && self.ranks.len() + own.len() < MAX_RANKS {
                let comm = info.label("comm").to_owned();
                let rank = Rank { number: rank, comm, world_size, ..Rank::default() };
                own.insert(info.label("pid").to_owned(), rank);
            }
        }
        let mut each = |name: &str, take: &dyn Fn(&mut Rank, &Sample)| {
            for sample in samples(page, name) {
                let sensible = sample.value.is_finite() && sample.value >= 0.0;
                if let Some(rank) = own.get_mut(sample.label("pid")).filter(|_| sensible) {
                    take(rank, &sample);
                }
            }
        };
        each("gpucause_cuda_call_duration_seconds_count{", &|rank, sample| {
            let op = sample.label("op");
            if is_collective(op) {
                *rank.entered.entry(op.to_owned()).or_default() += sample.value;
            }
        });
        each("gpucause_inflight_call_age_seconds{", &|rank, sample| {
            let op = sample.label("op");
            if is_collective(op) {
                *rank.entered.entry(op.to_owned()).or_default() += 1.0;
            }
            if rank.in_call.as_ref().is_none_or(|(_, age)| *age < sample.value) {
                rank.in_call = Some((op.to_owned(), sample.value));
            }
        });
        each("gpucause_nccl_bytes_total{", &|rank, sample| {
            *rank.bytes.entry(sample.label("op").to_owned()).or_default() += sample.value;
        });
        each("gpucause_dispatcher_seconds_total{", &|rank, sample| {
            let key = (sample.label("phase").to_owned(), sample.label("state").to_owned());
            *rank.times.entry(key).or_default() += sample.value;
        });
        self.ranks.extend(own.into_iter().map(|(pid, rank)| ((node.to_owned(), pid), rank)));
    }
}

fn is_collective(op: &str) -> bool {
    let is_nccl = op_of_symbol(op).and_then(|id| id.op()).is_some_and(|op| op.class == Class::Nccl);
    is_nccl
        && !POINT_TO_POINT.contains(&op)
        && !op.starts_with("ncclGroup")
        && !op.ends_with("Signal")
}

/// A rank that has not entered a collective.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LateRank {
    /// The rank.
    pub rank: u32,
    /// Address of its node.
    pub node: String,
    /// Its process there.
    pub pid: String,
    /// The process's name.
    pub comm: String,
    /// The number of the collective among all that its peers have made, as the node of the one that made most counts them.
    pub number: u64,
    /// The operation.
    pub op: String,
    /// Bytes that its peers passed to it; a mean of earlier ones where they have not returned from it either.
    pub bytes: Option<u64>,
    /// Ranks that wait for it.
    pub peers: usize,
    /// Phase and state that its dispatchers spent most of the time between the readings in.
    pub phase: String,
    /// See `phase`.
    pub state: String,
    /// The share of the time.
    pub share: f64,
    /// The call that it is in, and for how many seconds.
    pub in_call: Option<(String, f64)>,
}

/// Collectives that a job's ranks have entered.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobReport {
    /// The job.
    pub job: String,
    /// Found where a rank is late or missing; not observed where no rank is.
    pub outcome: Outcome,
    /// Ranks that are there.
    pub ranks: usize,
    /// Ranks that the job has by its own account.
    pub world_size: u32,
    /// Numbers of ranks that are on no node that answered.
    pub missing: Vec<u32>,
    /// Collectives that a rank entered between the readings: more than 0, and the job does not hang.
    pub advanced: u64,
    /// Seconds between the readings.
    pub seconds: f64,
    /// Ranks that keep a job which hangs waiting.
    pub late: Vec<LateRank>,
    /// Nodes that did not answer.
    pub failures: Vec<FailureReport>,
}

/// Most numbers of missing ranks that a report lists.
const MAX_MISSING: u32 = 1000;

impl JobReport {
    /// From two readings, and the nodes that did not answer one of them.
    pub fn of(before: &Reading, now: Reading, seconds: f64, failures: &[NodeFailure]) -> Self {
        let now = now.without_ended(before);
        let since = |key, rank: &Rank| {
            let earlier = before.ranks.get(key).map_or(0.0, Rank::all_entered);
            (rank.all_entered() - earlier).max(0.0)
        };
        let both = || now.ranks.iter().filter(|(key, _)| before.ranks.contains_key(key));
        let advanced = both().map(|(key, rank)| since(key, rank)).fold(0.0, f64::max);
        let world_size = now.ranks.values().map(|rank| rank.world_size).max().unwrap_or(0);
        let is_there = |number: &u32| now.ranks.values().any(|rank| rank.number == *number);
        let missing: Vec<u32> = (0..world_size.min(MAX_MISSING)).filter(|n| !is_there(n)).collect();
        let late = if advanced > 0.0 { Vec::new() } else { late(before, &now) };
        let failures = failures.iter().map(|failed| FailureReport {
            url: failed.url.to_string(),
            reason: failed.error.to_string(),
        });
        let failures: Vec<_> = failures.collect();
        let outcome = match (now.ranks.is_empty(), late.is_empty() && missing.is_empty()) {
            (true, _) => Outcome::NotObserved,
            (false, false) => Outcome::Found,
            (false, true) => Outcome::NothingFound,
        };
        Self {
            job: now.job.clone(),
            outcome,
            ranks: now.ranks.len(),
            world_size,
            missing,
            advanced: advanced as u64,
            seconds,
            late,
            failures,
        }
    }

    /// The report as text.
    pub fn render(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "JOB  {}: {} of {} ranks observed",
            line(&self.job),
            self.ranks,
            self.world_size
        );
        if self.ranks == 0 {
            let _ = writeln!(
                out,
                "NO RANK  No node that answered has a rank of this job: {HOW_JOBS_ARE_NAMED}."
            );
        }
        for failure in &self.failures {
            let _ = writeln!(out, "NO ANSWER  {}", line(&failure.reason));
        }
        for rank in &self.missing {
            let _ = writeln!(out, "MISSING  Rank {rank} is on no node that answered.");
        }
        if self.advanced > 0 {
            let _ = writeln!(
                out,
                "No hang: ranks entered up to {} collectives in {:.1} s.",
                self.advanced, self.seconds
            );
        } else if self.ranks > 0 && self.late.is_empty() {
            let _ = writeln!(
                out,
                "All ranks wait, and none entered a collective in {:.1} s.",
                self.seconds
            );
        }
        for late in &self.late {
            let _ = writeln!(out, "LATE  {}", line(&late.sentence(self.world_size, self.seconds)));
        }
        out
    }
}

impl LateRank {
    fn sentence(&self, world_size: u32, seconds: f64) -> String {
        let Self { rank, node, pid, comm, number, op, peers, phase, state, .. } = self;
        let bytes = self.bytes.map_or_else(String::new, |bytes| format!(" of {bytes} bytes"));
        let place = match &self.in_call {
            Some((call, age)) => format!("in {call} for {age:.0} s"),
            None if phase == "host" => "in its own code".to_owned(),
            None => format!("in phase {phase}"),
        };
        let doing = match &**state {
            "running" => "running".to_owned(),
            "stopped" | "frozen" => state.clone(),
            other => format!("off the CPU ({other})"),
        };
        format!(
            "Rank {rank} of {world_size} ({comm}, PID {pid} on {node}) has not entered collective {number}, {op}{bytes}, for which \
             {peers} ranks wait. It is {place}: {doing} for {:.0} % of the last {seconds:.1} s.",
            self.share * 100.0
        )
    }
}

/// The ranks that do something else while others wait, of a job that does not advance. Numbers of calls alone do not show them: each
/// node counts from when it first saw the process.
fn late(before: &Reading, now: &Reading) -> Vec<LateRank> {
    let of = |key| before.ranks.get(key);
    let waiting: Vec<&Rank> = (now.ranks.iter())
        .filter(|(key, rank)| waits(&doing(of(key), rank).0))
        .map(|(_, rank)| rank)
        .collect();
    let by_count = |a: &&&Rank, b: &&&Rank| a.all_entered().total_cmp(&b.all_entered());
    let Some(first) = waiting.iter().max_by(by_count) else { return Vec::new() };
    let mut all: Vec<LateRank> = (now.ranks.iter())
        .filter_map(|(key, rank)| {
            let (spent, share) = doing(of(key), rank);
            if waits(&spent) {
                return None;
            }
            let ahead = |op: &String| first.entered(op) - rank.entered(op);
            let op = first.entered.keys().max_by(|a, b| ahead(a).total_cmp(&ahead(b)))?;
            let passed = first.bytes(op) - rank.bytes(op);
            // No bytes are known of the call that `first` itself is in.
            let in_it = first.in_call.as_ref().is_some_and(|(call, _)| call == op);
            let returned = first.entered(op) - f64::from(u8::from(in_it));
            let (bytes, calls) = if passed > 0.0 && ahead(op) > 0.0 {
                (passed, ahead(op))
            } else {
                (first.bytes(op), returned)
            };
            let (phase, state) = spent;
            Some(LateRank {
                rank: rank.number,
                node: key.0.clone(),
                pid: key.1.clone(),
                comm: rank.comm.clone(),
                number: first.all_entered() as u64,
                op: op.clone(),
                bytes: (bytes > 0.0 && calls > 0.0).then(|| (bytes / calls).round() as u64),
                peers: waiting.len(),
                phase,
                state,
                share,
                in_call: rank.in_call.clone(),
            })
        })
        .collect();
    all.sort_by_key(|late| late.rank);
    all
}

/// Returns true if this phase and state mean waiting for other ranks, or for the GPU that runs collectives.
fn waits((phase, state): &(String, String)) -> bool {
    let is_off = ["stopped", "frozen", "core_dump", "preempted", "runqueue"].contains(&&**state);
    ["sync", "nccl"].contains(&&**phase) && !is_off
}

/// Returns the phase and state in which a rank's dispatchers spent the most time since the earlier reading, and its share of their time.
fn doing(before: Option<&Rank>, now: &Rank) -> ((String, String), f64) {
    let since = |key: &(String, String), time: f64| {
        let earlier = before.and_then(|rank| rank.times.get(key)).copied().unwrap_or(0.0);
        (time - earlier).max(0.0)
    };
    let times = || now.times.iter().map(|(key, time)| (key, since(key, *time)));
    let all: f64 = times().map(|(_, time)| time).sum();
    let most = times().max_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, time)| *time > 0.0);
    let unknown = || (("unknown".to_owned(), "unknown".to_owned()), 0.0);
    most.map_or_else(unknown, |(key, time)| (key.clone(), time / all))
}

#[cfg(test)]
mod tests;
