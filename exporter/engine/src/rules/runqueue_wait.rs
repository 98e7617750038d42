//! The victim was runnable after a wake-up and waited for a CPU.

use super::cpu_preemption::{detection, is_little, was_queued, without_cpu};
use super::{Rule, own_threads};
use crate::chain::Cause;
use crate::context::Context;
use crate::detection::Detection;

pub(super) const RULE: Rule = Rule {
    cause: Cause::RunqueueWait,
    reads: &[
        "gpucause_cuda_call_offcpu_seconds_total",
        "gpucause_dispatcher_seconds_total",
        "gpucause_preempted_by_seconds_total",
    ],
    needs: "time preempted or in the run queue is part of an effect, and it was mostly in the run queue and for others than the program itself; below 5 % of the time only where a task outside of the program had half of it",
    during_warm_up: false,
    evaluate,
};

fn evaluate(context: &Context<'_>, index: usize) -> Option<Detection> {
    let process = context.processes.get(index)?;
    let share = without_cpu(context, process, Cause::RunqueueWait)?;
    let is_own = || own_threads::share_of(context, process, &share).is_some();
    (was_queued(process, &share) && !is_little(context, process, &share) && !is_own())
        .then(|| detection(Cause::RunqueueWait, context, index, &share))
}
