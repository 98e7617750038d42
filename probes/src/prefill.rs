//! Readies the histogram map for use where nothing can be allocated.
//!
//! The kernel serves new entries of a map from a small store on each CPU, which it refills outside of interrupts, and
//! starts it with a single entry of this size. A first switch that needs two would lose one. Taking one entry on each
//! CPU makes the kernel fill that CPU's store.

use gpucause_abi::record::HistRecord;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// No process has this id: they count from 1.
const NOBODY: [u8; size_of::<gpucause_abi::record::HistKey>()] =
    [0; size_of::<gpucause_abi::record::HistKey>()];

/// Takes and returns an entry of `map` on every CPU that this thread may run on. A CPU that cannot be reached starts with
/// one entry; a refused update is counted in any case.
pub(crate) fn fill(map: &MapHandle) {
    let this_thread = Pid::from_raw(0);
    let Ok(allowed) = sched_getaffinity(this_thread) else { return };
    let value = [0; size_of::<HistRecord>()];
    for cpu in (0..CpuSet::count()).filter(|&cpu| allowed.is_set(cpu).unwrap_or(false)) {
        let mut only = CpuSet::new();
        if only.set(cpu).is_err() || sched_setaffinity(this_thread, &only).is_err() {
            continue;
        }
        if let Err(error) =
            map.update(&NOBODY, &value, MapFlags::ANY).and_then(|()| map.delete(&NOBODY))
        {
            tracing::debug!(cpu, %error, "the histogram map was not readied on a CPU");
        }
    }
    if let Err(error) = sched_setaffinity(this_thread, &allowed) {
        tracing::warn!(%error, "this thread stays on one CPU");
    }
}
