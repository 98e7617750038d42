//! Another task had the CPU while the victim could have run, and took it from it.

use gpucause_abi::snapshot::{TimeAccount, Wait};
use gpucause_abi::state::Reason;

use super::share::{Share, best, lost, lost_part};
use super::{Declaration, Rule, Window};
use crate::case::{Scene, Subject};
use crate::chain::{Cause, Effect, Step};
use crate::delta::{NO_CPU, ThreadDelta};
use crate::divide::Span;
use crate::effect::{Phases, ratio, total};
use crate::finding::{Finding, Sentence, culprit_of, name_of};

pub(super) struct CpuPreemption;

impl Rule for CpuPreemption {
    fn declaration(&self) -> Declaration {
        Declaration {
            cause: Cause::CpuPreemption,
            reads: &[
                "gpucause_cuda_call_offcpu_seconds_total",
                "gpucause_dispatcher_seconds_total",
                "gpucause_preempted_by_seconds_total",
            ],
            window: Window::Looks,
            needs: "time preempted or queued behind others, most of it preempted, is part of an effect",
        }
    }

    fn judge(&self, scene: &Scene<'_>, index: usize) -> Option<Finding> {
        let subject = scene.subjects.get(index)?;
        let share = without_cpu(scene, subject, Cause::CpuPreemption)?;
        (!was_queued(subject, &share)).then(|| finding(Cause::CpuPreemption, scene, index, &share))
    }
}

/// Whether the thread was kept waiting for a CPU for longer than it was preempted. One look is too short to tell: a slice of the
/// scheduler more or less would make it another cause.
pub(super) fn was_queued(subject: &Subject<'_>, share: &Share<'_>) -> bool {
    let thread = subject.long.thread(share.tid);
    let time = |reason| thread.map(|thread| lost(&thread, &[reason]));
    time(Reason::Runqueue) > time(Reason::Preempted)
}

/// What a thread lost by having no CPU.
pub(super) fn claim(_: &Span<'_, '_>, thread: &ThreadDelta, _: Phases) -> TimeAccount {
    lost_part(thread, &NO_CPU)
}

/// The effect that having no CPU explains best.
pub(super) fn without_cpu<'a>(
    scene: &Scene<'_>,
    subject: &'a Subject<'_>,
    cause: Cause,
) -> Option<Share<'a>> {
    best(scene, subject, cause, |e| e.offcpu(&NO_CPU), |_, t| lost(t, &NO_CPU))
}

pub(super) fn finding(cause: Cause, scene: &Scene<'_>, index: usize, share: &Share<'_>) -> Finding {
    let subject = &scene.subjects[index];
    let waits = subject.waits_of(share.tid, share.effect, &NO_CPU);
    let all = total(waits.iter().map(|wait| wait.total));
    let worst = waits.iter().find(|wait| wait.tgid.is_some());
    let culprit_share = worst.map_or(0.0, |wait| ratio(wait.total, all));
    let (comm, victim) = (subject.now.comm.to_text(), name_of(subject));
    let name = worst.map(|wait| wait.on.to_text()).unwrap_or_default();
    let evidence = share
        .evidence()
        .with("culprit_share", culprit_share)
        .with("culprit_seconds", worst.map_or(0.0, |wait| wait.total.as_secs_f64()));
    let named = worst.filter(|_| culprit_share >= 0.5);
    let what = if cause == Cause::CpuPreemption { "preempted" } else { "kept waiting for a CPU" };
    let calls = match share.effect.effect {
        Effect::CopyTail => "Copies",
        Effect::AllocTail => "Allocations",
        _ => "Launches",
    };
    let sentence = if named.is_some() {
        "{culprit} had the CPU for {culprit_seconds|seconds} in which {comm} could have run: it was {what} for \
         {explained_share|percent} of the time that is missing, and lost {lost_share|percent} of its time.\
         [ {calls} take {p50_seconds|seconds} as a rule and {p99_seconds|seconds} in the slowest hundredth.]"
    } else {
        "{comm} was {what} by many tasks[ ({first} had the CPU for {culprit_share|percent} of that)], for \
         {explained_share|percent} of the time that is missing, and lost \
         {lost_share|percent} of its time."
    };
    let names = [("culprit", &*name), ("comm", &*comm), ("what", what), ("calls", calls)];
    let sentence = Sentence::new(sentence, names).and("first", worst.map(|_| &*name));
    let from = named.map_or_else(|| "other tasks".to_owned(), |wait| wait.on.to_text());
    Finding {
        cause,
        effect: share.effect.effect,
        subject: index,
        tid: Some(share.tid),
        culprit: named.and_then(culprit_of),
        explained: share.explained,
        size: share.effect.excess,
        taken: share.taken(subject, claim).into(),
        claim: Some((claim, share.effect.phases)),
        lost_share: share.lost_share,
        path: vec![
            Step {
                from,
                to: victim.clone(),
                mechanism: what.into(),
                seconds: named.map_or(share.time, |wait| wait.total).as_secs_f64(),
            },
            Step {
                from: victim,
                to: share.effect.effect.label().into(),
                mechanism: "off the CPU".into(),
                seconds: share.time.as_secs_f64(),
            },
        ],
        sentence,
        fix: fix(named, &name, &comm),
        evidence,
    }
}

fn fix(named: Option<&Wait>, culprit: &str, comm: &str) -> String {
    match named {
        Some(_) => format!(
            "Keep {culprit} off the CPUs of {comm}: give it a CPU set or a lower CPUWeight, or pin the feeding thread to CPUs of its own."
        ),
        None => format!(
            "The CPUs of {comm} are oversubscribed: run fewer tasks on them, or pin the feeding thread to CPUs of its own."
        ),
    }
}
