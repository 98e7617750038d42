//! The rules, one a cause. Each looks at one process at a time and says what it found, with the numbers.

mod allocator_churn;
mod block_io;
mod clock_throttling;
mod cold_start;
mod cpu_preemption;
mod dataloader_starvation;
mod graph_recapture;
mod hang;
mod implicit_sync;
mod large_copy;
pub(crate) mod lock_wait;
mod memory_leak;
mod nccl_late_rank;
mod noisy_cgroup;
mod oom_kill;
mod page_fault;
mod runqueue_wait;
mod share;
pub(crate) mod unexplained;

use crate::case::Scene;
use crate::chain::Cause;
use crate::finding::Finding;

/// The stretch of time that a rule looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// Between the last two looks; between the last ones when there were too few calls.
    Looks,
    /// As long as the settings say.
    Configured,
    /// This moment.
    Now,
}

/// What a rule reads and what it needs to see.
#[derive(Debug, Clone, Copy)]
pub struct Declaration {
    /// What it names.
    pub cause: Cause,
    /// The accounts that it reads, by metric.
    pub reads: &'static [&'static str],
    /// Over which time.
    pub window: Window,
    /// From what size on the effect counts, and what the cause must explain of it.
    pub needs: &'static str,
}

/// A rule.
pub(crate) trait Rule: Sync {
    /// What it reads and needs.
    fn declaration(&self) -> Declaration;
    /// Whether it is asked while a process warms up.
    fn at_start(&self) -> bool {
        false
    }
    /// What it finds wrong with the subject at this position, if anything.
    fn judge(&self, scene: &Scene<'_>, subject: usize) -> Option<Finding>;
}

/// Every rule but the last resort. Those for what a thread is blocked by in one call are asked first.
pub(crate) const RULES: &[&dyn Rule] = &[
    &hang::Hang,
    &noisy_cgroup::NoisyCgroup,
    &cpu_preemption::CpuPreemption,
    &runqueue_wait::RunqueueWait,
    &dataloader_starvation::DataloaderStarvation,
    &lock_wait::LockWait,
    &block_io::BlockIo,
    &page_fault::PageFault,
    &implicit_sync::ImplicitSync,
    &allocator_churn::AllocatorChurn,
    &memory_leak::MemoryLeak,
    &graph_recapture::GraphRecapture,
    &nccl_late_rank::NcclLateRank,
    &clock_throttling::ClockThrottling,
    &oom_kill::OomKill,
    &cold_start::ColdStart,
    &large_copy::LargeCopy,
];

/// Says of a tail that no rule explains it.
pub(crate) const LAST_RESORT: &dyn Rule = &unexplained::Unexplained;

/// What every rule reads and needs.
pub fn declarations() -> impl Iterator<Item = Declaration> {
    RULES.iter().chain([&LAST_RESORT]).map(|rule| rule.declaration())
}

/// The causes as a Markdown table, for the README.
#[must_use]
pub fn markdown() -> String {
    let mut page = String::from("| cause | named when | read from |\n|---|---|---|\n");
    let mut rules: Vec<_> = declarations().collect();
    rules.sort_by_key(|rule| rule.cause);
    for rule in rules {
        let reads: Vec<_> = rule.reads.iter().map(|name| format!("`{name}`")).collect();
        page += &format!("| `{}` | {} | {} |\n", rule.cause, rule.needs, reads.join(", "));
    }
    page
}
