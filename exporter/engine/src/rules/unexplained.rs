//! The part of a tail that no cause explains. Saying so keeps people from guessing.

use gpucause_abi::Nanos;
use gpucause_abi::state::{Phase, Reason};

use super::{Declaration, Rule, Window};
use crate::case::Scene;
use crate::chain::{Cause, Chain, Effect, Step};
use crate::divide::explained;
use crate::effect::{Measured, ratio, total};
use crate::finding::{Finding, Sentence, name_of};

pub(super) struct Unexplained;

/// The share of a tail that must be left: by the width of slots the size of a tail is known to no more than that.
const LEAST: f64 = 0.1;

impl Rule for Unexplained {
    fn declaration(&self) -> Declaration {
        Declaration {
            cause: Cause::Unexplained,
            reads: &[
                "gpucause_cuda_call_duration_seconds",
                "gpucause_cuda_call_offcpu_seconds_total",
            ],
            window: Window::Looks,
            needs: "a tail of launches of the share of severity low, that no other cause explains",
        }
    }

    fn judge(&self, scene: &Scene<'_>, index: usize) -> Option<Finding> {
        rest(scene, index, &[])
    }
}

/// What the causes that were found leave of a tail, if that is worth saying.
pub(crate) fn rest(scene: &Scene<'_>, index: usize, found: &[Finding]) -> Option<Finding> {
    let subject = scene.subjects.get(index)?;
    // What is rarer than one in a hundred is a tail only when the time off the CPU is known to be its cause.
    let in_a_hundred = |e: &&Measured| e.evidence.get("p99_seconds").is_some();
    let is_tail = |e: &&Measured| e.effect == Effect::LaunchTail && in_a_hundred(e);
    let tail = subject.effects.iter().find(is_tail)?;
    let delta = tail.delta(subject);
    let thread = delta.victim(|thread| thread.in_phase(Phase::Launch))?;
    // The tail is of all threads that launch.
    let launching = total(delta.feeders().map(|thread| thread.wall));
    let unexplained = 1.0 - explained(found, tail.effect, tail.excess);
    let excess_share = ratio(tail.excess, launching).min(1.0) * unexplained;
    let rule = scene.settings.rule(Cause::Unexplained);
    if excess_share < rule.min_lost_share.unwrap_or(scene.settings.severities.low)
        || unexplained < LEAST
    {
        return None;
    }
    let off = tail.offcpu(Reason::ALL);
    let evidence = tail
        .evidence
        .clone()
        .with("excess_share", excess_share)
        .with(Chain::UNEXPLAINED, unexplained)
        .with("off_cpu_share_of_excess", tail.explained_by(off));
    let (comm, victim) = (subject.now.comm.to_text(), name_of(subject));
    let sentence = "{slow_calls|count} of {calls|count} launches of {comm} were slow, {p99_seconds|seconds} and more in \
                        the slowest hundredth where {p50_seconds|seconds} is usual, and nothing that is measured explains \
                        {unexplained_share|percent} of it: the thread was off the CPU for {off_cpu_share_of_excess|percent} of the excess.";
    Some(Finding {
            cause: Cause::Unexplained,
            effect: Effect::LaunchTail,
            subject: index,
            tid: Some(thread.tid),
            culprit: None,
            explained: 0.0,
            size: Nanos(0),
            taken: Box::default(),
            claim: None,
            // That a full queue made launches wait, and so nothing was lost, is as likely.
            lost_share: scene.settings.severities.low,
            path: vec![Step {
                from: victim,
                to: Effect::LaunchTail.label().into(),
                mechanism: "not known".into(),
                seconds: tail.excess.as_secs_f64(),
            }],
            sentence: Sentence::new(sentence, [("comm", &*comm)]),
            fix: "Take stacks of the slow calls (gpucause record); a full launch queue looks like this too: the GPU is then the bottleneck."
                .into(),
            evidence,
        })
}
