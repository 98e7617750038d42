//! The rules, one per cause. Each is evaluated for one process at a time.

mod allocator_churn;
mod block_io;
mod clock_throttling;
mod cold_start;
mod cpu_limit;
mod cpu_preemption;
mod dataloader_starvation;
mod graph_recapture;
mod hang;
mod implicit_sync;
mod large_copy;
pub(crate) mod lock_wait;
mod memory_leak;
mod nccl_late_rank;
mod oom_kill;
mod page_fault;
mod runqueue_wait;
mod share;
pub(crate) mod unexplained;

use crate::chain::Cause;
use crate::context::Context;
use crate::detection::Detection;

/// Inputs and thresholds of a rule.
#[derive(Debug, Clone, Copy)]
pub struct Declaration {
    /// The cause that it detects.
    pub cause: Cause,
    /// Metrics of the accounts that it reads.
    pub reads: &'static [&'static str],
    /// Conditions for a detection.
    pub needs: &'static str,
}

pub(crate) trait Rule: Sync {
    fn declaration(&self) -> Declaration;
    /// Whether it is evaluated while a process warms up.
    fn during_warm_up(&self) -> bool {
        false
    }
    /// Evaluates the process at this index.
    fn evaluate(&self, context: &Context<'_>, process: usize) -> Option<Detection>;
}

/// Every rule but the fallback.
pub(crate) const RULES: &[&dyn Rule] = &[
    &hang::Hang,
    &cpu_limit::CpuLimit,
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

/// Reports a tail that no rule explains.
pub(crate) const FALLBACK: &dyn Rule = &unexplained::Unexplained;

/// Declarations of all rules.
pub fn declarations() -> impl Iterator<Item = Declaration> {
    RULES.iter().chain([&FALLBACK]).map(|rule| rule.declaration())
}

/// The causes as a Markdown table.
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
