//! The CPU limit of the victim's own cgroup throttled it.

use gpucause_abi::snapshot::TimeAccount;

use super::Rule;
use super::share::{best, lost, lost_part};
use crate::chain::{Cause, Step};
use crate::claim::Span;
use crate::context::Context;
use crate::delta::{NO_CPU, ThreadDelta};
use crate::detection::{Detection, Sentence, name_of};
use crate::phases::Phases;
use crate::times::{at_most, ratio};

/// Time without a CPU, at most the throttled time.
fn claim(span: &Span<'_, '_>, thread: &ThreadDelta, _: Phases) -> TimeAccount {
    at_most(lost_part(thread, &NO_CPU), span.throttled)
}

pub(super) const RULE: Rule = Rule {
    cause: Cause::NoisyCgroup,
    reads: &["gpucause_dispatcher_seconds_total", "gpucause_cgroup_throttled_seconds_total"],
    needs: "time without a CPU is part of an effect, and the cgroup was throttled in it",
    during_warm_up: false,
    evaluate,
};

fn evaluate(context: &Context<'_>, index: usize) -> Option<Detection> {
    let process = context.processes.get(index)?;
    let throttled = process.throttled;
    if throttled.0 == 0 {
        return None;
    }
    let (cause, offcpu) = (Cause::NoisyCgroup, NO_CPU);
    let share = best(context, process, cause, |e| e.offcpu(&offcpu), |_, t| lost(t, &offcpu))?;
    let taken = share.taken(process, claim);
    let without_cpu = share.taken(process, |_, thread, _| lost_part(thread, &NO_CPU)).total();
    let part = ratio(taken.total(), without_cpu);
    let (explained, taken_share) = (share.explained * part, share.taken_share * part);
    let rule = context.settings.rule(cause);
    if explained < rule.explained_share.unwrap_or(context.settings.explained_share)
        || taken_share < rule.min_lost_share.unwrap_or(context.settings.severities.low)
    {
        return None;
    }
    let evidence = share
        .evidence()
        .with("explained_share", explained)
        .with("taken_share", taken_share)
        .with("throttled_seconds", throttled.as_secs_f64());
    let (comm, victim) = (process.now.comm.to_text(), name_of(process));
    let sentence = "The CPU limit of its cgroup took {taken_share|percent} of the last {window_seconds|seconds} of \
                    {comm} and explains {explained_share|percent} of its {effect}. The cgroup was throttled for \
                    {throttled_seconds|seconds}.";
    Some(Detection {
        explained,
        taken: taken.into(),
        taken_share,
        path: vec![
            Step::new("CPU limit of the cgroup", &victim, "throttled", throttled),
            Step::new(
                victim,
                share.effect.effect.label(),
                share.mechanism("off the CPU"),
                share.time,
            ),
        ],
        sentence: Sentence::new(sentence, [("comm", &*comm)]),
        fix: "Raise cpu.max of the cgroup (the CPU limit of the container), or move other work out of it.".into(),
        ..share.detection(cause, (index, process), claim, evidence)
    })
}
