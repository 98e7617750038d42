//! Processes whose end no program saw: their accounts end all the same, and what let their threads through is closed.

use anyhow::{Context as _, Result, ensure};
use gpucause_abi::record::{FILTER_SLOTS, ProcRecord};
use gpucause_probes::Options;
use libbpf_rs::query::MapInfoIter;
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use object::{Object as _, ObjectSymbol as _};

use crate::observe::{Observed, until};
use crate::shares::started;
use crate::workload::{StandIns, Workload};

const PROGRAMS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/gpucause.bpf.o"));

/// The maps of the kernel with this name, newest first.
fn maps(name: &str) -> Result<Vec<MapHandle>> {
    let found = MapInfoIter::default().filter(|info| info.name == name);
    let mut ids: Vec<_> = found.map(|info| info.id).collect();
    ids.sort_unstable();
    ids.iter().rev().map(|&id| Ok(MapHandle::from_map_id(id)?)).collect()
}

/// Processes in the filter with the hash of this number.
fn filtered(pid: u32) -> Result<u32> {
    let programs = object::File::parse(PROGRAMS)?;
    let filter = programs.symbol_by_name("tgid_filter").context("there is no filter")?.address();
    let globals = maps("gpucause.bss")?.into_iter().next().context("no global variables")?;
    let values = globals.lookup(&0u32.to_ne_bytes(), MapFlags::ANY)?.context("no values")?;
    let at = usize::try_from(filter)? + (pid as usize & (FILTER_SLOTS - 1)) * size_of::<u32>();
    let slot = values.get(at..).and_then(|rest| rest.first_chunk().copied());
    Ok(u32::from_ne_bytes(slot.context("the filter is too short")?))
}

/// A tracked process, with the map in which it is and its entry there.
struct Tracked {
    observed: Observed,
    workload: Workload,
    map: MapHandle,
    key: [u8; 4],
    id: Vec<u8>,
}

impl Tracked {
    fn start() -> Result<Self> {
        let stand_ins = StandIns::lay_out()?;
        let observed = Observed::start_own(Options::default())?;
        let mut workload =
            started(&observed, &stand_ins, "calls --op cudaLaunchKernel --calls 10")?;
        workload.result()?;
        let key = workload.pid().to_ne_bytes();
        let map = maps("tracked")?.into_iter().next().context("no map of tracked processes")?;
        let id = map.lookup(&key, MapFlags::ANY)?.context("it is not tracked")?;
        ensure!(filtered(workload.pid())? == 1);
        Ok(Self { observed, workload, map, key, id })
    }

    fn assert_ends(&self) -> Result<()> {
        let pid = self.workload.pid();
        until(
            || Ok(self.observed.process(pid)?.ended),
            || format!("its account is open: {:?}", self.observed.process(pid)),
        )?;
        ensure!(self.map.lookup(&self.key, MapFlags::ANY)?.is_none(), "it is still tracked");
        ensure!(filtered(pid)? == 0, "its number is still let through");
        Ok(())
    }
}

#[test]
fn a_process_that_ended_unseen_ends_in_the_accounts() -> Result<()> {
    let mut tracked = Tracked::start()?;
    // While it exits nothing knows it.
    tracked.map.delete(&tracked.key)?;
    tracked.workload.end()?;
    tracked.map.update(&tracked.key, &tracked.id, MapFlags::ANY)?;
    tracked.assert_ends()
}

#[test]
fn a_process_that_ended_unseen_ends_in_the_accounts_when_another_has_its_number() -> Result<()> {
    let tracked = Tracked::start()?;
    let processes = maps("procs")?.into_iter().next().context("no map of processes")?;
    let mut record = processes.lookup(&tracked.id, MapFlags::ANY)?.context("no record of it")?;
    let started = std::mem::offset_of!(ProcRecord, start_boot_ns);
    // The process that runs seems to have started after the one that is known.
    let earlier = record.get_mut(started..).and_then(|rest| rest.first_chunk_mut());
    *earlier.context("the record is too short")? = 1u64.to_ne_bytes();
    processes.update(&tracked.id, &record, MapFlags::EXIST)?;
    tracked.assert_ends()
}

#[test]
fn a_process_that_ended_unseen_ends_when_the_probes_are_taken_away() -> Result<()> {
    let mut tracked = Tracked::start()?;
    tracked.map.delete(&tracked.key)?;
    tracked.workload.end()?;
    tracked.map.update(&tracked.key, &tracked.id, MapFlags::ANY)?;
    tracked.observed.set_enabled(false);
    let disabled = || Ok((!tracked.observed.status().enabled).then_some(()));
    until(disabled, || "the probes are still there".to_owned())?;
    tracked.assert_ends()
}
