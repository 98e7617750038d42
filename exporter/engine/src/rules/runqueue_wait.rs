//! The victim was woken and waited for a CPU.

use super::cpu_preemption::{finding, was_queued, without_cpu};
use super::{Declaration, Rule, Window};
use crate::case::Scene;
use crate::chain::Cause;
use crate::finding::Finding;

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
            window: Window::Looks,
            needs: "time preempted or queued behind others, most of it queued, is part of an effect",
        }
    }

    fn judge(&self, scene: &Scene<'_>, index: usize) -> Option<Finding> {
        let subject = scene.subjects.get(index)?;
        let share = without_cpu(scene, subject, Cause::RunqueueWait)?;
        was_queued(subject, &share).then(|| finding(Cause::RunqueueWait, scene, index, &share))
    }
}
