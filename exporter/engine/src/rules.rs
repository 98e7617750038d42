//! The rules, one per cause. Each is evaluated for one process at a time.

mod allocator_churn;
mod block_io;
mod clock_throttling;
mod cold_start;
mod cpu_limit;
pub(crate) mod cpu_preemption;
pub(crate) mod dataloader_starvation;
mod graph_recapture;
mod hang;
mod host_code;
mod implicit_sync;
mod kernel_lock;
mod large_copy;
pub(crate) mod lock_wait;
mod memory_leak;
mod nccl_late_rank;
mod oom_kill;
pub(crate) mod own_threads;
mod page_fault;
mod process_wait;
mod runqueue_wait;
mod share;
pub(crate) mod unexplained;

use crate::chain::Cause;
use crate::context::{Context, Process};
use crate::detection::Detection;

/// A rule: what it detects, its inputs and thresholds.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// The cause that it detects.
    pub cause: Cause,
    /// Metrics of the accounts that it reads.
    pub reads: &'static [&'static str],
    /// Conditions for a detection.
    pub needs: &'static str,
    /// True if it is evaluated while a process warms up.
    during_warm_up: bool,
    /// Evaluates the process at an index.
    pub(crate) evaluate: fn(&Context<'_>, usize) -> Option<Detection>,
}

impl Rule {
    pub(crate) fn applies(&self, context: &Context<'_>, process: &Process<'_>) -> bool {
        let is_due = process.warmed_up || self.during_warm_up;
        is_due && context.settings.rule(self.cause).enabled
    }
}

/// Every rule but the fallback.
pub(crate) const RULES: &[Rule] = &[
    hang::RULE,
    cpu_limit::RULE,
    cpu_preemption::RULE,
    runqueue_wait::RULE,
    dataloader_starvation::RULE,
    lock_wait::RULE,
    kernel_lock::RULE,
    block_io::RULE,
    page_fault::RULE,
    process_wait::RULE,
    implicit_sync::RULE,
    host_code::RULE,
    allocator_churn::RULE,
    memory_leak::RULE,
    graph_recapture::RULE,
    nccl_late_rank::RULE,
    clock_throttling::RULE,
    oom_kill::RULE,
    cold_start::RULE,
    large_copy::RULE,
];

/// Reports a tail that no rule explains.
pub(crate) const FALLBACK: Rule = unexplained::RULE;

/// All rules.
pub fn rules() -> impl Iterator<Item = Rule> {
    RULES.iter().copied().chain([FALLBACK])
}

/// The causes as a Markdown table.
pub fn markdown() -> String {
    let mut page = String::from("| cause | named when | read from |\n|---|---|---|\n");
    let mut rules: Vec<_> = rules().collect();
    rules.sort_by_key(|rule| rule.cause);
    for rule in rules {
        let reads: Vec<_> = rule.reads.iter().map(|name| format!("`{name}`")).collect();
        page += &format!("| `{}` | {} | {} |\n", rule.cause, rule.needs, reads.join(", "));
    }
    page
}
