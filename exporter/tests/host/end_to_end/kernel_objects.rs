//! This finds the BPF objects of a process in the kernel, and those that are left when the process is gone.

use libbpf_rs::query::{LinkInfoIter, MapInfoIter, ProgInfoIter};
use std::collections::BTreeSet;
use std::fs;

/// Ids of programs, maps and links. The kernel does not give an id out again soon.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct KernelObjects {
    pub(crate) programs: BTreeSet<u32>,
    pub(crate) maps: BTreeSet<u32>,
    pub(crate) links: BTreeSet<u32>,
}

impl KernelObjects {
    /// Returns the objects that a process has descriptors of.
    pub(crate) fn of_process(pid: u32) -> Self {
        let mut objects = Self::default();
        let descriptors = fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("the process lives");
        for descriptor in descriptors.map_while(Result::ok) {
            // A descriptor may be closed by now.
            let info = fs::read_to_string(descriptor.path()).unwrap_or_default();
            let id = |key: &str| -> Option<u32> {
                info.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
            };
            objects.programs.extend(id("prog_id:"));
            objects.maps.extend(id("map_id:"));
            objects.links.extend(id("link_id:"));
        }
        objects
    }

    /// Returns those that the kernel still has.
    pub(crate) fn left(&self) -> Self {
        let own = |ids: &BTreeSet<u32>, all: &mut dyn Iterator<Item = u32>| {
            all.filter(|id| ids.contains(id)).collect()
        };
        Self {
            programs: own(&self.programs, &mut ProgInfoIter::default().map(|info| info.id)),
            maps: own(&self.maps, &mut MapInfoIter::default().map(|info| info.id)),
            links: own(&self.links, &mut LinkInfoIter::default().map(|info| info.id)),
        }
    }
}
