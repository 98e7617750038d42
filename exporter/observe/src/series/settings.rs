//! Settings of the accounts that an observation has.

use super::groups::GroupLabels;
use super::process_filter::ProcessFilter;
use super::retention::Policy;

/// Which processes have series of their own, how many, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeriesSettings {
    /// The processes that are exported.
    pub processes: ProcessFilter,
    /// Which ended processes are kept.
    pub retention: Policy,
    /// Labels of processes that are exported as one; none for each on its own.
    pub group_by: GroupLabels,
    /// Live processes with series of their own.
    pub live_processes: usize,
    /// Series of a process's calls at the full level, about.
    pub series_per_process: usize,
    /// Culprits, or wakers, with series of their own, per process and metric.
    pub wait_names: usize,
}

impl Default for SeriesSettings {
    fn default() -> Self {
        Self {
            processes: ProcessFilter::default(),
            retention: Policy::default(),
            group_by: GroupLabels::default(),
            live_processes: 192,
            series_per_process: 4_000,
            wait_names: 10,
        }
    }
}
