//! The part of a tail that no cause explains, reported as unexplained.

use gpucause_abi::state::{Phase, Reason};

use super::Rule;
use super::share::{CAUSES, MOST};
use crate::chain::{Cause, Chain, Effect, Step};
use crate::context::Context;
use crate::detection::{Detection, Sentence, name_of};
use crate::divide::explained;
use crate::effect::{Measured, ratio, total};

/// Least unexplained share of a tail: the width of histogram slots limits the accuracy of its size.
const MIN_SHARE: f64 = 0.1;

pub(super) const RULE: Rule = Rule {
    cause: Cause::Unexplained,
    reads: &["gpucause_cuda_call_duration_seconds", "gpucause_cuda_call_offcpu_seconds_total"],
    needs: "a tail of launches of severity low that no other cause explains",
    during_warm_up: false,
    evaluate,
};

/// What to do where launches were off the CPU for something else than the GPU: no full launch queue does that.
const WAITS: &str =
    "Record stacks of the slow calls (gpucause record): they show what the launches waited for.";
const RUNS: &str = "Record stacks of the slow calls (gpucause record); a full launch queue looks the same: the GPU is then the bottleneck.";

fn evaluate(context: &Context<'_>, index: usize) -> Option<Detection> {
    rest(context, index, &[])
}

/// The part of a tail that the other detections do not explain.
pub(crate) fn rest(context: &Context<'_>, index: usize, found: &[Detection]) -> Option<Detection> {
    let process = context.processes.get(index)?;
    // Rarer slow calls are a tail only if off-CPU time explains them.
    let in_a_hundred = |e: &&Measured| e.evidence.get("p99_seconds").is_some();
    let is_tail = |e: &&Measured| e.effect == Effect::LaunchTail && in_a_hundred(e);
    let tail = process.effects.iter().find(is_tail)?;
    let delta = tail.delta(process);
    let thread = delta.victim(|thread| thread.in_phase(Phase::Launch))?;
    // The tail is measured over all threads that launch.
    let launching = total(delta.feeders().map(|thread| thread.wall));
    // The thread may be off the CPU in launches for a cause that is charged to slow copies.
    let caused = tail.offcpu(&CAUSES);
    let explained = explained(found, tail.effect, tail.excess).max(tail.explained_by(caused));
    let unexplained = 1.0 - explained;
    let excess_share = ratio(tail.excess, launching).min(1.0) * unexplained;
    let rule = context.settings.rule(Cause::Unexplained);
    if excess_share < rule.min_lost_share.unwrap_or(context.settings.severities.low)
        || unexplained < MIN_SHARE
    {
        return None;
    }
    let off = tail.offcpu(Reason::ALL);
    let not_for_gpu = off.less(caused).less(tail.offcpu(&[Reason::GpuDriver]));
    let waited = tail.explained_by(not_for_gpu) >= MOST * unexplained;
    let evidence = tail
        .evidence
        .clone()
        .with("excess_share", excess_share)
        .with(Chain::UNEXPLAINED, unexplained)
        .with("off_cpu_share_of_excess", tail.explained_by(off));
    let (comm, victim) = (process.now.comm.to_text(), name_of(process));
    let sentence = "{slow_calls|count} of {calls|count} launches of {comm} were slow (p50 {p50_seconds|seconds}, p99 \
                        {p99_seconds|seconds}). For {unexplained_share|percent} of their excess time there is no measured cause; \
                        the thread was off the CPU for {off_cpu_share_of_excess|percent} of the excess time.";
    Some(Detection {
        tid: Some(thread.tid),
        explained: 0.0,
        // Launches may as well have waited for a full queue, which loses nothing.
        taken_share: context.settings.severities.low,
        path: vec![Step::new(victim, Effect::LaunchTail.label(), "unknown", tail.excess)],
        sentence: Sentence::new(sentence, [("comm", &*comm)]),
        fix: if waited { WAITS } else { RUNS }.into(),
        ..Detection::new(Cause::Unexplained, Effect::LaunchTail, index, evidence)
    })
}
