//! Identity of processes: a PID is used again for another process, which started later.

use std::path::Path;

use gpucause_abi::{Nanos, Tgid};
use procfs::FromRead as _;
use procfs::process::Stat;

/// `USER_HZ`, in which `/proc` reports times on every architecture that CUDA exists for.
pub(crate) const TICKS_PER_SECOND: u64 = 100;

pub(crate) const NS_PER_TICK: u64 = 1_000_000_000 / TICKS_PER_SECOND;

const fn ticks(boottime: Nanos) -> u64 {
    boottime.0 / NS_PER_TICK
}

/// Returns true if a folder of `/proc` is that of the process that started at this time, on the boot-time clock.
pub(crate) fn is_that_process(dir: &Path, started: Nanos) -> bool {
    start_ticks(dir) == Some(ticks(started))
}

/// Returns true if a PID is now that of the process that started at this time.
pub fn is_running(tgid: Tgid, started: Nanos) -> bool {
    start_ticks(&Path::new("/proc").join(tgid.to_string())) == Some(ticks(started))
}

/// When the process started, in clock ticks since boot.
pub(crate) fn start_ticks(dir: &Path) -> Option<u64> {
    Some(Stat::from_file(dir.join("stat")).ok()?.starttime)
}
