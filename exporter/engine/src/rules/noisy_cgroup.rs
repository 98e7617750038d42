//! The CPU limit of the victim's own cgroup stopped it: others in the cgroup, or the limit, are to blame.

use gpucause_abi::Nanos;

use super::share::{best, lost};
use super::{Declaration, Rule, Window};
use crate::case::Scene;
use crate::chain::{Cause, Step};
use crate::delta::NO_CPU;
use crate::effect::ratio;
use crate::finding::{Finding, name_of};
use crate::tell::tell;

pub(super) struct NoisyCgroup;

impl Rule for NoisyCgroup {
    fn declaration(&self) -> Declaration {
        Declaration {
            cause: Cause::NoisyCgroup,
            reads: &[
                "gpucause_dispatcher_seconds_total",
                "gpucause_cgroup_throttled_seconds_total",
            ],
            window: Window::Looks,
            needs: "having no CPU explains the effect, and the cgroup was throttled for at least half of that time",
        }
    }

    fn judge(&self, scene: &Scene<'_>, index: usize) -> Option<Finding> {
        let subject = scene.subjects.get(index)?;
        let throttled = Nanos(*scene.cgroup_throttled.get(&subject.now.id)?);
        let (cause, offcpu) = (Cause::NoisyCgroup, NO_CPU);
        let share = best(scene, subject, cause, |e| e.offcpu(&offcpu), |_, t| lost(t, &offcpu))?;
        if throttled.0 == 0 || throttled.0.saturating_mul(2) < share.attributed.0 {
            return None;
        }
        // Of the time without a CPU, the limit is to blame for no more than it stopped anybody for.
        let part =
            if throttled < share.attributed { ratio(throttled, share.attributed) } else { 1.0 };
        let explained = share.explained * part;
        let needed = scene.settings.rule(cause).explained_share;
        if explained < needed.unwrap_or(scene.settings.explained_share) {
            return None;
        }
        let lost_share = share.lost_share * part;
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
            attributed: share.attributed.min(throttled),
            lost: share.attributed.min(throttled),
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
            sentence: tell(sentence, &evidence, &[("comm", &comm)]),
            fix: "Raise cpu.max of the cgroup (the CPU limit of the container), or take other work out of it.".into(),
            evidence,
        })
    }
}
