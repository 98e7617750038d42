//! From a snapshot of the accounts to one immutable [`Observation`]: life cycle (retention, cardinality limits, selection), then
//! names. Owns the state that this needs from one snapshot to the next. Pages, tables, chains and recordings are made of such
//! observations.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::sync::Arc;

use gpucause_abi::snapshot::{ProcessSnapshot, Snapshot};
use gpucause_abi::{Nanos, ProcId};

use crate::chains::Chains;
use crate::clock::{WallClock, monotonic_now};
use crate::config::Config;
use crate::kernel_launches::{KernelNames, NameSource};
use crate::observation::{Group, Observation, live};
use crate::process_details::Details;
use crate::scrape_times::ScrapeTimes;
use crate::series::groups::Suggestions;
use crate::series::life_cycle::LifeCycle;
use crate::series::op_limit::{OpLimit, SERIES_PER_OP};
use crate::series::process_selection::ProcessSelection;
use crate::series::retention::Policy;
use crate::throttling::Throttled;
use crate::wait_names::WaitNames;
use crate::workers::is_worker;

/// A page shows the last observation if its snapshot is younger than this, and else a new one.
pub(crate) const SHARED_FOR: Nanos = Nanos(100_000_000);
/// An expected page is sampled so long before, in addition to what the last sample took: a scrape may come early.
const EARLY: Nanos = Nanos(20_000_000);
/// The earliest: a scrape may come late.
const EARLIEST: Nanos = Nanos(80_000_000);

/// Where snapshots come from: the maps of this kernel, or a recording.
pub(crate) trait AccountSource: NameSource {
    /// Why accounts cannot be read or changed.
    type Error: Display;

    /// A snapshot of all accounts.
    fn snapshot(&mut self) -> Result<Snapshot, Self::Error>;

    /// Deletes the accounts of ended processes: no later snapshot has them.
    fn remove(&mut self, gone: &HashSet<ProcId>) -> Result<(), Self::Error>;

    /// Times the launches of a kernel from now on; false where that is not possible.
    fn time_kernel(&mut self, id: ProcId, handle: u64) -> Result<bool, Self::Error> {
        let _ = (id, handle);
        Ok(false)
    }

    /// Returns the details of these processes beside their accounts.
    fn details(&mut self, _processes: &[ProcessSnapshot]) -> Details {
        Details::new()
    }

    /// For how long these processes were out of CPU quota.
    fn throttled(&mut self, _processes: &[ProcessSnapshot]) -> HashMap<ProcId, Throttled> {
        HashMap::new()
    }

    /// The clock that converts the time of this snapshot.
    fn clock(&mut self, taken_at: Nanos) -> WallClock;

    /// Adds what is not about the accounts of processes.
    fn complete(&mut self, _observation: &mut Observation) {}
}

/// Makes observations of one source.
#[derive(Debug)]
pub(crate) struct Pipeline<S> {
    pub(crate) source: S,
    chains: Arc<Chains>,
    /// When counting began.
    since: Nanos,
    life_cycle: LifeCycle,
    selection: ProcessSelection,
    details: Details,
    kernel_names: KernelNames,
    wait_names: WaitNames,
    wait_name_limit: usize,
    ops: OpLimit,
    suggestions: Suggestions,
    ops_per_process: usize,
    /// The last observation, until it is too old for a page or something makes it wrong.
    latest: Option<Arc<Observation>>,
    scrapes: ScrapeTimes,
    /// Duration of the last sample.
    sampled_in: Nanos,
}

impl<S: AccountSource> Pipeline<S> {
    /// Tracks all processes individually and forever, until it is configured.
    pub(crate) fn new(source: S, chains: Arc<Chains>, since: Nanos) -> Self {
        let mut life_cycle = LifeCycle::default();
        life_cycle.retention.set_policy(Policy::FOREVER);
        life_cycle.cardinality.set_limit(usize::MAX);
        let (selection, details, kernel_names, wait_names) = Default::default();
        Self {
            source,
            chains,
            since,
            life_cycle,
            selection,
            details,
            kernel_names,
            wait_names,
            wait_name_limit: Config::default().limits.wait_names,
            ops: OpLimit::default(),
            suggestions: Suggestions::default(),
            ops_per_process: usize::MAX,
            latest: None,
            scrapes: ScrapeTimes::default(),
            sampled_in: Nanos(0),
        }
    }

    /// Applies another configuration from now on.
    pub(crate) fn configure(&mut self, config: &Config) {
        self.life_cycle.retention.set_policy(config.retention_policy());
        self.life_cycle.groups.set_by(&config.metrics.group_by.0);
        // Grouped processes have few series, however many processes there are.
        let limit = config.limits.live_processes;
        let limit = if self.life_cycle.groups.is_active() { usize::MAX } else { limit };
        self.life_cycle.cardinality.set_limit(limit);
        self.selection.set_filter(&config.processes);
        self.set_wait_name_limit(config.limits.wait_names);
        self.ops_per_process = config.limits.series_per_process / SERIES_PER_OP;
        self.forget_latest();
    }

    /// Exports so many names for each process and metric of waits from now on.
    pub(crate) const fn set_wait_name_limit(&mut self, limit: usize) {
        self.wait_name_limit = limit;
    }

    /// The next observation is a new one, however young the last is.
    pub(crate) fn forget_latest(&mut self) {
        self.latest = None;
    }

    /// Returns true if an observation is kept for later pages.
    pub(crate) const fn keeps_latest(&self) -> bool {
        self.latest.is_some()
    }

    /// The last observation, if its snapshot is not older than `not_before`, or else a new one.
    pub(crate) fn observe(&mut self, not_before: Nanos) -> Result<Arc<Observation>, S::Error> {
        let is_young = |own: &Arc<Observation>| own.snapshot.taken_at >= not_before;
        // Taken away: the old one and a new one would need twice the memory.
        if let Some(latest) = self.latest.take().filter(is_young) {
            self.latest = Some(Arc::clone(&latest));
            return Ok(latest);
        }
        let begin = monotonic_now();
        let observation = Arc::new(self.sample()?);
        self.sampled_in = monotonic_now().less(begin);
        self.latest = Some(Arc::clone(&observation));
        Ok(observation)
    }

    /// Does the same as [`observe`](Self::observe); the processes count as exported.
    pub(crate) fn export(&mut self, not_before: Nanos) -> Result<Arc<Observation>, S::Error> {
        let observation = self.observe(not_before)?;
        self.life_cycle.set_exported(&observation.snapshot.processes);
        Ok(observation)
    }

    /// The observation for a page that is requested at `now`.
    pub(crate) fn page(&mut self, now: Nanos) -> Result<Arc<Observation>, S::Error> {
        self.scrapes.requested(now);
        self.export(Nanos((now.0 + 1).saturating_sub(SHARED_FOR.0)))
    }

    /// When to take a sample for the next page that is expected after `now`.
    pub(crate) fn next_sample(&mut self, now: Nanos) -> Option<Nanos> {
        let early = Nanos(self.sampled_in.0 + EARLY.0).min(EARLIEST);
        Some(self.scrapes.next(now)?.less(early))
    }

    /// A new observation, or how long to wait with it where it would delay a page.
    pub(crate) fn observe_between_pages(
        &mut self,
        now: Nanos,
    ) -> Result<Result<Arc<Observation>, Nanos>, S::Error> {
        match self.scrapes.busy_for(now) {
            Nanos(0) => self.observe(now).map(Ok),
            wait => Ok(Err(wait)),
        }
    }

    /// Takes that sample, if there is none that the page could show.
    pub(crate) fn sample_early(&mut self, now: Nanos) -> Result<(), S::Error> {
        let Some(expected) = self.scrapes.next(now) else { return Ok(()) };
        self.scrapes.served();
        self.observe(expected.less(EARLIEST)).map(drop)
    }

    /// A new observation.
    pub(crate) fn sample(&mut self) -> Result<Observation, S::Error> {
        let mut snapshot = self.source.snapshot()?;
        let clock = self.source.clock(snapshot.taken_at);
        self.remove_ended(snapshot.taken_at, &mut snapshot.processes)?;
        let processes_excluded = self.select(&mut snapshot.processes);
        let processes_live = live(&snapshot.processes);
        let (overflow, former_workers) = self.life_cycle.limit(&mut snapshot.processes);
        let processes = &snapshot.processes;
        self.kernel_names.update(processes, &mut self.source);
        let kernels = self.kernel_names.launches(processes);
        self.time_kernels(processes);
        let waits = waits_of(processes);
        let waits = waits.chain(overflow.iter().map(|own| (own, own)));
        let waits = self.wait_names.update(waits, self.wait_name_limit);
        let throttled = self.source.throttled(processes);
        let mut observation = Observation {
            details: self.details.clone(),
            processes_excluded,
            processes_live,
            processes_aggregated: self.life_cycle.aggregated(),
            overflow,
            former_workers,
            kernels,
            kernel_names_aggregated: self.kernel_names.aggregated(),
            waits,
            wait_names_aggregated: self.wait_names.aggregated(),
            throttled,
            findings: self.chains.findings(),
            ..Observation::new(snapshot, self.since, clock)
        };
        self.source.complete(&mut observation);
        self.life_cycle.groups.update(&mut observation, self.wait_name_limit);
        observation.aggregated_ops = self.ops.update(calls_of(&observation), self.ops_per_process);
        observation.ops_aggregated = self.ops.aggregated();
        if !self.life_cycle.groups.is_active() {
            self.suggestions.update(&observation);
        }
        Ok(observation)
    }

    /// Between observations: names the kernels that processes launched, while those processes live.
    pub(crate) fn name_launched(&mut self, mut processes: Vec<ProcessSnapshot>) {
        self.select(&mut processes);
        self.life_cycle.cardinality.assign(&processes);
        self.life_cycle.cardinality.retain_tracked(&mut processes);
        self.kernel_names.update(&processes, &mut self.source);
        self.time_kernels(&processes);
    }

    /// Between observations: deletes the accounts of ended processes whose retention is over, if there are any.
    pub(crate) fn reap(&mut self, now: Nanos, ended: &[(ProcId, Nanos)]) -> Result<(), S::Error> {
        if !self.life_cycle.has_excess(now, ended) {
            return Ok(());
        }
        let mut snapshot = self.source.snapshot()?;
        // It may show processes that are part of `other` from now on.
        self.forget_latest();
        self.remove_ended(snapshot.taken_at, &mut snapshot.processes)
    }

    /// The kernel functions that have names, by process and handle.
    pub(crate) fn kernel_names(&self) -> Vec<(ProcId, u64, Arc<str>)> {
        self.kernel_names.names()
    }

    fn remove_ended(
        &mut self,
        now: Nanos,
        processes: &mut Vec<ProcessSnapshot>,
    ) -> Result<(), S::Error> {
        let due = self.life_cycle.due(now, processes);
        self.source.remove(&due.all)?;
        let excluded = self.selection.excluded(processes, &self.details);
        let admits = |process: &ProcessSnapshot| !excluded.contains(&process.id);
        let aggregated = self.life_cycle.remove(&due, processes, admits);
        if !aggregated.is_empty() {
            self.chains.aggregate(&aggregated);
        }
        Ok(())
    }

    /// Leaves out the processes that the configuration excludes; returns how many of those are live.
    fn select(&mut self, processes: &mut Vec<ProcessSnapshot>) -> u64 {
        self.details = self.source.details(processes);
        self.selection.apply(processes, &self.details)
    }

    /// Times the launches of the hottest kernels.
    fn time_kernels(&mut self, processes: &[ProcessSnapshot]) {
        for (id, handle, name) in self.kernel_names.untimed(processes) {
            match self.source.time_kernel(id, handle) {
                Ok(true) => self.kernel_names.timed(id, handle, name),
                Ok(false) => {}
                Err(error) => tracing::debug!(%error, "launches of a kernel are not timed"),
            }
        }
    }
}

/// The accounts whose waits a page has. Those of workers are left out: a process that has their CPU need not delay the one that
/// they work for, and may be that process itself.
fn waits_of(
    processes: &[ProcessSnapshot],
) -> impl Iterator<Item = (&ProcessSnapshot, &ProcessSnapshot)> {
    processes.iter().filter(|process| !is_worker(process)).map(|process| (process, process))
}

/// The accounts whose calls a page has, each behind the process or group that has the series. Workers make none.
fn calls_of(
    observation: &Observation,
) -> impl Iterator<Item = (&ProcessSnapshot, &ProcessSnapshot)> {
    let processes = &observation.snapshot.processes;
    let groups = &observation.groups;
    let members = groups.iter().flat_map(|group| group.members.iter().map(move |id| (*id, group)));
    let group_of: HashMap<ProcId, &Group> = members.collect();
    let present = processes.iter().filter(|process| !is_worker(process));
    let present = present.map(move |process| {
        (group_of.get(&process.id).map_or(process, |group| &group.former), process)
    });
    let former = groups.iter().map(|group| (&group.former, &group.former));
    present.chain(former).chain(observation.overflow.iter().map(|own| (own, own)))
}
