//! Leaves out the processes that the configuration excludes. Their accounts in the kernel go on.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use gpucause_abi::ProcId;
use gpucause_abi::snapshot::ProcessSnapshot;

use crate::process_details::{Details, ProcessDetails};
use crate::series::process_filter::ProcessFilter;
use crate::workers::{Owners, is_worker};

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

    /// The processes that are not exported. Workers are where the process that they work for is, as long as it is known.
    pub fn excluded(
        &mut self,
        processes: &[ProcessSnapshot],
        details: &Details,
    ) -> HashSet<ProcId> {
        if self.filter.admits_all() {
            return HashSet::new();
        }
        let known: HashMap<ProcId, &ProcessSnapshot> =
            processes.iter().map(|process| (process.id, process)).collect();
        self.cache.retain(|id, _| known.contains_key(id));
        let owners = Owners::of(processes);
        let left_out = processes.iter().filter(|process| {
            let owner = owners.get(process.id).and_then(|owner| known.get(&owner));
            !self.admits(owner.unwrap_or(process), details)
        });
        left_out.map(|process| process.id).collect()
    }

    fn admits(&mut self, process: &ProcessSnapshot, details: &Details) -> bool {
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

    /// Removes excluded processes; returns how many of them are alive, without workers.
    pub fn apply(&mut self, processes: &mut Vec<ProcessSnapshot>, details: &Details) -> u64 {
        let excluded = self.excluded(processes, details);
        let left_out = processes.extract_if(.., |process| excluded.contains(&process.id));
        left_out.filter(|process| process.ended.is_none() && !is_worker(process)).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpucause_abi::record::COMM_LEN;
    use gpucause_abi::snapshot::Comm;
    use gpucause_abi::{Nanos, Tgid};

    fn process(id: u32, name: &str) -> ProcessSnapshot {
        let mut comm = [0; COMM_LEN];
        comm[..name.len()].copy_from_slice(name.as_bytes());
        ProcessSnapshot::new(ProcId(id), Tgid(id), Comm(comm))
    }

    fn selection(filter: &str) -> ProcessSelection {
        let mut selection = ProcessSelection::default();
        selection.set_filter(&serde_json::from_str(filter).unwrap());
        selection
    }

    fn names(processes: &[ProcessSnapshot]) -> Vec<String> {
        processes.iter().map(|process| process.comm.to_text()).collect()
    }

    #[test]
    fn excluded_processes_are_counted_while_they_live() {
        let mut selection = selection(r#"{"exclude": [{"comm": "debug.*"}]}"#);
        let ended = ProcessSnapshot { ended: Some(Nanos(1)), ..process(2, "debugger") };
        let mut processes = vec![process(1, "train"), ended, process(3, "debug")];
        assert_eq!(selection.apply(&mut processes, &Details::new()), 1);
        assert_eq!(names(&processes), ["train"]);
    }

    /// A process with CUDA calls, and a worker of it that has a name of its own.
    fn with_worker() -> Vec<ProcessSnapshot> {
        let owner = ProcessSnapshot { dispatches: true, ..process(1, "train") };
        vec![ProcessSnapshot { parent: Some(owner.id), ..process(2, "pt_data_worker") }, owner]
    }

    #[test]
    fn workers_are_exported_with_the_process_that_they_work_for() {
        for (filter, exported, excluded) in [
            (r#"{"include": [{"comm": "train"}]}"#, 2, 0),
            (r#"{"exclude": [{"comm": "pt_data_worker"}]}"#, 2, 0),
            (r#"{"exclude": [{"comm": "train"}]}"#, 0, 1),
            (r#"{"include": [{"comm": "pt_data_worker"}]}"#, 0, 1),
        ] {
            let mut processes = with_worker();
            assert_eq!(
                selection(filter).apply(&mut processes, &Details::new()),
                excluded,
                "{filter}"
            );
            assert_eq!(processes.len(), exported, "{filter}");
        }
    }

    #[test]
    fn a_worker_that_makes_calls_is_matched_by_its_own_name() {
        let mut processes = with_worker();
        processes[0].dispatches = true;
        let mut selection = selection(r#"{"include": [{"comm": "train"}]}"#);
        assert_eq!(selection.apply(&mut processes, &Details::new()), 1);
        assert_eq!(names(&processes), ["train"]);
    }

    #[test]
    fn a_process_is_matched_again_when_its_details_change() {
        let mut selection = selection(r#"{"include": [{"user": "ml"}]}"#);
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
        let mut selection = selection(r#"{"exclude": [{"comm": "train"}]}"#);
        assert_eq!(selection.excluded(&[process(1, "train")], &Details::new()).len(), 1);
        selection.set_filter(&ProcessFilter::default());
        assert!(selection.excluded(&[process(1, "train")], &Details::new()).is_empty());
    }
}
