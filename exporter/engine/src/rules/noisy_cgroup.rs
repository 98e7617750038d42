//! The CPU limit of the victim's own cgroup stopped it: others in the cgroup, or the limit, are to blame.

use gpucause_abi::snapshot::TimeAccount;

use super::share::{best, lost, lost_part};
use super::{Declaration, Rule, Window};
use crate::case::Scene;
use crate::chain::{Cause, Step};
use crate::delta::{NO_CPU, ThreadDelta};
use crate::divide::{Span, at_most};
use crate::effect::{Phases, ratio};
use crate::finding::{Finding, Sentence, name_of};

pub(super) struct NoisyCgroup;

/// Of the time without a CPU, the limit is to blame for no more than it stopped anybody for.
fn claim(span: &Span<'_, '_>, thread: &ThreadDelta, _: Phases) -> TimeAccount {
    at_most(lost_part(thread, &NO_CPU), span.throttled)
}

impl Rule for NoisyCgroup {
    fn declaration(&self) -> Declaration {
        Declaration {
            cause: Cause::NoisyCgroup,
            reads: &[
                "gpucause_dispatcher_seconds_total",
                "gpucause_cgroup_throttled_seconds_total",
            ],
            window: Window::Looks,
            needs: "having no CPU is part of an effect, and the cgroup was throttled meanwhile",
        }
    }

    fn judge(&self, scene: &Scene<'_>, index: usize) -> Option<Finding> {
        let subject = scene.subjects.get(index)?;
        let throttled = subject.throttled;
        if throttled.0 == 0 {
            return None;
        }
        let (cause, offcpu) = (Cause::NoisyCgroup, NO_CPU);
        let share = best(scene, subject, cause, |e| e.offcpu(&offcpu), |_, t| lost(t, &offcpu))?;
        let taken = share.taken(subject, claim);
        let without_cpu = share.taken(subject, |_, thread, _| lost_part(thread, &NO_CPU)).total();
        let part = ratio(taken.total(), without_cpu);
        let (explained, lost_share) = (share.explained * part, share.lost_share * part);
        let rule = scene.settings.rule(cause);
        if explained < rule.explained_share.unwrap_or(scene.settings.explained_share)
            || lost_share < rule.min_lost_share.unwrap_or(scene.settings.severities.low)
        {
            return None;
        }
        let evidence = share
            .evidence()
            .with("explained_share", explained)
            .with("lost_share", lost_share)
            .with("throttled_seconds", throttled.as_secs_f64());
        let (comm, victim) = (subject.now.comm.to_text(), name_of(subject));
        let sentence = "The CPU limit of the cgroup of {comm} stopped it: the cgroup was throttled for \
                        {throttled_seconds|seconds}, which explains {explained_share|percent} of the time that is missing.";
        Some(Finding {
            cause,
            effect: share.effect.effect,
            subject: index,
            tid: Some(share.tid),
            culprit: None,
            explained,
            size: share.effect.excess,
            taken: taken.into(),
            claim: Some((claim, share.effect.phases)),
            lost_share,
            path: vec![
                Step {
                    from: "CPU limit of the cgroup".into(),
                    to: victim.clone(),
                    mechanism: "throttled".into(),
                    seconds: throttled.as_secs_f64(),
                },
                Step {
                    from: victim,
                    to: share.effect.effect.label().into(),
                    mechanism: "off the CPU".into(),
                    seconds: share.time.as_secs_f64(),
                },
            ],
            sentence: Sentence::new(sentence, [("comm", &*comm)]),
            fix: "Raise cpu.max of the cgroup (the CPU limit of the container), or take other work out of it.".into(),
            evidence,
        })
    }
}
