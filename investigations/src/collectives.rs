//! A job that hangs: which rank has not entered which collective, and what its thread does instead. Two snapshots of each of its
//! nodes, a moment apart, show both: what each rank has entered, and what its thread did meanwhile.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::ControlFlow;

use gpucause_abi::Nanos;
use gpucause_abi::op::{Class, OpId};
use gpucause_abi::snapshot::{ProcessSnapshot, TimeAccount};
use gpucause_abi::state::{Phase, Reason, State};
use gpucause_trace::recording::{Process, Recording, RecordingError};
use serde::Serialize;

use crate::explain::FailureReport;
use crate::fleet::NodeFailure;
use crate::observation::Outcome;
use crate::untrusted_text::line;

/// Calls between two ranks alone: their numbers differ by rank.
const POINT_TO_POINT: [&str; 3] = ["ncclSend", "ncclRecv", "ncclPutSignal"];
/// Details of processes: the job's number, and what the launcher set.
const SLURM_JOB: &str = "slurm_job";
const LAUNCHED_AS: [&str; 2] = ["rank", "world_size"];
/// Advice where a job has no rank.
pub const HOW_JOBS_ARE_NAMED: &str = "name a job by its number in Slurm or by the name of its processes, as in the labels slurm_job and comm of \
    gpucause_process_info";
/// Ranks of a job that are compared; what has more is not read.
const MAX_RANKS: usize = 100_000;

/// Account of one rank.
#[derive(Debug)]
struct Rank {
    number: u32,
    comm: String,
    world_size: u32,
    /// Calls of each collective: those that returned, and those that have not.
    entered: BTreeMap<OpId, u64>,
    bytes: BTreeMap<OpId, u64>,
    /// Time of its dispatchers.
    time: TimeAccount,
    /// The oldest call that has not returned, and its age.
    in_call: Option<(OpId, Nanos)>,
}

impl Rank {
    /// The account of a process; `None` if it is no rank.
    fn of(process: &ProcessSnapshot, known: &Process) -> Option<Self> {
        // Workers inherit the variables of the launcher.
        let is_worker = process.parent.is_some() && !process.dispatches;
        if is_worker || process.ended.is_some() {
            return None;
        }
        let (number, world_size) = process.rank.or_else(|| launched_as(known))?;
        let mut entered: BTreeMap<OpId, u64> = BTreeMap::new();
        for call in process.calls.iter().filter(|call| is_collective(call.op)) {
            *entered.entry(call.op).or_default() += call.durations.count();
        }
        let in_calls = || process.dispatchers.iter().filter_map(|thread| thread.inflight);
        for (op, _) in in_calls().filter(|(op, _)| is_collective(*op)) {
            *entered.entry(op).or_default() += 1;
        }
        Some(Self {
            number,
            comm: known.comm.clone(),
            world_size,
            entered,
            bytes: process.collectives.iter().copied().collect(),
            time: process.dispatcher_time,
            in_call: in_calls().max_by_key(|(_, age)| *age),
        })
    }

    fn all_entered(&self) -> u64 {
        self.entered.values().fold(0, |all, own| all.saturating_add(*own))
    }

    fn entered(&self, op: OpId) -> u64 {
        self.entered.get(&op).copied().unwrap_or(0)
    }

    fn bytes(&self, op: OpId) -> u64 {
        self.bytes.get(&op).copied().unwrap_or(0)
    }
}

fn launched_as(process: &Process) -> Option<(u32, u32)> {
    let number = |wanted: &str| {
        let (_, value) = process.details.iter().find(|(name, _)| name == wanted)?;
        value.parse::<u32>().ok()
    };
    let [rank, ranks] = LAUNCHED_AS.map(number);
    rank.zip(ranks).filter(|(rank, ranks)| rank < ranks)
}

/// One reading of a job's ranks, by node and PID.
#[derive(Debug)]
pub struct Reading {
    job: String,
    ranks: BTreeMap<(String, u32), Rank>,
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

    /// Without processes that ended and are not known to have: time passes for all others.
    fn without_ended(mut self, before: &Self) -> Self {
        self.ranks.retain(|key, rank| {
            before.ranks.get(key).is_none_or(|earlier| earlier.time.total() < rank.time.total())
        });
        self
    }

    /// Adds the ranks in a node's snapshot.
    ///
    /// # Errors
    /// When it is damaged; nothing is added then.
    pub fn add(&mut self, node: &str, recording: &dyn Recording) -> Result<(), RecordingError> {
        let mut own: BTreeMap<(String, u32), Rank> = BTreeMap::new();
        recording.snapshots(&mut |recorded| {
            for process in &recorded.input.snapshot.processes {
                let known = recorded.processes.get(&process.id);
                let Some(known) = known.and_then(|&index| recording.process_at(index)) else {
                    continue;
                };
                let is_full = self.ranks.len() + own.len() >= MAX_RANKS;
                if !is_full
                    && self.is_of_job(known)
                    && let Some(rank) = Rank::of(process, known)
                {
                    own.insert((node.to_owned(), known.pid), rank);
                }
            }
            ControlFlow::Continue(())
        })?;
        self.ranks.append(&mut own);
        Ok(())
    }

    fn is_of_job(&self, process: &Process) -> bool {
        let is_job = |(name, value): &(String, String)| name == SLURM_JOB && *value == self.job;
        process.comm == self.job || process.details.iter().any(is_job)
    }
}

fn is_collective(id: OpId) -> bool {
    id.op().is_some_and(|op| {
        op.class == Class::Nccl
            && !POINT_TO_POINT.contains(&op.name)
            && !op.name.starts_with("ncclGroup")
            && !op.name.ends_with("Signal")
    })
}

fn name_of(id: OpId) -> String {
    id.op().map_or_else(|| format!("op {}", id.0), |op| op.name.to_owned())
}

/// A rank that has not entered a collective.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LateRank {
    /// The rank.
    pub rank: u32,
    /// Address of its node.
    pub node: String,
    /// Its process there.
    pub pid: u32,
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
    pub phase: &'static str,
    /// See `phase`.
    pub state: &'static str,
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
            let earlier = before.ranks.get(key).map_or(0, Rank::all_entered);
            rank.all_entered().saturating_sub(earlier)
        };
        let both = || now.ranks.iter().filter(|(key, _)| before.ranks.contains_key(key));
        let advanced = both().map(|(key, rank)| since(key, rank)).max().unwrap_or(0);
        let world_size = now.ranks.values().map(|rank| rank.world_size).max().unwrap_or(0);
        let is_there = |number: &u32| now.ranks.values().any(|rank| rank.number == *number);
        let missing: Vec<u32> = (0..world_size.min(MAX_MISSING)).filter(|n| !is_there(n)).collect();
        let late = if advanced > 0 { Vec::new() } else { late(before, &now) };
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
            advanced,
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
            None if *phase == "host" => "in its own code".to_owned(),
            None => format!("in phase {phase}"),
        };
        let doing = match *state {
            "running" | "stopped" | "frozen" => (*state).to_owned(),
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
        .filter(|(key, rank)| doing(of(key), rank).is_some_and(|spent| spent.waits()))
        .map(|(_, rank)| rank)
        .collect();
    let Some(first) = waiting.iter().max_by_key(|rank| rank.all_entered()) else {
        return Vec::new();
    };
    let mut all: Vec<LateRank> = (now.ranks.iter())
        .filter_map(|(key, rank)| {
            let spent = doing(of(key), rank);
            if spent.is_some_and(|spent| spent.waits()) {
                return None;
            }
            let ahead = |op: OpId| first.entered(op).saturating_sub(rank.entered(op));
            let op = first.entered.keys().copied().max_by_key(|&op| ahead(op))?;
            let passed = first.bytes(op).saturating_sub(rank.bytes(op));
            // No bytes are known of the call that `first` itself is in.
            let in_it = first.in_call.is_some_and(|(call, _)| call == op);
            let returned = first.entered(op).saturating_sub(in_it.into());
            let (bytes, calls) = if passed > 0 && ahead(op) > 0 {
                (passed, ahead(op))
            } else {
                (first.bytes(op), returned)
            };
            let mean = || (bytes as f64 / calls as f64).round() as u64;
            Some(LateRank {
                rank: rank.number,
                node: key.0.clone(),
                pid: key.1,
                comm: rank.comm.clone(),
                number: first.all_entered(),
                op: name_of(op),
                bytes: (bytes > 0 && calls > 0).then(mean),
                peers: waiting.len(),
                phase: spent.map_or("unknown", |spent| spent.phase.label()),
                state: spent.map_or("unknown", |spent| spent.state.label()),
                share: spent.map_or(0.0, |spent| spent.share),
                in_call: rank.in_call.map(|(op, Nanos(age))| (name_of(op), age as f64 / 1e9)),
            })
        })
        .collect();
    all.sort_by_key(|late| late.rank);
    all
}

/// Phase and state in which dispatchers spent most of a time.
#[derive(Debug, Clone, Copy)]
struct Spent {
    phase: Phase,
    state: State,
    /// Its share of the time.
    share: f64,
}

impl Spent {
    /// Returns true if it was spent waiting for other ranks, or for the GPU that runs collectives.
    const fn waits(self) -> bool {
        let is_off = self.state.is_suspended()
            || matches!(self.state, State::Off(Reason::Preempted | Reason::Runqueue));
        matches!(self.phase, Phase::Sync | Phase::Nccl) && !is_off
    }
}

/// Returns what a rank's dispatchers spent the most time in since the earlier reading; `None` if no time has passed for them.
fn doing(before: Option<&Rank>, now: &Rank) -> Option<Spent> {
    let since = |phase, state| {
        let earlier = before.map_or(Nanos(0), |rank| rank.time.at(phase, state));
        now.time.at(phase, state).0.saturating_sub(earlier.0)
    };
    let cells = || {
        let phases = Phase::ALL.iter().copied();
        phases.flat_map(|phase| State::all().map(move |state| (phase, state)))
    };
    let all: f64 = cells().map(|(phase, state)| since(phase, state) as f64).sum();
    let (phase, state) = cells().max_by_key(|&(phase, state)| since(phase, state))?;
    (all > 0.0).then(|| Spent { phase, state, share: since(phase, state) as f64 / all })
}

#[cfg(test)]
mod tests;
