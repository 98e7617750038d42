//! Another task had the CPU while the victim could have run, and took it from it.

use gpucause_abi::snapshot::Wait;
use gpucause_abi::state::Reason;

use super::share::{Share, best, lost};
use super::{Declaration, Rule, Window};
use crate::case::{Scene, Subject};
use crate::chain::{Cause, Effect, Step};
use crate::delta::NO_CPU;
use crate::effect::{ratio, total};
use crate::finding::{Finding, culprit_of, name_of};
use crate::tell::tell;

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
            needs: "time preempted or queued behind others, most of it preempted, explains the effect",
        }
    }

    fn judge(&self, scene: &Scene<'_>, index: usize) -> Option<Finding> {
        let subject = scene.subjects.get(index)?;
        let share = without_cpu(scene, subject, Cause::CpuPreemption)?;
        let preempted = share.effect.offcpu(&[Reason::Preempted]);
        if preempted < share.time.less(preempted) {
            return None;
        }
        Some(finding(Cause::CpuPreemption, scene, index, &share))
    }
}

/// The effect that having no CPU explains, unless the CPU was withheld by a limit.
pub(super) fn without_cpu<'a>(
    scene: &Scene<'_>,
    subject: &'a Subject<'_>,
    cause: Cause,
) -> Option<Share<'a>> {
    let share = best(scene, subject, cause, |e| e.offcpu(&NO_CPU), |_, t| lost(t, &NO_CPU))?;
    let throttled = scene.cgroup_throttled.get(&subject.now.id).copied().unwrap_or(0);
    (throttled.saturating_mul(2) < share.attributed.0 || throttled == 0).then_some(share)
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
    let mut names = vec![("culprit", &*name), ("comm", &*comm), ("what", what), ("calls", calls)];
    names.extend(worst.map(|_| ("first", &*name)));
    let from = named.map_or_else(|| "other tasks".to_owned(), |wait| wait.on.to_text());
    Finding {
        cause,
        effect: share.effect.effect,
        subject: index,
        tid: Some(share.tid),
        culprit: named.and_then(culprit_of),
        explained: share.explained,
        attributed: share.attributed,
        lost: share.attributed,
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
        sentence: tell(sentence, &evidence, &names),
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
