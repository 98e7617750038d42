//! The victim was runnable after a wake-up and waited for a CPU.

use super::cpu_preemption::{detection, was_queued, without_cpu};
use super::{Declaration, Rule};
use crate::chain::Cause;
use crate::context::Context;
use crate::detection::Detection;

pub(super) struct RunqueueWait;

impl Rule for RunqueueWait {
    fn declaration(&self) -> Declaration {
        Declaration {
            cause: Cause::RunqueueWait,
            reads: &[
                "gpucause_cuda_call_offcpu_seconds_total",
                "gpucause_dispatcher_seconds_total",
                "gpucause_preempted_by_seconds_total",
            ],
            needs: "time preempted or in the run queue, mostly in the run queue, is part of an effect",
        }
    }

    fn evaluate(&self, context: &Context<'_>, index: usize) -> Option<Detection> {
        let process = context.processes.get(index)?;
        let share = without_cpu(context, process, Cause::RunqueueWait)?;
        was_queued(process, &share).then(|| detection(Cause::RunqueueWait, context, index, &share))
    }
}
