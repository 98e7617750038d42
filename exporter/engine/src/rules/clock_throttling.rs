//! The GPU runs below its clock, for power or heat. Needs counters of NVML or DCGM; without them it is silent.

use gpucause_abi::state::Phase;

use super::share::MOST;
use super::{Declaration, Rule, Window};
use crate::case::Scene;
use crate::chain::{Cause, Effect, Evidence, Step};
use crate::divide::{at_most, part};
use crate::effect::ratio;
use crate::finding::{Finding, Sentence, name_of};

pub(super) struct ClockThrottling;

impl Rule for ClockThrottling {
    fn declaration(&self) -> Declaration {
        Declaration {
            cause: Cause::ClockThrottling,
            reads: &["gpucause_dispatcher_seconds_total", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"],
            window: Window::Looks,
            needs: "launches dropped, the thread waits for the GPU for most of its time, and every GPU of the host ran below its clock for at least half of it",
        }
    }

    fn judge(&self, scene: &Scene<'_>, index: usize) -> Option<Finding> {
        let subject = scene.subjects.get(index)?;
        let drop = subject.effects.iter().find(|e| e.effect == Effect::LaunchRateDrop)?;
        // Which GPU is the process's is not known: it ran below its clock when all did.
        let (gpu, throttled) =
            scene.throttled.iter().min_by(|a, b| a.1.total_cmp(b.1).then(a.0.cmp(b.0)))?;
        let throttled = throttled.min(1.0);
        let thread = subject.short.victim(|thread| thread.in_phase(Phase::Sync))?;
        let waiting = ratio(thread.in_phase(Phase::Sync), thread.wall);
        let rule = scene.settings.rule(Cause::ClockThrottling);
        let needed = rule.explained_share.unwrap_or(MOST);
        if waiting < needed || throttled < needed {
            return None;
        }
        let evidence = Evidence::default()
            .with("throttled_share", throttled)
            .with("waiting_for_gpu_share", waiting)
            .and(&drop.evidence);
        // No more than the thread waited for the GPU: other causes keep launches from being made, too.
        let waits = part(&thread.time, |phase, _| phase == Phase::Sync);
        let time = drop.excess.min(waits.total());
        let taken = at_most(waits, time);
        let lost_share = ratio(time, thread.wall).min(1.0);
        let (comm, victim) = (subject.now.comm.to_text(), name_of(subject));
        let sentence = "{comm} launches {drop_share|percent} less than usual and waits for the GPU \
                        {waiting_for_gpu_share|percent} of its time, while every GPU of the host ran below its clock for \
                        {throttled_share|percent} of it or more: {gpu} for that long.";
        Some(Finding {
            cause: Cause::ClockThrottling,
            effect: Effect::LaunchRateDrop,
            subject: index,
            tid: Some(thread.tid),
            culprit: None,
            explained: throttled.min(drop.explained_by(time)),
            size: drop.excess,
            taken: taken.into(),
            // What was usual before is not known.
            claim: None,
            lost_share,
            path: vec![Step {
                from: gpu.clone(),
                to: victim,
                mechanism: "runs below its clock".into(),
                seconds: drop.excess.as_secs_f64(),
            }],
            sentence: Sentence::new(sentence, [("comm", &*comm), ("gpu", gpu)]),
            fix: "See nvidia-smi -q -d PERFORMANCE for the reason: cooling, power cap, or a power brake.".into(),
            evidence,
        })
    }
}
