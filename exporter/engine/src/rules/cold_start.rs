//! Kernels are launched for the first time, which loads them, long after the start of the program.

use gpucause_abi::Nanos;
use gpucause_abi::op::Class;
use gpucause_abi::snapshot::TimeAccount;
use gpucause_abi::state::{Phase, Reason, State};

use super::Rule;
use crate::chain::{Cause, Effect, Evidence};
use crate::claim::Span;
use crate::context::Context;
use crate::delta::{CallDelta, Delta, ThreadDelta};
use crate::detection::{Detection, SelfInflicted};
use crate::phases::Phases;
use crate::times::{ratio, total};

/// Least first launches in the long window: a single one is no pattern.
const MIN_COLD: u64 = 3;

fn first_launches<'s, 'a>(delta: &'s Delta<'a>) -> impl Iterator<Item = &'s CallDelta<'a>> {
    let launches = delta.calls().iter().filter(|call| call.cold && !call.nested);
    launches.filter(|c| c.op.op().is_some_and(|op| op.class == Class::Launch))
}

/// First launches' part of the time in launches, by state.
fn claim(span: &Span<'_, '_>, _: &ThreadDelta, _: Phases) -> TimeAccount {
    let mut claim = TimeAccount::default();
    let states = &mut claim.0[Phase::Launch as usize];
    for call in first_launches(span.delta) {
        let offcpu = call.offcpu();
        let running = call.sum.less(total(offcpu.into_iter()));
        let off = Reason::ALL.iter().zip(offcpu).map(|(&reason, time)| (State::Off(reason), time));
        for (state, time) in off.chain([(State::Running, running)]) {
            let cell = &mut states[state.index()];
            cell.0 = cell.0.saturating_add(time.0);
        }
    }
    claim
}

/// Number and total time of first launches.
fn cold(delta: &Delta<'_>) -> (u64, Nanos) {
    first_launches(delta).fold((0, Nanos(0)), |(calls, time), call| {
        (calls.saturating_add(call.count()), Nanos(time.0.saturating_add(call.sum.0)))
    })
}

pub(super) const RULE: Rule = Rule {
    cause: Cause::ColdStart,
    reads: &["gpucause_cuda_call_duration_seconds"],
    needs: "three first launches over several ticks, and time in first launches of severity medium",
    during_warm_up: false,
    evaluate,
};

fn evaluate(context: &Context<'_>, index: usize) -> Option<Detection> {
    let process = context.processes.get(index)?;
    let settings = context.settings;
    let rule = settings.rule(Cause::ColdStart);
    let (launches, took) = cold(&process.short);
    let thread = process.short.victim(|thread| thread.in_phase(Phase::Launch))?;
    let taken_share = ratio(took, thread.wall).min(1.0);
    let least = rule.min_lost_share.unwrap_or(settings.severities.medium);
    if launches == 0 || taken_share < least || cold(&process.long).0 < MIN_COLD {
        return None;
    }
    let size = thread.in_phase(Phase::Launch);
    let explained = ratio(took, size).min(1.0);
    if explained < rule.explained_share.unwrap_or(settings.explained_share) {
        return None;
    }
    let evidence = Evidence::default()
        .with("first_launches", launches as f64)
        .with("first_launches_seconds", took.as_secs_f64())
        .with("first_launch_mean_seconds", took.as_secs_f64() / launches as f64)
        .with("kernels", process.now.kernels.len() as f64)
        .with("taken_share", taken_share)
        .with("explained_share", explained);
    let doing = SelfInflicted {
        cause: Cause::ColdStart,
        effect: Effect::LaunchTail,
        explained,
        size,
        claim,
        claims_earlier: true,
        taken_share,
        mechanism: "loads kernels at their first launch",
        sentence: "{comm} launched {first_launches|count} kernels for the first time, which loads them: \
                    {first_launches_seconds|seconds} in total, {first_launch_mean_seconds|seconds} each, \
                    {explained_share|percent} of its time in launches.",
        fix: "Warm up before serving: run each shape once, or set CUDA_MODULE_LOADING=EAGER; keep compiled kernels in a cache across restarts.",
    };
    Some(doing.into_detection(index, (process, thread), evidence))
}
