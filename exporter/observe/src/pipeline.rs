//! From a snapshot of the accounts to one immutable [`Observation`]: life cycle (retention, cardinality limits, selection), then
//! names. Owns the state that this needs from one snapshot to the next. Pages, tables, chains and recordings are made of such
//! observations.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::mem::take;
use std::sync::Arc;

use gpucause_abi::snapshot::{ProcessSnapshot, Snapshot};
use gpucause_abi::{Nanos, ProcId};

use crate::clock::WallClock;
use crate::kernel_launches::{KernelNames, NameSource};
use crate::observation::{Group, Observation, live};
use crate::process_details::Details;
use crate::series::groups::Suggestions;
use crate::series::life_cycle::LifeCycle;
use crate::series::op_limit::{OpLimit, SERIES_PER_OP};
use crate::series::process_selection::ProcessSelection;
use crate::series::retention::Policy;
use crate::series::settings::SeriesSettings;
use crate::throttling::Throttled;
use crate::wait_names::WaitNames;
use crate::workers::is_worker;

/// Where snapshots come from: the maps of this kernel, or a recording.
pub trait AccountSource: NameSource {
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
pub struct Pipeline<S> {
    /// Where snapshots come from.
    pub source: S,
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
    /// For the next [`Sampled`]: a sample that fails loses none.
    aggregated: HashSet<ProcId>,
    left: Vec<(ProcId, ProcId)>,
}

/// A new observation.
#[derive(Debug)]
pub struct Sampled {
    /// The observation.
    pub observation: Observation,
    /// Processes that are part of `other` from now on.
    pub aggregated: HashSet<ProcId>,
    /// Processes that are not members of a group any more, with the ids of their groups.
    pub left: Vec<(ProcId, ProcId)>,
}

impl<S: AccountSource> Pipeline<S> {
    /// Tracks all processes individually and forever, until it is configured.
    pub fn new(source: S, since: Nanos) -> Self {
        let mut life_cycle = LifeCycle::default();
        life_cycle.retention.set_policy(Policy::FOREVER);
        life_cycle.cardinality.set_limit(usize::MAX);
        let (selection, details, kernel_names, wait_names) = Default::default();
        Self {
            source,
            since,
            life_cycle,
            selection,
            details,
            kernel_names,
            wait_names,
            wait_name_limit: SeriesSettings::default().wait_names,
            ops: OpLimit::default(),
            suggestions: Suggestions::default(),
            ops_per_process: usize::MAX,
            aggregated: HashSet::new(),
            left: Vec::new(),
        }
    }

    /// Applies other settings from now on.
    pub(crate) fn configure(&mut self, settings: &SeriesSettings) {
        self.life_cycle.retention.set_policy(settings.retention);
        self.life_cycle.groups.set_by(&settings.group_by.0);
        // Grouped processes have few series, however many processes there are.
        let limit = settings.live_processes;
        let limit = if self.life_cycle.groups.is_active() { usize::MAX } else { limit };
        self.life_cycle.cardinality.set_limit(limit);
        self.selection.set_filter(&settings.processes);
        self.set_wait_name_limit(settings.wait_names);
        self.ops_per_process = settings.series_per_process / SERIES_PER_OP;
    }

    /// Exports so many names for each process and metric of waits from now on.
    pub const fn set_wait_name_limit(&mut self, limit: usize) {
        self.wait_name_limit = limit;
    }

    /// A new observation.
    pub fn sample(&mut self) -> Result<Sampled, S::Error> {
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
            ..Observation::new(snapshot, self.since, clock)
        };
        self.source.complete(&mut observation);
        self.left.extend(self.life_cycle.groups.update(&mut observation, self.wait_name_limit));
        observation.aggregated_ops = self.ops.update(calls_of(&observation), self.ops_per_process);
        observation.ops_aggregated = self.ops.aggregated();
        if !self.life_cycle.groups.is_active() {
            self.suggestions.update(&observation);
        }
        let (aggregated, left) = (take(&mut self.aggregated), take(&mut self.left));
        Ok(Sampled { observation, aggregated, left })
    }

    /// Between observations: names the kernels that processes launched, while those processes live.
    pub(crate) fn name_launched(&mut self, mut processes: Vec<ProcessSnapshot>) {
        self.select(&mut processes);
        self.life_cycle.cardinality.assign(&processes);
        self.life_cycle.cardinality.retain_tracked(&mut processes);
        self.kernel_names.update(&processes, &mut self.source);
        self.time_kernels(&processes);
    }

    /// Between observations: deletes the accounts of ended processes whose retention is over. Returns the processes that are part of
    /// `other` from now on; `None` where there was nothing to delete.
    pub(crate) fn reap(
        &mut self,
        now: Nanos,
        ended: &[(ProcId, Nanos)],
    ) -> Result<Option<HashSet<ProcId>>, S::Error> {
        if !self.life_cycle.has_excess(now, ended) {
            return Ok(None);
        }
        let mut snapshot = self.source.snapshot()?;
        self.remove_ended(snapshot.taken_at, &mut snapshot.processes)?;
        Ok(Some(take(&mut self.aggregated)))
    }

    /// The chains of these ended processes are evaluated.
    pub(crate) fn set_evaluated(&mut self, ended: impl IntoIterator<Item = ProcId>) {
        self.life_cycle.set_evaluated(ended);
    }

    /// These processes are exported.
    pub(crate) fn set_exported(&mut self, processes: &[ProcessSnapshot]) {
        self.life_cycle.set_exported(processes);
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
        self.aggregated.extend(self.life_cycle.remove(&due, processes, admits));
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
