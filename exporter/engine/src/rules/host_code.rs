//! The program's own code computes between launches, and the thread never waits for the GPU, which is out of work meanwhile.
//!
//! A loop whose launches alone keep the thread busy is limited by its framework: that is worth knowing, and no more. One that computes in
//! long pauses, such as a data set that is read in the training process, leaves the GPU idle. Neither need be a fault of the host, so
//! only a process that launched more before has a higher severity.

use gpucause_abi::state::State;

use super::Rule;
use crate::chain::{Cause, Effect, Evidence, Severity};
use crate::computing::{Computing, claim};
use crate::context::{Context, Measured, Process};
use crate::delta::Delta;
use crate::detection::{Detection, SelfInflicted};
use crate::effect::{LAUNCH_SLOWDOWN, USUAL_LAUNCHES};
use crate::phases::Phases;
use crate::times::{ratio, total};

/// The last five windows, as bits. The cause must hold in `MIN_WINDOWS` of them: a program that computes once, as for an evaluation, is healthy.
const WINDOWS: u8 = 0b1_1111;
const MIN_WINDOWS: u32 = 3;

pub(super) const RULE: Rule = Rule {
    cause: Cause::HostCode,
    reads: &[
        "gpucause_dispatcher_seconds_total",
        "gpucause_cuda_call_duration_seconds",
        "gpucause_launch_gap_seconds",
        "gpucause_memcpy_duration_seconds",
    ],
    needs: "in three of five windows with launches (one in which no call is observed counts like the one before), the threads that launch compute for half of the time, wait for the GPU for less than \
            5 % of it and for nothing else for 10 %: in synchronisation, allocation and collectives, in copies from the device beyond what \
            copying takes, in launches beyond 10 us (graphs: 500 us); severity low, with 10 % of the time in pauses between launches of \
            1 ms and more medium (where launches are sampled, with as much of that as is sure by three standard deviations), at most high \
            where launches have dropped by more than the quickest of them, of 20, take longer",
    during_warm_up: false,
    evaluate,
};

/// The share of its usual launches that is missing in all of the last windows, without what the thread was off the CPU for: 0 where it
/// did no better before. Where the quickest launches take longer, too, the CPU is slower, and fewer are expected. Where few were
/// timed, that is not known, and 0 is missing.
fn missing(context: &Context<'_>, process: &Process<'_>) -> f64 {
    let is_drop = |own: &&Measured| own.effect == Effect::LaunchRateDrop;
    let Some(drop) = process.effects.iter().find(is_drop) else { return 0.0 };
    let of = |name| drop.evidence.get(name);
    let (Some(usual), Some(slowdown)) = (of(USUAL_LAUNCHES), of(LAUNCH_SLOWDOWN)) else {
        return 0.0;
    };
    let expected = usual / slowdown;
    let (short, long) = (&process.short, &process.long);
    let missing = |delta: &Delta<'_>| {
        let launches = delta.launches(&context.settings.launch_ops) as f64;
        1.0 - launches / (expected * delta.wall.as_secs_f64()).max(1e-9)
    };
    let off_cpu = ratio(total(drop.offcpu.into_iter()), short.wall);
    (missing(short) - off_cpu).min(missing(long)).max(0.0)
}

/// The highest severity. One that launched more before is graded by the launches that are missing.
fn most(context: &Context<'_>, process: &Process<'_>, windows: u8, long_share: f64) -> Severity {
    let severities = &context.settings.severities;
    let by_pauses = if long_share >= severities.medium { Severity::Medium } else { Severity::Low };
    if windows < WINDOWS {
        return by_pauses;
    }
    let by_launches = severities.of(missing(context, process)).min(Severity::High);
    by_pauses.max(by_launches)
}

fn evaluate(context: &Context<'_>, index: usize) -> Option<Detection> {
    let process = context.processes.get(index)?;
    let Computing { tid, computed, in_long_gaps, surely_in_long_gaps, waited } =
        process.computing?;
    let windows = (process.computed_before << 1 | 1) & WINDOWS;
    if windows.count_ones() < MIN_WINDOWS {
        return None;
    }
    let (delta, settings) = (&process.short, context.settings);
    let thread = delta.threads().iter().find(|thread| thread.tid == tid)?;
    let own = claim(&process.span(), thread, Phases::Feeding).total();
    let taken_share = ratio(own, delta.wall).min(1.0);
    let rule = settings.rule(Cause::HostCode);
    let size = thread.in_state(State::Running, |phase| Phases::BetweenLaunches.contain(phase));
    let explained = ratio(own, size).min(1.0);
    if taken_share < rule.min_lost_share.unwrap_or(settings.severities.low)
        || explained < rule.explained_share.unwrap_or(settings.explained_share)
    {
        return None;
    }
    let (long_share, surely) =
        (ratio(in_long_gaps, delta.wall), ratio(surely_in_long_gaps, delta.wall));
    let mut evidence = Evidence::default()
        .with("computed_share", ratio(computed, delta.wall))
        .with("waited_for_gpu_share", ratio(waited, delta.wall))
        .with("long_pauses_share", long_share)
        .with("launches", delta.all_launches() as f64);
    let gaps = delta.launch_gap();
    if let (Some(p50), Some(p99)) = (gaps.quantile(0.5), gaps.quantile(0.99)) {
        evidence = evidence
            .with("gap_p50_seconds", p50.as_secs_f64())
            .with("gap_p99_seconds", p99.as_secs_f64());
    }
    let doing = SelfInflicted {
        cause: Cause::HostCode,
        effect: Effect::LaunchGap,
        explained,
        size,
        claim,
        claims_earlier: true,
        taken_share,
        mechanism: "computes between launches",
        sentence: "{comm} computed for {computed_share|percent} of the last {window_seconds|seconds} between launches and hardly \
                   waited for the GPU ({waited_for_gpu_share|percent}).",
        fix: match [surely, long_share].map(|share| share >= settings.severities.medium) {
            [true, _] => {
                "Take this work off the thread that launches: load and transform data in workers (DataLoader with num_workers=2 or more), \
                 vectorise it, cache its result, or do it on the GPU."
            }
            [false, true] => {
                "If this is work on data, take it off the thread that launches (DataLoader with num_workers=2 or more). Else launch less \
                 and larger work: CUDA graphs, torch.compile, larger batches."
            }
            [false, false] => {
                "Launch less and larger work: CUDA graphs (torch.compile with mode=\"reduce-overhead\"), torch.compile, fused optimizers, \
                 larger batches."
            }
        },
    };
    let evidence = evidence.with("taken_share", taken_share).with("explained_share", explained);
    Some(Detection {
        most: most(context, process, windows, surely),
        lasted: Some(process.computed_before.trailing_ones().into()),
        ..doing.into_detection(index, (process, thread), evidence)
    })
}
