//! The daemon's memory as a container's limit counts it: its own, and the maps of its kernel programs.

use crate::measure::memory;
use gpucause_fixture::exporter::Exporter;
use gpucause_fixture::workload::{Workload, libraries};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

const PROCESSES: [usize; 4] = [1, 64, 500, 1_500];
const CALLS_EACH: usize = 200;
/// For the most processes.
const BOUND_MIB: f64 = 64.0;
/// Some evaluations of causes and collections of garbage.
const SETTLES_FOR: Duration = Duration::from_secs(10);

/// The hierarchy of cgroups that counts memory.
struct Hierarchy {
    root: &'static str,
    /// The controller in its line of `/proc/self/cgroup`; none in version 2.
    controller: &'static str,
    /// Files of the memory in use, and of the most so far.
    files: (&'static str, &'static str),
}

const VERSION_2: Hierarchy =
    Hierarchy { root: "/sys/fs/cgroup", controller: "", files: ("memory.current", "memory.peak") };
const VERSION_1: Hierarchy = Hierarchy {
    root: "/sys/fs/cgroup/memory",
    controller: "memory",
    files: ("memory.usage_in_bytes", "memory.max_usage_in_bytes"),
};

/// A group of its own, for memory alone.
struct MemoryGroup {
    path: PathBuf,
    hierarchy: Hierarchy,
}

impl MemoryGroup {
    fn new() -> Self {
        let root = Path::new(VERSION_2.root);
        let is_version_2 = root.join("cgroup.controllers").exists();
        if is_version_2 {
            // Where it is on already, the kernel says so by an error.
            let _ = fs::write(root.join("cgroup.subtree_control"), "+memory");
        }
        let hierarchy = if is_version_2 { VERSION_2 } else { VERSION_1 };
        let path = Path::new(hierarchy.root).join("gpucause-bench");
        match fs::create_dir(&path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                panic!("a cgroup with memory, and root: {error}")
            }
            _ => {}
        }
        Self { path, hierarchy }
    }

    /// Processes that `start` starts belong to this group.
    fn within<T>(&self, start: impl FnOnce() -> T) -> T {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        let path_of = |line: &str| {
            let (controllers, path) = line.split_once(':')?.1.split_once(":/")?;
            let mut controllers = controllers.split(',');
            controllers.any(|own| own == self.hierarchy.controller).then(|| path.to_owned())
        };
        let own = own.lines().find_map(path_of).unwrap_or_default();
        let enter = |group: &Path| fs::write(group.join("cgroup.procs"), "0").unwrap();
        enter(&self.path);
        let started = start();
        enter(&Path::new(self.hierarchy.root).join(own));
        started
    }

    /// Memory in use, and the most so far.
    fn mib(&self) -> (f64, f64) {
        let mib = |file: &str| {
            let bytes = fs::read_to_string(self.path.join(file)).unwrap();
            bytes.trim().parse::<f64>().unwrap() / f64::from(1 << 20)
        };
        (mib(self.hierarchy.files.0), mib(self.hierarchy.files.1))
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

pub(crate) fn run() {
    println!("the daemon in a container, without a flight recorder, at its defaults");
    for processes in PROCESSES {
        let group = MemoryGroup::new();
        let exporter = group.within(|| Exporter::start(&[]));
        let (number, calls) = (format!("--processes={processes}"), format!("--calls={CALLS_EACH}"));
        let mut crowd = Workload::start(&["crowd", &number, &calls]);
        exporter.until_attached(&libraries().join("libcudart.so.12"));
        crowd.work();
        std::thread::sleep(SETTLES_FOR);
        let observed = exporter.samples().sum("gpucause_processes_observed", &[]);
        let (all, peak) = group.mib();
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
