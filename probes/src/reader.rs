//! Converts the kernel maps to domain types; deletes the entries of processes that are no longer needed.
//!
//! Maps are cumulative and shared: a copy is consistent per entry, not across entries, and counts only grow.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use gpucause_abi::op::OpId;
use gpucause_abi::record::{
    AllocationKey, CALL_COLD, CALL_NESTED, CallKey, ErrorKey, GrowingMap, KernelKey, ProcRecord,
    ROLES, SWITCHES, SelfCounter, StallRecord,
};
use gpucause_abi::snapshot::{
    Comm, HostUse, LaunchSampling, MapUsage, ProcessSnapshot, Snapshot, StallSnapshot,
};
use gpucause_abi::{Nanos, ProcId, Tgid};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object};
use parking_lot::Mutex;
use zerocopy::FromBytes;

use crate::hit_cost::{HitCosts, SpentTime};
use crate::host_clock::monotonic_now;
use crate::launch_states::LaunchStates;
use crate::program::Iterators;
use crate::{batch, warm_up};

mod adoption;
mod byte_counts;
mod histograms;
mod host_use;
mod kernels;
mod known_keys;
mod loads;
mod orphans;
mod own_program;
mod self_counters;
mod unseen_ends;
mod waits;

use adoption::Adoption;
use kernels::Timers;
use known_keys::KnownKeys;
pub(crate) use loads::Load;
use orphans::Dispatcher;
use own_program::OwnProgram;
use waits::Flushes;

/// A kernel map could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// No such map: the programs were built from another source tree.
    #[error("the loaded programs have no map {0}")]
    NoMap(&'static str),
    /// A read failed.
    #[error("map {0} cannot be read: {1}")]
    Read(&'static str, #[source] std::io::Error),
    /// An entry has another size than its record.
    #[error("map {0} holds entries of an unexpected size")]
    Layout(&'static str),
    /// Live threads could not be read.
    #[error("live threads do not report: {0}")]
    Reports(std::io::Error),
    /// A program could not be run.
    #[error("program {0} does not run: {1}")]
    Run(&'static str, #[source] std::io::Error),
    /// libbpf failed.
    #[error("map {0}: {1}")]
    Libbpf(&'static str, #[source] libbpf_rs::Error),
}

fn decode<T: FromBytes>(map: &'static str, bytes: &[u8]) -> Result<T, ReadError> {
    T::read_from_prefix(bytes).map(|(value, _)| value).map_err(|_| ReadError::Layout(map))
}

/// A map, with its name for errors.
#[derive(Debug)]
struct Map {
    name: &'static str,
    handle: MapHandle,
    /// `None` for maps that are no [`GrowingMap`]: these are always walked.
    known: Option<KnownKeys>,
}

impl Map {
    fn of(object: &Object, name: &'static str) -> Result<Self, ReadError> {
        let handle = |name: &'static str| {
            let found = object.maps().find(|map| map.name() == name);
            let map = found.ok_or(ReadError::NoMap(name))?;
            MapHandle::try_from(&map).map_err(failed(name))
        };
        let grows = GrowingMap::ALL.iter().find(|map| map.label() == name);
        let known = grows.map(|&map| Ok(KnownKeys::new(handle(known_keys::ADDED)?, map)));
        Ok(Self { name, handle: handle(name)?, known: known.transpose()? })
    }

    fn lookup(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        self.handle.lookup(key, MapFlags::ANY).map_err(failed(self.name))
    }

    /// Takes every entry; returns their number.
    fn each<K: FromBytes, V: FromBytes>(
        &self,
        mut take: impl FnMut(K, V),
    ) -> Result<u64, ReadError> {
        let mut entries = 0;
        self.each_raw(|key, value| {
            entries += 1;
            take(decode(self.name, key)?, decode(self.name, value)?);
            Ok(())
        })?;
        Ok(entries)
    }

    fn each_raw(
        &self,
        mut take: impl FnMut(&[u8], &[u8]) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let mut outcome = Ok(());
        let each = |key: &[u8], value: &[u8]| {
            if outcome.is_ok() {
                outcome = take(key, value);
            }
        };
        match &self.known {
            Some(known) => known.for_each(&self.handle, each),
            None => batch::for_each(&self.handle, each),
        }
        .map_err(|source| ReadError::Read(self.name, source))?;
        outcome
    }

    /// Deletes an entry, if it is there.
    fn delete(&self, key: &[u8]) -> Result<(), ReadError> {
        match self.handle.delete(key) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
                Err(failed(self.name)(error))
            }
            _ => Ok(()),
        }
    }

    /// Deletes the entries of these processes.
    fn delete_of(&self, ids: &HashSet<ProcId>) -> Result<(), ReadError> {
        let mut doomed = Vec::new();
        self.each_raw(|key, _| {
            let id = match self.name {
                "kernels" | "kernel_names" => decode::<KernelKey>(self.name, key)?.proc_id,
                "allocations" => decode::<AllocationKey>(self.name, key)?.proc_id,
                _ => decode::<u32>(self.name, key)?,
            };
            if ids.contains(&ProcId(id)) {
                doomed.extend_from_slice(key);
            }
            Ok(())
        })?;
        let key_size = self.handle.key_size() as usize;
        doomed.chunks_exact(key_size).try_for_each(|key| self.delete(key))
    }
}

fn failed(map: &'static str) -> impl Fn(libbpf_rs::Error) -> ReadError {
    move |source| ReadError::Libbpf(map, source)
}

/// Reads the accounts of processes.
#[derive(Debug)]
pub struct Reader {
    tracked: Map,
    hashed_threads: Map,
    procs: Map,
    hists: Map,
    known_slots: histograms::Known,
    stalls: Map,
    errors: Map,
    kernels: Map,
    kernel_names: Map,
    timers: Timers,
    blame: Map,
    bytes: Map,
    allocations: Map,
    accounts: Map,
    tenures: Map,
    block_io: Map,
    self_counters: Map,
    /// Time that hits of call probes took, by these costs; `None` where they are not known.
    spent: Mutex<Option<(HitCosts, SpentTime)>>,
    /// The iterator that reports live threads; without it time accounts contain only ended threads.
    reports: Mutex<Option<Link>>,
    links: Map,
    launch_states: Arc<LaunchStates>,
    adoption: Adoption,
    /// Ends the account of a process.
    ends: OwnProgram,
}

impl Reader {
    pub(crate) fn new(
        object: &Object,
        launch_states: Arc<LaunchStates>,
    ) -> Result<Self, ReadError> {
        let map = |name: &'static str| Map::of(object, name);
        let hists = map("hists")?;
        warm_up::histograms(&hists.handle);
        Ok(Self {
            tracked: map("tracked")?,
            hashed_threads: map("hashed_threads")?,
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
            tenures: map("tenures_of")?,
            block_io: map("block_io")?,
            reports: Mutex::default(),
            links: map(waits::LINKS)?,
            launch_states,
            adoption: Adoption::new(map(adoption::MAP)?, map(adoption::ORPHANS)?),
            self_counters: map("self_counters")?,
            spent: Mutex::default(),
            ends: OwnProgram::of(object, unseen_ends::PROGRAM)?,
        })
    }

    /// Replaces the iterators.
    pub(crate) fn set_iterators(&self, Iterators { reports, adopts }: Iterators) {
        *self.reports.lock() = reports;
        self.adoption.set_program(adopts);
    }

    /// Deletes all processes and resets the self counters.
    pub(crate) fn remove_all(&self) -> Result<(), ReadError> {
        let ids = self.processes()?.0.into_keys().map(ProcId).collect();
        self.remove(&ids)?;
        self.reset_counters()
    }

    /// Copies every account.
    ///
    /// # Errors
    /// When a map cannot be read; never because a process starts or ends meanwhile.
    pub fn snapshot(&self) -> Result<Snapshot, ReadError> {
        self.adoption.run_if_due(|| self.dispatchers())?;
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
        usage.insert("accounts", self.read_accounts(&mut processes, flushes)?);
        usage.insert("bytes", self.read_bytes(&mut processes)?);
        usage.insert("block_io", self.read_block_io(&mut processes)?);
        host_use::split_faults(&mut processes);
        for process in processes.values_mut() {
            let untimed = process.launches.untimed;
            let life = (process.first_seen, process.ended.unwrap_or(taken_at));
            process.launches =
                LaunchSampling { untimed, ..self.launch_states.of(process.id, life) };
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
        let maps = self
            .bounded()
            .into_iter()
            .map(|(map, counter)| MapUsage {
                map: map.name,
                entries: usage.get(map.name).copied().unwrap_or(0),
                capacity: u64::from(map.handle.max_entries()),
                refused: refused(counter),
            })
            .chain([timers])
            .collect();
        let processes = processes.into_values().map(fitted).collect();
        Ok(Snapshot { taken_at, processes, counters, maps })
    }

    /// Returns true if there are accounts of any process.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn observes_any(&self) -> Result<bool, ReadError> {
        Ok(self.procs.handle.keys().next().is_some())
    }

    /// Ended processes, oldest first, with the time of their end; also tracks children that are older than the tracking of
    /// their parents. Without images that were replaced by `exec` after they made calls: they are kept as long as the
    /// process.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn ended(&self) -> Result<Vec<(ProcId, Nanos)>, ReadError> {
        self.adoption.run_if_due(|| self.dispatchers())?;
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
    pub fn remove(&self, ids: &HashSet<ProcId>) -> Result<(), ReadError> {
        if ids.is_empty() {
            return Ok(());
        }
        self.per_process().into_iter().try_for_each(|map| map.delete_of(ids))?;
        self.timers.release(ids);
        self.launch_states.forget(ids);
        for id in ids {
            self.accounts.delete(&id.0.to_ne_bytes())?;
            self.tenures.delete(&id.0.to_ne_bytes())?;
            self.procs.delete(&id.0.to_ne_bytes())?;
        }
        Ok(())
    }

    /// Bounded maps whose fill is reported, with their overflow counters.
    fn bounded(&self) -> [(&Map, SelfCounter); 10] {
        [
            (&self.procs, SelfCounter::FullProcs),
            (&self.hists, SelfCounter::FullHists),
            (&self.stalls, SelfCounter::FullStalls),
            (&self.errors, SelfCounter::FullErrors),
            (&self.kernels, SelfCounter::FullKernels),
            (&self.kernel_names, SelfCounter::FullKernelNames),
            (&self.blame, SelfCounter::FullBlame),
            (&self.bytes, SelfCounter::FullBytes),
            (&self.accounts, SelfCounter::FullAccounts),
            (&self.block_io, SelfCounter::FullBlockIo),
        ]
    }

    /// Maps keyed by process.
    fn per_process(&self) -> [&Map; 9] {
        let Self { hists, stalls, errors, kernels, kernel_names, blame, .. } = self;
        let Self { bytes, block_io, allocations, .. } = self;
        [hists, stalls, errors, kernels, kernel_names, blame, bytes, block_io, allocations]
    }

    /// The processes without their counts, and the flush counts of their threads' accounts.
    fn processes(&self) -> Result<(BTreeMap<u32, ProcessSnapshot>, Flushes), ReadError> {
        let mut processes = BTreeMap::new();
        let mut flushes = Flushes::new();
        self.procs.each(|id: u32, record: ProcRecord| {
            // Zero: not tracked under this id (yet).
            if record.first_seen_ns != 0 {
                flushes.insert(id, (record.flushes_begun, record.flushes_done));
                processes.insert(id, process_of(ProcId(id), &record));
            }
        })?;
        Ok((processes, flushes))
    }

    /// Live processes that make calls.
    fn dispatchers(&self) -> Result<Vec<Dispatcher>, ReadError> {
        let mut dispatchers = Vec::new();
        self.procs.each(|id: u32, record: ProcRecord| {
            if record.dispatches != 0 && record.ended_ns == 0 {
                dispatchers.push(Dispatcher { id: ProcId(id), tgid: Tgid(record.tgid) });
            }
        })?;
        Ok(dispatchers)
    }

    fn read_stalls(
        &self,
        processes: &mut BTreeMap<u32, ProcessSnapshot>,
    ) -> Result<u64, ReadError> {
        self.stalls.each(|key: CallKey, record: StallRecord| {
            if let Some(process) = processes.get_mut(&key.proc_id) {
                process.stalls.push(StallSnapshot {
                    op: OpId(key.op),
                    cold: key.flags & CALL_COLD != 0,
                    nested: key.flags & CALL_NESTED != 0,
                    calls: record.calls,
                    offcpu: record.offcpu_ns.map(Nanos),
                });
            }
        })
    }

    fn read_errors(
        &self,
        processes: &mut BTreeMap<u32, ProcessSnapshot>,
    ) -> Result<u64, ReadError> {
        self.errors.each(|key: ErrorKey, count: u64| {
            if let Some(process) = processes.get_mut(&key.proc_id) {
                process.errors.push((OpId(key.op), key.code, count));
            }
        })
    }
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
