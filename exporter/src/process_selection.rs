//! Leaves out the processes that the configuration does not want to be told of. Their accounts in the kernel go on.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use gpucause_abi::ProcId;
use gpucause_abi::snapshot::ProcessSnapshot;

use crate::config::ProcessFilter;
use crate::process_details::ProcessDetails;

/// The details of processes.
type Details = HashMap<ProcId, Arc<ProcessDetails>>;

/// A filter, and what it said of processes so far, as long as what it goes by stays the same.
#[derive(Debug, Default)]
pub struct ProcessSelection {
    filter: ProcessFilter,
    told: HashMap<ProcId, (Arc<ProcessDetails>, bool)>,
}

impl ProcessSelection {
    /// Goes by another filter.
    pub fn set_filter(&mut self, filter: &ProcessFilter) {
        if self.filter != *filter {
            self.filter.clone_from(filter);
            self.told.clear();
        }
    }

    /// Whether a process is told of.
    pub fn admits(&mut self, process: &ProcessSnapshot, details: &Details) -> bool {
        if self.filter.admits_all() {
            return true;
        }
        let details = details.get(&process.id).cloned().unwrap_or_default();
        match self.told.get(&process.id) {
            Some((before, admitted)) if Arc::ptr_eq(before, &details) => *admitted,
            _ => {
                let admitted = self.filter.admits(&process.comm.to_text(), &details);
                self.told.insert(process.id, (details, admitted));
                admitted
            }
        }
    }

    /// Leaves out what is not told of; returns how many of that live.
    pub fn apply(&mut self, processes: &mut Vec<ProcessSnapshot>, details: &Details) -> u64 {
        let known: HashSet<ProcId> = processes.iter().map(|process| process.id).collect();
        self.told.retain(|id, _| known.contains(id));
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
    fn what_is_left_out_is_counted_while_it_lives() {
        let mut selection = selection("processes: {exclude: [{comm: debug.*}]}");
        let ended = ProcessSnapshot { ended: Some(Nanos(1)), ..process(2, "debugger") };
        let mut processes = vec![process(1, "train"), ended, process(3, "debug")];
        assert_eq!(selection.apply(&mut processes, &Details::new()), 1);
        assert_eq!(names(&processes), ["train"]);
    }

    #[test]
    fn a_process_is_judged_again_when_more_is_known_of_it() {
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
    fn another_filter_judges_anew() {
        let mut selection = selection("processes: {exclude: [{comm: train}]}");
        assert!(!selection.admits(&process(1, "train"), &Details::new()));
        selection.set_filter(&ProcessFilter::default());
        assert!(selection.admits(&process(1, "train"), &Details::new()));
    }
}
