//! Warms up the per-CPU caches of the histogram map, for programs that run where nothing can be allocated.
//!
//! The kernel allocates map entries from a per-CPU cache that it refills outside of interrupts and that starts with one
//! entry of this size, so a first switch that needs two would lose one. One update on each CPU fills that CPU's cache.

use gpucause_abi::record::HistRecord;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// A key that no process has: ids start at 1.
const NOBODY: [u8; size_of::<gpucause_abi::record::HistKey>()] =
    [0; size_of::<gpucause_abi::record::HistKey>()];

/// Inserts and deletes an entry of `map` on every CPU that this thread may run on. Best effort: a lost entry is counted.
pub(crate) fn histograms(map: &MapHandle) {
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
            tracing::debug!(cpu, %error, "cannot warm up the histogram map on a CPU");
        }
    }
    if let Err(error) = sched_setaffinity(this_thread, &allowed) {
        tracing::warn!(%error, "cannot restore the CPU affinity of this thread");
    }
}
