//! Which functions the threads of chains run: those whose own code is the cause, and those that hold a lock. Their stacks are sampled
//! while such a chain is there or near.

mod place;

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::Debug;

use gpucause_abi::sample::{Sample, SampledThread, Within};
use gpucause_abi::snapshot::{ProcessSnapshot, Snapshot};
use gpucause_abi::{Nanos, ProcId, Tid};
use gpucause_engine::chain::{Cause, Chain, CodeShare};
use gpucause_probes::samples::SampleError;

use place::{Place, Places};

/// Threads that are sampled at a time.
const MAX_THREADS: usize = 8;
/// Shares are made of samples that are no older than this.
const WINDOW: Nanos = Nanos(10_000_000_000);
/// Fewer samples say nothing.
const MIN_SAMPLES: u64 = 20;
/// Functions of a chain, and the least share of one.
const MAX_FUNCTIONS: usize = 5;
const MIN_SHARE: f64 = 0.01;

/// Samples the stacks of chosen threads.
pub trait StackSampler: Debug + Send + Sync {
    /// Samples these threads from now on and no others.
    fn choose(&self, threads: &[SampledThread]) -> Result<(), SampleError>;

    /// The samples since the last call.
    fn take(&self) -> Result<Vec<Sample>, SampleError>;
}

/// Samples of one thread between two evaluations, by where it was.
#[derive(Debug)]
struct Taken {
    at: Nanos,
    counts: HashMap<Place, u64>,
}

/// Finds out what functions threads run.
#[derive(Debug)]
pub(super) struct CodeSampler {
    sampler: Box<dyn StackSampler>,
    places: Places,
    threads: HashMap<(ProcId, Tid), VecDeque<Taken>>,
    /// True while threads are sampled.
    is_on: bool,
    /// True once a failure to sample them was logged.
    has_failed: bool,
}

impl CodeSampler {
    pub(super) fn new(sampler: Box<dyn StackSampler>) -> Self {
        let (places, threads) = Default::default();
        Self { sampler, places, threads, is_on: false, has_failed: false }
    }

    /// The functions that the threads of these chains run, by id of the chain; samples from now on the threads of ongoing ones, and
    /// those that `compute`.
    pub(super) fn update(
        &mut self,
        ongoing: &[Chain],
        computing: &[(ProcId, Tid)],
        snapshot: &Snapshot,
    ) -> HashMap<String, Vec<CodeShare>> {
        let threads: Vec<_> =
            ongoing.iter().map(|chain| (chain, thread_of(chain, snapshot))).collect();
        let of_chains = threads.iter().filter_map(|(_, thread)| *thread);
        let near = computing.iter().map(|&(id, tid)| (id, tid, Within::HostCode));
        let mut wanted = Vec::<(ProcId, Tid, Within)>::new();
        for thread in of_chains.chain(near) {
            if wanted.len() < MAX_THREADS && wanted.iter().all(|own| own.1 != thread.1) {
                wanted.push(thread);
            }
        }
        if wanted.is_empty() && !self.is_on {
            return HashMap::new();
        }
        if let Err(error) = self.sample(&wanted, snapshot) {
            self.failed(&error);
        }
        let code = |(chain, thread): (&Chain, Option<(ProcId, Tid, Within)>)| {
            let (id, tid, _) = thread?;
            let shares = shares(self.threads.get(&(id, tid))?);
            (!shares.is_empty()).then(|| (chain.id.clone(), shares))
        };
        threads.into_iter().filter_map(code).collect()
    }

    /// Stops.
    pub(super) fn stop(&mut self) {
        if self.is_on {
            self.update(&[], &[], &Snapshot::default());
        }
    }

    fn failed(&mut self, error: &SampleError) {
        if !self.has_failed {
            tracing::warn!(%error, "chains do not say which functions ran");
        }
        self.has_failed = true;
    }

    /// Takes the samples so far, and samples these threads from now on.
    fn sample(
        &mut self,
        wanted: &[(ProcId, Tid, Within)],
        snapshot: &Snapshot,
    ) -> Result<(), SampleError> {
        let live = |id: ProcId| process(snapshot, |own| own.id == id);
        self.places.retain(|id| live(id).is_some());
        let samples = self.sampler.take()?;
        self.add(&samples, snapshot);
        let mut threads = Vec::with_capacity(wanted.len());
        for &(id, tid, within) in wanted {
            let Some(process) = live(id) else { continue };
            let python = self.places.python(id, process.tgid);
            threads.push(SampledThread { process: id, tgid: process.tgid, tid, within, python });
        }
        self.is_on = !threads.is_empty();
        self.sampler.choose(&threads)?;
        let sampled: HashSet<_> = threads.iter().map(|own| (own.process, own.tid)).collect();
        self.threads.retain(|thread, _| sampled.contains(thread));
        for thread in sampled {
            self.threads.entry(thread).or_default();
        }
        Ok(())
    }

    fn add(&mut self, samples: &[Sample], snapshot: &Snapshot) {
        let at = snapshot.taken_at;
        for (thread, taken) in &mut self.threads {
            taken.retain(|own| at.less(own.at) < WINDOW);
            taken.push_back(Taken { at, counts: HashMap::new() });
            let of_thread = samples.iter().filter(|own| (own.process, own.tid) == *thread);
            let of_thread: Vec<_> = of_thread.collect();
            let Some(process) = process(snapshot, |own| own.id == thread.0) else { continue };
            let places = self.places.of(process.tgid, &of_thread);
            let Some(Taken { counts, .. }) = taken.back_mut() else { continue };
            for (sample, place) in of_thread.iter().zip(places) {
                *counts.entry(place).or_default() += sample.count;
            }
        }
    }
}

/// A live process of a snapshot.
fn process(
    snapshot: &Snapshot,
    is_it: impl Fn(&ProcessSnapshot) -> bool,
) -> Option<&ProcessSnapshot> {
    snapshot.processes.iter().rfind(|process| process.ended.is_none() && is_it(process))
}

/// The thread whose code a chain is about.
fn thread_of(chain: &Chain, snapshot: &Snapshot) -> Option<(ProcId, Tid, Within)> {
    let (pid, tid, within) = match (chain.cause, &chain.culprit) {
        (Cause::HostCode, _) => (chain.victim.pid, chain.victim.tid, Within::HostCode),
        (cause, Some(holder)) if cause.has_holder() => {
            (holder.local_pid()?, holder.tid?, Within::Anywhere)
        }
        _ => return None,
    };
    Some((process(snapshot, |own| own.tgid.0 == pid)?.id, Tid(tid), within))
}

/// Functions by their share of the samples, most first, each with the line that ran most.
fn shares(taken: &VecDeque<Taken>) -> Vec<CodeShare> {
    let mut functions = HashMap::<(&str, &str), HashMap<u32, u64>>::new();
    let mut all = 0;
    for (place, count) in taken.iter().flat_map(|own| &own.counts) {
        all += count;
        let lines = functions.entry((&place.file, &place.function)).or_default();
        *lines.entry(place.line).or_default() += count;
    }
    if all < MIN_SAMPLES {
        return Vec::new();
    }
    let share = |((file, function), lines): ((&str, &str), HashMap<u32, u64>)| {
        let count: u64 = lines.values().sum();
        let line = lines.into_iter().max_by_key(|&(line, count)| (count, line));
        let line = line.map_or(0, |(line, _)| line);
        let (file, function) = (file.to_owned(), function.to_owned());
        CodeShare { function, file, line, share: count as f64 / all as f64 }
    };
    let named = functions.into_iter().filter(|((file, _), _)| !file.is_empty()).map(share);
    let mut shares: Vec<_> = named.filter(|own| own.share >= MIN_SHARE).collect();
    shares.sort_by(|a, b| {
        b.share.total_cmp(&a.share).then_with(|| (&a.file, a.line).cmp(&(&b.file, b.line)))
    });
    shares.truncate(MAX_FUNCTIONS);
    shares
}

#[cfg(test)]
mod tests;
