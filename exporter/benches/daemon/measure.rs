//! CPU time and memory of a process.

use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use std::time::Duration;

/// CPU time of all threads of a process, user and system.
pub(crate) fn cpu_time(pid: u32) -> Duration {
    let clock = clock_getcpuclockid(Pid::from_raw(pid.try_into().unwrap())).unwrap();
    clock_gettime(clock).unwrap().into()
}

/// In MiB.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) resident: f64,
    pub(crate) anonymous: f64,
    /// The most that was ever resident.
    pub(crate) peak: f64,
}

pub(crate) fn memory(pid: u32) -> Memory {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mib = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
    };
    Memory { resident: mib("VmRSS:"), anonymous: mib("RssAnon:"), peak: mib("VmHWM:") }
}

/// Nearest rank of sorted times.
pub(crate) fn quantile(sorted: &[Duration], q: f64) -> Duration {
    let rank = (sorted.len() as f64 * q).ceil() as usize;
    sorted[rank.max(1) - 1]
}
