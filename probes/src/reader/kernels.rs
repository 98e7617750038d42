//! Launches by kernel function, histograms of selected ones, and names of handles.

use std::collections::{BTreeMap, HashSet};

use gpucause_abi::hist::Histogram;
use gpucause_abi::record::{
    KERNEL_HISTS, KernelHistRecord, KernelKey, KernelNameRecord, KernelRecord, ProcRecord,
};
use gpucause_abi::snapshot::{HandleName, ProcessSnapshot};
use gpucause_abi::{Nanos, ProcId};
use libbpf_rs::{MapCore as _, MapFlags, Object};
use parking_lot::Mutex;

use super::own_program::OwnProgram;
use super::{Map, ReadError, Reader, decode, failed};

/// The program that starts timing of a kernel.
const PROGRAM: &str = "time_kernel";
const HISTS: &str = "kernel_hists";

/// Limit of entries per process. Above what user space selects, there are some for handles that change their kernel.
const MAX_OF_PROCESS: usize = 16;

/// Allocation of `kernel_hists` entries to kernel functions.
#[derive(Debug)]
pub(super) struct Timers {
    hists: Map,
    program: OwnProgram,
    given: Mutex<Given>,
}

#[derive(Debug, Default)]
struct Given {
    /// By entry: process and function.
    owners: Vec<Option<(ProcId, u64)>>,
    /// Processes for which the map was full, including removed ones.
    refused: HashSet<ProcId>,
    refused_gone: u64,
}

impl Timers {
    pub(super) fn new(object: &Object) -> Result<Self, ReadError> {
        let program = OwnProgram::of(object, PROGRAM)?;
        Ok(Self { hists: Map::of(object, HISTS)?, program, given: Mutex::default() })
    }

    /// Used entries, and processes for which the map was full.
    pub(super) fn usage(&self) -> (u64, u64) {
        let given = self.given.lock();
        let used = given.owners.iter().flatten().count() as u64;
        (used, given.refused_gone + given.refused.len() as u64)
    }

    pub(super) fn capacity(&self) -> u64 {
        KERNEL_HISTS as u64
    }

    /// Starts (or restarts) timing a function's warm launches; false when the map is full.
    pub(super) fn start(&self, id: ProcId, function: u64) -> Result<bool, ReadError> {
        if !self.program.is_there() {
            return Ok(false);
        }
        let mut given = self.given.lock();
        let owned = given.owners.iter().position(|owner| *owner == Some((id, function)));
        let of_process = given.owners.iter().flatten().filter(|owner| owner.0 == id).count();
        let free = owned.or_else(|| given.owners.iter().position(Option::is_none));
        let entry = match free {
            _ if owned.is_none() && of_process >= MAX_OF_PROCESS => return Ok(false),
            Some(entry) => entry,
            None if given.owners.len() < KERNEL_HISTS => {
                given.owners.push(None);
                given.owners.len() - 1
            }
            None => {
                given.refused.insert(id);
                return Ok(false);
            }
        };
        self.clear(entry)?;
        if self.program.run(&[function, u64::from(id.0), entry as u64 + 1])? != 1 {
            return Ok(false);
        }
        if let Some(owner) = given.owners.get_mut(entry) {
            *owner = Some((id, function));
        }
        drop(given);
        Ok(true)
    }

    /// Frees the entries of ended processes.
    pub(super) fn release(&self, ids: &HashSet<ProcId>) {
        let mut given = self.given.lock();
        for owner in &mut given.owners {
            if owner.is_some_and(|(id, _)| ids.contains(&id)) {
                *owner = None;
            }
        }
        let before = given.refused.len();
        given.refused.retain(|id| !ids.contains(id));
        given.refused_gone += (before - given.refused.len()) as u64;
    }

    fn clear(&self, entry: usize) -> Result<(), ReadError> {
        let zero = [0; size_of::<KernelHistRecord>()];
        self.hists.handle.update(&key(entry), &zero, MapFlags::ANY).map_err(failed(HISTS))
    }

    /// Fills in histograms of timed kernels.
    pub(super) fn read(
        &self,
        processes: &mut BTreeMap<u32, ProcessSnapshot>,
    ) -> Result<(), ReadError> {
        for (entry, owner) in self.given.lock().owners.iter().enumerate() {
            let Some((id, function)) = *owner else { continue };
            let Some(process) = processes.get_mut(&id.0) else { continue };
            let value = self.hists.lookup(&key(entry))?.ok_or(ReadError::Layout(HISTS))?;
            let record: KernelHistRecord = decode(HISTS, &value)?;
            let durations =
                Histogram::from_slots(Nanos(record.sum_ns), Nanos(record.max_ns), record.slots);
            process.launch_times.push((function, durations));
        }
        Ok(())
    }
}

fn key(entry: usize) -> [u8; 4] {
    u32::try_from(entry).unwrap_or(u32::MAX).to_ne_bytes()
}

impl Reader {
    /// Every process with only its launches by kernel function.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub fn launches(&self) -> Result<Vec<ProcessSnapshot>, ReadError> {
        let (mut processes, _) = self.processes()?;
        self.read_kernels(&mut processes)?;
        Ok(processes.into_values().collect())
    }

    /// The name that a process passed when it asked for this handle; `None` if it did not.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn handle_name(&self, id: ProcId, handle: u64) -> Result<Option<HandleName>, ReadError> {
        let key = [&handle.to_ne_bytes()[..], &id.0.to_ne_bytes(), &[0; 4]].concat();
        let Some(value) = self.kernel_names.lookup(&key)? else { return Ok(None) };
        let record: KernelNameRecord = decode(self.kernel_names.name, &value)?;
        if record.stands_for != 0 {
            return Ok(Some(HandleName::SameAs(record.stands_for)));
        }
        let end = record.text.iter().position(|&byte| byte == 0).unwrap_or(record.text.len());
        // No text while the name is being written, or if it could not be read.
        Ok((end > 0).then(|| HandleName::Text(record.text[..end].into())))
    }

    /// Starts (or restarts) timing a function's warm launches until the process is removed. False when the map is full.
    ///
    /// # Errors
    /// When a map or the program cannot be accessed.
    pub fn time_kernel(&self, id: ProcId, function: u64) -> Result<bool, ReadError> {
        self.timers.start(id, function)
    }

    /// Fills in launches; returns the entries of the map.
    pub(super) fn read_kernels(
        &self,
        processes: &mut BTreeMap<u32, ProcessSnapshot>,
    ) -> Result<u64, ReadError> {
        let entries = self.kernels.each(|key: KernelKey, record: KernelRecord| {
            if let Some(process) = processes.get_mut(&key.proc_id) {
                process.kernels.push((key.function, record.launches));
                process.launches.untimed += record.untimed;
            }
        })?;
        for process in processes.values_mut() {
            process.kernels.sort_unstable();
        }
        Ok(entries)
    }

    /// Entries of the map of handle names, including those of ended processes.
    pub(super) fn names_given(&self) -> Result<u64, ReadError> {
        let mut names = 0;
        self.procs.each(|_: u32, record: ProcRecord| names += u64::from(record.kernel_names))?;
        Ok(names.min(u64::from(self.kernel_names.handle.max_entries())))
    }
}
