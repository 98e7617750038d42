//! A tail that no cause explains enough of. Saying so keeps people from guessing.

use gpucause_abi::Nanos;
use gpucause_abi::state::Reason;

use super::{Declaration, Rule, Window};
use crate::case::Scene;
use crate::chain::{Cause, Effect, Step};
use crate::effect::{Measured, ratio, total};
use crate::finding::{Finding, name_of};
use crate::tell::tell;

pub(super) struct Unexplained;

impl Rule for Unexplained {
    fn declaration(&self) -> Declaration {
        Declaration {
            cause: Cause::Unexplained,
            reads: &[
                "gpucause_cuda_call_duration_seconds",
                "gpucause_cuda_call_offcpu_seconds_total",
            ],
            window: Window::Looks,
            needs: "a tail of launches of the share of severity low, and no other finding on the process",
        }
    }

    fn judge(&self, scene: &Scene<'_>, index: usize) -> Option<Finding> {
        let subject = scene.subjects.get(index)?;
        // What is rarer than one in a hundred is a tail only when the time off the CPU is known to be its cause.
        let in_a_hundred = |e: &&Measured| e.evidence.get("p99_seconds").is_some();
        let is_tail = |e: &&Measured| e.effect == Effect::LaunchTail && in_a_hundred(e);
        let tail = subject.effects.iter().find(is_tail)?;
        let delta = tail.delta(subject);
        let thread = delta.victim(|thread| thread.in_phase(gpucause_abi::state::Phase::Launch))?;
        // The tail is of all threads that launch.
        let launching = total(delta.feeders().map(|thread| thread.wall));
        let excess_share = ratio(tail.excess, launching).min(1.0);
        let rule = scene.settings.rule(Cause::Unexplained);
        if excess_share < rule.min_lost_share.unwrap_or(scene.settings.severities.low) {
            return None;
        }
        let off = tail.offcpu(Reason::ALL);
        let evidence = tail
            .evidence
            .clone()
            .with("excess_share", excess_share)
            .with("off_cpu_share_of_excess", tail.explained_by(off));
        let (comm, victim) = (subject.now.comm.to_text(), name_of(subject));
        let sentence = "{slow_calls|count} of {calls|count} launches of {comm} were slow, {p99_seconds|seconds} and more in \
                        the slowest hundredth where {p50_seconds|seconds} is usual, and nothing that is measured explains \
                        it: the thread was off the CPU for {off_cpu_share_of_excess|percent} of the excess.";
        Some(Finding {
            cause: Cause::Unexplained,
            effect: Effect::LaunchTail,
            subject: index,
            tid: Some(thread.tid),
            culprit: None,
            explained: 0.0,
            attributed: Nanos(0),
            lost: Nanos(0),
            // That a full queue made launches wait, and so nothing was lost, is as likely.
            lost_share: scene.settings.severities.low,
            path: vec![Step {
                from: victim,
                to: Effect::LaunchTail.label().into(),
                mechanism: "not known".into(),
                seconds: tail.excess.as_secs_f64(),
            }],
            sentence: tell(sentence, &evidence, &[("comm", &comm)]),
            fix: "Take stacks of the slow calls (gpucause record); a full launch queue looks like this too: the GPU is then the bottleneck."
                .into(),
            evidence,
        })
    }
}
