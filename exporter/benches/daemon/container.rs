//! The daemon's memory as a container's limit counts it: its own, and the maps of its kernel programs.

use crate::exporter::Exporter;
use crate::measure::memory;
use crate::workload::Workload;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const PROCESSES: [usize; 4] = [1, 64, 500, 1_500];
const CALLS_EACH: usize = 200;
/// For the most processes.
const BOUND_MIB: f64 = 64.0;
/// Some evaluations of causes and collections of garbage.
const SETTLES_FOR: Duration = Duration::from_secs(10);

/// A group of its own, for memory alone.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    fn new() -> Self {
        let root = Path::new("/sys/fs/cgroup");
        // Where it is on already, the kernel says so by an error.
        let _ = fs::write(root.join("cgroup.subtree_control"), "+memory");
        let path = root.join("gpucause-bench");
        fs::create_dir_all(&path).expect("a cgroup of version 2 with memory, and root");
        Self(path)
    }

    /// Processes that `start` starts belong to this group.
    fn within<T>(&self, start: impl FnOnce() -> T) -> T {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
        let enter = |group: &Path| fs::write(group.join("cgroup.procs"), "0").unwrap();
        enter(&self.0);
        let started = start();
        enter(&Path::new("/sys/fs/cgroup").join(own));
        started
    }

    fn mib(&self, file: &str) -> f64 {
        let bytes = fs::read_to_string(self.0.join(file)).unwrap();
        bytes.trim().parse::<f64>().unwrap() / f64::from(1 << 20)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

pub(crate) fn run() {
    println!("the daemon in a container, without a flight recorder, at its defaults");
    for processes in PROCESSES {
        let group = MemoryGroup::new();
        let exporter = group.within(|| Exporter::start(&[]));
        let (number, calls) = (format!("--processes={processes}"), format!("--calls={CALLS_EACH}"));
        let mut crowd = Workload::start(&["crowd", &number, &calls]);
        crowd.work();
        std::thread::sleep(SETTLES_FOR);
        let observed = exporter.samples().sum("gpucause_processes_observed", &[]);
        let (all, peak) = (group.mib("memory.current"), group.mib("memory.peak"));
        let resident = memory(exporter.pid()).resident;
        drop((crowd, exporter));
        let bound = match processes == PROCESSES[PROCESSES.len() - 1] {
            true => format!("   (must be <= {BOUND_MIB:.0} MiB)"),
            false => String::new(),
        };
        println!(
            "  {processes:5} processes, {observed:5.0} of them with series: {all:5.1} MiB of the limit, {peak:5.1} MiB at most, {resident:5.1} MiB resident{bound}"
        );
    }
}
