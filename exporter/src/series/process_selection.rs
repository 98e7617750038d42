//! Leaves out the processes that the configuration excludes. Their accounts in the kernel go on.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use gpucause_abi::ProcId;
use gpucause_abi::snapshot::ProcessSnapshot;

use crate::config::ProcessFilter;
use crate::process_details::ProcessDetails;

/// The details of processes.
type Details = HashMap<ProcId, Arc<ProcessDetails>>;

/// A filter, and a cache of its results, each valid while the details of the process are unchanged.
#[derive(Debug, Default)]
pub struct ProcessSelection {
    filter: ProcessFilter,
    cache: HashMap<ProcId, (Arc<ProcessDetails>, bool)>,
}

impl ProcessSelection {
    /// Replaces the filter.
    pub fn set_filter(&mut self, filter: &ProcessFilter) {
        if self.filter != *filter {
            self.filter.clone_from(filter);
            self.cache.clear();
        }
    }

    /// Whether a process is exported.
    pub fn admits(&mut self, process: &ProcessSnapshot, details: &Details) -> bool {
        if self.filter.admits_all() {
            return true;
        }
        let details = details.get(&process.id).cloned().unwrap_or_default();
        match self.cache.get(&process.id) {
            Some((cached, admitted)) if Arc::ptr_eq(cached, &details) => *admitted,
            _ => {
                let admitted = self.filter.admits(&process.comm.to_text(), &details);
                self.cache.insert(process.id, (details, admitted));
                admitted
            }
        }
    }

    /// Removes excluded processes; returns how many of them are alive.
    pub fn apply(&mut self, processes: &mut Vec<ProcessSnapshot>, details: &Details) -> u64 {
        let known: HashSet<ProcId> = processes.iter().map(|process| process.id).collect();
        self.cache.retain(|id, _| known.contains(id));
        let left_out = processes.extract_if(.., |process| !self.admits(process, details));
        left_out.filter(|process| process.ended.is_none()).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use gpucause_abi::record::COMM_LEN;
    use gpucause_abi::snapshot::Comm;
    use gpucause_abi::{Nanos, Tgid};

    fn process(id: u32, name: &str) -> ProcessSnapshot {
        let mut comm = [0; COMM_LEN];
        comm[..name.len()].copy_from_slice(name.as_bytes());
        ProcessSnapshot::new(ProcId(id), Tgid(id), Comm(comm))
    }

    fn selection(yaml: &str) -> ProcessSelection {
        let mut selection = ProcessSelection::default();
        selection.set_filter(&Config::parse(yaml).unwrap().processes);
        selection
    }

    fn names(processes: &[ProcessSnapshot]) -> Vec<String> {
        processes.iter().map(|process| process.comm.to_text()).collect()
    }

    #[test]
    fn excluded_processes_are_counted_while_they_live() {
        let mut selection = selection("processes: {exclude: [{comm: debug.*}]}");
        let ended = ProcessSnapshot { ended: Some(Nanos(1)), ..process(2, "debugger") };
        let mut processes = vec![process(1, "train"), ended, process(3, "debug")];
        assert_eq!(selection.apply(&mut processes, &Details::new()), 1);
        assert_eq!(names(&processes), ["train"]);
    }

    #[test]
    fn a_process_is_matched_again_when_its_details_change() {
        let mut selection = selection("processes: {include: [{user: ml}]}");
        let of = |user: &str| {
            let details = ProcessDetails { user: user.into(), ..ProcessDetails::default() };
            Details::from([(ProcId(1), Arc::new(details))])
        };
        let mut processes = vec![process(1, "train")];
        assert_eq!(selection.apply(&mut processes, &of("")), 1);
        let mut processes = vec![process(1, "train")];
        assert_eq!(selection.apply(&mut processes, &of("ml")), 0);
        assert_eq!(names(&processes), ["train"]);
    }

    #[test]
    fn another_filter_matches_again() {
        let mut selection = selection("processes: {exclude: [{comm: train}]}");
        assert!(!selection.admits(&process(1, "train"), &Details::new()));
        selection.set_filter(&ProcessFilter::default());
        assert!(selection.admits(&process(1, "train"), &Details::new()));
    }
}
