//! The GPU is clock-throttled, by power or heat. Needs counters of NVML or DCGM.

use gpucause_abi::state::Phase;

use super::Rule;
use super::share::MOST;
use crate::chain::{Cause, Effect, Evidence, Step};
use crate::context::Context;
use crate::detection::{Detection, Sentence, name_of};
use crate::times::{at_most, part, ratio};

pub(super) const RULE: Rule = Rule {
    cause: Cause::ClockThrottling,
    reads: &["gpucause_dispatcher_seconds_total", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"],
    needs: "launches dropped, the thread waits for the GPU most of its time, and all GPUs of the host are clock-throttled for at least half of it",
    during_warm_up: false,
    evaluate,
};

fn evaluate(context: &Context<'_>, index: usize) -> Option<Detection> {
    let process = context.processes.get(index)?;
    let drop = process.effects.iter().find(|e| e.effect == Effect::LaunchRateDrop)?;
    // Which GPU the process uses is unknown, so all must be throttled.
    let (gpu, throttled) =
        context.throttled.iter().min_by(|a, b| a.1.total_cmp(b.1).then(a.0.cmp(b.0)))?;
    let throttled = throttled.min(1.0);
    let thread = process.short.victim(|thread| thread.in_phase(Phase::Sync))?;
    let waiting = ratio(thread.in_phase(Phase::Sync), thread.wall);
    let rule = context.settings.rule(Cause::ClockThrottling);
    let needed = rule.explained_share.unwrap_or(MOST);
    if waiting < needed || throttled < needed {
        return None;
    }
    let evidence = Evidence::default()
        .with("throttled_share", throttled)
        .with("waiting_for_gpu_share", waiting)
        .and(&drop.evidence);
    // At most the wait for the GPU: other causes reduce launches, too.
    let waits = part(&thread.time, |phase, _| phase == Phase::Sync);
    let time = drop.excess.min(waits.total());
    let taken = at_most(waits, time);
    let taken_share = ratio(time, thread.wall).min(1.0);
    let (comm, victim) = (process.now.comm.to_text(), name_of(process));
    let sentence = "{comm} launches {drop_share|percent} less than usual and waits for the GPU \
                    {waiting_for_gpu_share|percent} of its time, while all GPUs of the host are clock-throttled for at \
                    least {throttled_share|percent} of it (least: {gpu}).";
    Some(Detection {
        tid: Some(thread.tid),
        explained: throttled.min(drop.explained_by(time)),
        size: drop.excess,
        // Without a claim: the usual state is not kept for earlier windows.
        taken: taken.into(),
        taken_share,
        path: vec![Step::new(gpu, victim, "clock-throttled", drop.excess)],
        sentence: Sentence::new(sentence, [("comm", &*comm), ("gpu", gpu)]),
        fix:
            "Find the reason with nvidia-smi -q -d PERFORMANCE: cooling, power cap or power brake."
                .into(),
        ..Detection::new(Cause::ClockThrottling, Effect::LaunchRateDrop, index, evidence)
    })
}
