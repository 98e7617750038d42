//! Converts the kernel maps to domain types; deletes the entries of processes that are no longer needed.
//!
//! Maps are cumulative and shared: a copy is consistent per entry, not across entries, and counts only grow.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use gpucause_abi::op::OpId;
use gpucause_abi::record::{
    AllocationKey, CALL_COLD, CALL_NESTED, CallKey, ErrorKey, KernelKey, ProcRecord, ROLES,
    SWITCHES, SelfCounter, StallRecord,
};
use gpucause_abi::snapshot::{
    Comm, HostUse, LaunchSampling, MapUsage, ProcessSnapshot, Snapshot, StallSnapshot,
};
use gpucause_abi::{Nanos, ProcId, Tgid};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object};
use zerocopy::FromBytes;

use crate::launch_control::states::{Activity, LaunchStates};
use crate::program::Iterators;
use crate::{batch, warm_up};

mod adoption;
mod byte_counts;
mod histograms;
mod host_use;
mod kernels;
mod loads;
mod own_program;
mod unseen;
mod waits;

use adoption::Adoption;
use kernels::Timers;
pub(crate) use loads::Load;
use own_program::OwnProgram;
use waits::Flushes;

/// A kernel map could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// No such map: the programs were built from another source tree.
    #[error("the loaded programs have no map {0}")]
    NoMap(&'static str),
    /// A read failed.
    #[error("map {map} cannot be read: {source}")]
    Read {
        /// The map.
        map: &'static str,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// An entry has another size than its record.
    #[error("map {0} holds entries of an unexpected size")]
    Layout(&'static str),
    /// Live threads could not be read.
    #[error("live threads do not report: {0}")]
    Reports(std::io::Error),
    /// A program could not be run.
    #[error("program {program} does not run: {source}")]
    Run {
        /// The program.
        program: &'static str,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// libbpf failed.
    #[error("map {map}: {source}")]
    Libbpf {
        /// The map.
        map: &'static str,
        /// What libbpf said.
        source: libbpf_rs::Error,
    },
}

fn decode<T: FromBytes>(map: &'static str, bytes: &[u8]) -> Result<T, ReadError> {
    T::read_from_prefix(bytes).map(|(value, _)| value).map_err(|_| ReadError::Layout(map))
}

/// Handles of the maps.
#[derive(Debug)]
pub(crate) struct Reader {
    tracked: MapHandle,
    procs: MapHandle,
    hists: MapHandle,
    known_slots: histograms::Known,
    stalls: MapHandle,
    errors: MapHandle,
    kernels: MapHandle,
    kernel_names: MapHandle,
    timers: Timers,
    blame: MapHandle,
    bytes: MapHandle,
    allocations: MapHandle,
    accounts: MapHandle,
    block_io: MapHandle,
    self_counters: MapHandle,
    /// The iterator that reports live threads; without it time accounts contain only ended threads.
    reports: Mutex<Option<Link>>,
    links: MapHandle,
    launch_states: Arc<LaunchStates>,
    adoption: Adoption,
    /// Ends the account of a process.
    ends: OwnProgram,
}

/// Bounded maps whose fill is reported, with their overflow counters.
const BOUNDED: [(&str, SelfCounter); 10] = [
    ("procs", SelfCounter::FullProcs),
    ("hists", SelfCounter::FullHists),
    ("stalls", SelfCounter::FullStalls),
    ("errors", SelfCounter::FullErrors),
    ("kernels", SelfCounter::FullKernels),
    ("kernel_names", SelfCounter::FullKernelNames),
    ("blame", SelfCounter::FullBlame),
    ("bytes", SelfCounter::FullBytes),
    ("accounts", SelfCounter::FullAccounts),
    ("block_io", SelfCounter::FullBlockIo),
];

/// Maps keyed by process.
const PER_PROCESS: [&str; 9] = [
    "hists",
    "stalls",
    "errors",
    "kernels",
    "kernel_names",
    "blame",
    "bytes",
    "block_io",
    "allocations",
];

fn map_of(object: &Object, name: &'static str) -> Result<MapHandle, ReadError> {
    let map = object.maps().find(|map| map.name() == name).ok_or(ReadError::NoMap(name))?;
    MapHandle::try_from(&map).map_err(|source| ReadError::Libbpf { map: name, source })
}

impl Reader {
    pub(crate) fn new(
        object: &Object,
        launch_states: Arc<LaunchStates>,
    ) -> Result<Self, ReadError> {
        let map = |name: &'static str| map_of(object, name);
        let hists = map("hists")?;
        warm_up::histograms(&hists);
        Ok(Self {
            tracked: map("tracked")?,
            procs: map("procs")?,
            hists,
            known_slots: histograms::Known::default(),
            stalls: map("stalls")?,
            errors: map("errors")?,
            kernels: map("kernels")?,
            kernel_names: map("kernel_names")?,
            timers: Timers::new(object)?,
            blame: map("blame")?,
            bytes: map("bytes")?,
            allocations: map("allocations")?,
            accounts: map("accounts")?,
            block_io: map("block_io")?,
            reports: Mutex::default(),
            links: map(waits::LINKS)?,
            launch_states,
            adoption: Adoption::new(map(adoption::MAP)?),
            self_counters: map("self_counters")?,
            ends: OwnProgram::of(object, unseen::PROGRAM)?,
        })
    }

    /// Replaces the iterators.
    pub(crate) fn set_iterators(&self, Iterators { reports, adopts }: Iterators) {
        *self.reports.lock().unwrap_or_else(PoisonError::into_inner) = reports;
        self.adoption.set_program(adopts);
    }

    /// Deletes all processes and resets the self counters.
    pub(crate) fn remove_all(&self) -> Result<(), ReadError> {
        let ids = self.processes()?.0.into_keys().map(ProcId).collect();
        self.remove(&ids)?;
        let map = "self_counters";
        for &counter in SelfCounter::ALL {
            let key = u32::from(counter as u8).to_ne_bytes();
            let failed = |source| ReadError::Libbpf { map, source };
            let Some(mut values) =
                self.self_counters.lookup_percpu(&key, MapFlags::ANY).map_err(failed)?
            else {
                continue;
            };
            values.iter_mut().for_each(|value| value.fill(0));
            self.self_counters.update_percpu(&key, &values, MapFlags::ANY).map_err(failed)?;
        }
        Ok(())
    }

    /// Copies every account.
    ///
    /// # Errors
    /// When a map cannot be read; never because a process starts or ends meanwhile.
    pub(crate) fn snapshot(&self) -> Result<Snapshot, ReadError> {
        self.adoption.run_if_due()?;
        let taken_at = monotonic_now();
        let (mut processes, flushes) = self.processes()?;
        let mut usage = BTreeMap::from([("procs", processes.len() as u64)]);
        usage.insert("hists", self.read_histograms(&mut processes)?);
        usage.insert("stalls", self.read_stalls(&mut processes)?);
        usage.insert("errors", self.read_errors(&mut processes)?);
        usage.insert("kernels", self.read_kernels(&mut processes)?);
        usage.insert("kernel_names", self.names_given()?);
        self.timers.read(&mut processes)?;
        usage.insert("blame", self.read_blame(&mut processes)?);
        let accounts = self.read_accounts(&mut processes, flushes)?;
        usage.insert("accounts", accounts.entries);
        usage.insert("bytes", self.read_bytes(&mut processes)?);
        usage.insert("block_io", self.read_block_io(&mut processes)?);
        host_use::split_faults(&mut processes);
        for process in processes.values_mut() {
            let untimed = process.launches.untimed;
            let activity = match process.ended {
                // Its threads are gone; they ran to end it.
                Some(ended) => Activity::until(ended.min(taken_at)),
                None => accounts.activity(process.id, taken_at),
            };
            process.launches =
                LaunchSampling { untimed, ..self.launch_states.of(process.id, activity) };
        }
        let counters = self.counters()?;
        let refused =
            |counter: SelfCounter| counters.iter().find(|c| c.0 == counter).map_or(0, |c| c.1);
        let (timed, untimed) = self.timers.usage();
        let timers = MapUsage {
            map: "kernel_hists",
            entries: timed,
            capacity: self.timers.capacity(),
            refused: untimed,
        };
        let maps = BOUNDED
            .iter()
            .map(|&(map, counter)| MapUsage {
                map,
                entries: usage.get(map).copied().unwrap_or(0),
                capacity: u64::from(self.handle(map).max_entries()),
                refused: refused(counter),
            })
            .chain([timers])
            .collect();
        let processes = processes.into_values().map(fitted).collect();
        Ok(Snapshot { taken_at, processes, counters, maps })
    }

    /// Whether there are accounts of any process.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub(crate) fn observes_any(&self) -> Result<bool, ReadError> {
        Ok(self.procs.keys().next().is_some())
    }

    /// Ended processes, oldest first, with the time of their end; also tracks children that are older than the tracking of
    /// their parents. Without images that were replaced by `exec` after they made calls: they are kept as long as the
    /// process.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub(crate) fn ended(&self) -> Result<Vec<(ProcId, Nanos)>, ReadError> {
        self.adoption.run_if_due()?;
        let (processes, _) = self.processes()?;
        let gone =
            processes.into_values().filter(|process| !(process.execed && process.dispatches));
        let mut ended: Vec<_> =
            gone.filter_map(|process| Some((process.id, process.ended?))).collect();
        ended.sort_unstable_by_key(|&(_, at)| at);
        Ok(ended)
    }

    /// Deletes all accounts of these ended processes.
    ///
    /// # Errors
    /// When a map cannot be changed.
    pub(crate) fn remove(&self, ids: &HashSet<ProcId>) -> Result<(), ReadError> {
        if ids.is_empty() {
            return Ok(());
        }
        for name in PER_PROCESS {
            self.remove_keys(name, ids)?;
        }
        self.timers.release(ids);
        self.launch_states.forget(ids);
        for id in ids {
            self.delete("accounts", &id.0.to_ne_bytes())?;
            self.delete("procs", &id.0.to_ne_bytes())?;
        }
        Ok(())
    }

    fn handle(&self, name: &str) -> &MapHandle {
        match name {
            "procs" => &self.procs,
            "hists" => &self.hists,
            "stalls" => &self.stalls,
            "errors" => &self.errors,
            "kernels" => &self.kernels,
            "kernel_names" => &self.kernel_names,
            "blame" => &self.blame,
            "bytes" => &self.bytes,
            "allocations" => &self.allocations,
            "accounts" => &self.accounts,
            "block_io" => &self.block_io,
            _ => &self.tracked,
        }
    }

    fn remove_keys(&self, name: &'static str, ids: &HashSet<ProcId>) -> Result<(), ReadError> {
        let mut doomed = Vec::new();
        for_each(self.handle(name), name, |key, _| {
            let id = match name {
                "kernels" | "kernel_names" => decode::<KernelKey>(name, key)?.proc_id,
                "allocations" => decode::<AllocationKey>(name, key)?.proc_id,
                _ => decode::<u32>(name, key)?,
            };
            if ids.contains(&ProcId(id)) {
                doomed.extend_from_slice(key);
            }
            Ok(())
        })?;
        let key_size = self.handle(name).key_size() as usize;
        doomed.chunks_exact(key_size).try_for_each(|key| self.delete(name, key))
    }

    fn delete(&self, name: &'static str, key: &[u8]) -> Result<(), ReadError> {
        match self.handle(name).delete(key) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
                Err(ReadError::Libbpf { map: name, source: error })
            }
            _ => Ok(()),
        }
    }

    /// The processes without their counts, and the flush counts of their threads' accounts.
    fn processes(&self) -> Result<(BTreeMap<u32, ProcessSnapshot>, Flushes), ReadError> {
        let mut processes = BTreeMap::new();
        let mut flushes = Flushes::new();
        for_each(&self.procs, "procs", |key, value| {
            let id = decode::<u32>("procs", key)?;
            let record: ProcRecord = decode("procs", value)?;
            // Not tracked under this id (yet).
            if record.first_seen_ns == 0 {
                return Ok(());
            }
            flushes.insert(id, (record.flushes_begun, record.flushes_done));
            processes.insert(id, process_of(ProcId(id), &record));
            Ok(())
        })?;
        Ok((processes, flushes))
    }

    fn read_stalls(
        &self,
        processes: &mut BTreeMap<u32, ProcessSnapshot>,
    ) -> Result<u64, ReadError> {
        let mut entries = 0;
        for_each(&self.stalls, "stalls", |key, value| {
            entries += 1;
            let key: CallKey = decode("stalls", key)?;
            let record: StallRecord = decode("stalls", value)?;
            if let Some(process) = processes.get_mut(&key.proc_id) {
                process.stalls.push(StallSnapshot {
                    op: OpId(key.op),
                    cold: key.flags & CALL_COLD != 0,
                    nested: key.flags & CALL_NESTED != 0,
                    calls: record.calls,
                    offcpu: record.offcpu_ns.map(Nanos),
                });
            }
            Ok(())
        })?;
        Ok(entries)
    }

    fn read_errors(
        &self,
        processes: &mut BTreeMap<u32, ProcessSnapshot>,
    ) -> Result<u64, ReadError> {
        let mut entries = 0;
        for_each(&self.errors, "errors", |key, value| {
            entries += 1;
            let key: ErrorKey = decode("errors", key)?;
            let count = decode::<u64>("errors", value)?;
            if let Some(process) = processes.get_mut(&key.proc_id) {
                process.errors.push((OpId(key.op), key.code, count));
            }
            Ok(())
        })?;
        Ok(entries)
    }

    fn counters(&self) -> Result<Vec<(SelfCounter, u64)>, ReadError> {
        let map = "self_counters";
        SelfCounter::ALL
            .iter()
            .map(|&counter| {
                let per_cpu = self
                    .self_counters
                    .lookup_percpu(&u32::from(counter as u8).to_ne_bytes(), MapFlags::ANY)
                    .map_err(|source| ReadError::Libbpf { map, source })?
                    .unwrap_or_default();
                let total = per_cpu
                    .iter()
                    .filter_map(|bytes| bytes.first_chunk().copied())
                    .map(u64::from_ne_bytes)
                    .sum();
                Ok((counter, total))
            })
            .collect()
    }
}

fn for_each(
    map: &MapHandle,
    name: &'static str,
    mut each: impl FnMut(&[u8], &[u8]) -> Result<(), ReadError>,
) -> Result<(), ReadError> {
    let mut outcome = Ok(());
    batch::for_each(map, |key, value| {
        if outcome.is_ok() {
            outcome = each(key, value);
        }
    })
    .map_err(|source| ReadError::Read { map: name, source })?;
    outcome
}

fn process_of(id: ProcId, record: &ProcRecord) -> ProcessSnapshot {
    let mut switches = [[0; SWITCHES]; ROLES];
    for (of_role, counts) in switches.iter_mut().zip(record.ctx_switches.chunks_exact(SWITCHES)) {
        of_role.copy_from_slice(counts);
    }
    ProcessSnapshot {
        parent: (record.parent_id != 0).then_some(ProcId(record.parent_id)),
        started_boottime: Nanos(record.start_boot_ns),
        first_seen: Nanos(record.first_seen_ns),
        dispatches: record.dispatches != 0,
        ended: (record.ended_ns != 0).then_some(Nanos(record.ended_ns)),
        execed: record.execed != 0,
        measures: record.measures,
        switches,
        host: HostUse { page_faults: host_use::ended_faults(record), ..HostUse::default() },
        rank: record.rank_plus_one.checked_sub(1).map(|rank| (rank, record.world_size)),
        ..ProcessSnapshot::new(id, Tgid(record.tgid), Comm(record.comm))
    }
}

/// Releases excess capacity, as snapshots are retained.
fn fitted(mut process: ProcessSnapshot) -> ProcessSnapshot {
    process.calls.shrink_to_fit();
    process.stalls.shrink_to_fit();
    process.kernels.shrink_to_fit();
    process.copies.shrink_to_fit();
    process.waits.shrink_to_fit();
    process.dispatchers.shrink_to_fit();
    process
}

/// The current monotonic time, as used by the programs.
#[must_use]
pub fn monotonic_now() -> Nanos {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).map_or(Nanos(0), |at| {
        let seconds = u64::try_from(at.tv_sec()).unwrap_or(0);
        let nanos = u64::try_from(at.tv_nsec()).unwrap_or(0);
        Nanos(seconds * 1_000_000_000 + nanos)
    })
}
