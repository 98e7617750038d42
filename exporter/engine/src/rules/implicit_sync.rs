//! The program waits for the GPU after nearly every launch, by synchronising or copying a result to the host. The GPU then idles
//! while the host prepares the next launch.

use gpucause_abi::Nanos;
use gpucause_abi::op::{Class, CopyKind};
use gpucause_abi::snapshot::TimeAccount;
use gpucause_abi::state::{Phase, Reason, State};

use super::Rule;
use super::share::{MOST, lost};
use crate::chain::{Cause, Effect, Evidence};
use crate::context::{Context, Process};
use crate::delta::ThreadDelta;
use crate::detection::{Detection, SelfInflicted};
use crate::divide::{Span, part};
use crate::effect::{Phases, ratio, total};

/// Least waits per launch.
const MIN_WAITS: f64 = 0.5;

/// Blocking copies to the host.
fn blocking_copies(process: &Process<'_>) -> u64 {
    let blocking = |name: &str| !name.ends_with("Async");
    let to_host = process.short.copies().filter(|&(kind, ..)| kind == CopyKind::D2h);
    let to_host = to_host.fold(0u64, |all, (_, _, count, _)| all.saturating_add(count));
    to_host.min(process.short.count(Class::Memcpy, blocking))
}

/// Time between waits, in which the GPU idles.
fn claim(_: &Span<'_, '_>, thread: &ThreadDelta, _: Phases) -> TimeAccount {
    part(&thread.time, |phase, state| {
        state == State::Running && matches!(phase, Phase::Host | Phase::Launch | Phase::Other)
    })
}

fn waited(thread: &ThreadDelta) -> Nanos {
    total([Phase::Sync, Phase::Memcpy].iter().map(|&phase| thread.in_phase(phase)))
}

pub(super) const RULE: Rule = Rule {
    cause: Cause::ImplicitSync,
    reads: &[
        "gpucause_cuda_call_duration_seconds",
        "gpucause_memcpy_duration_seconds",
        "gpucause_dispatcher_seconds_total",
    ],
    needs: "at least one wait for the GPU for every two launches, and host work between waits of severity medium",
    during_warm_up: false,
    evaluate,
};

fn evaluate(context: &Context<'_>, index: usize) -> Option<Detection> {
    let process = context.processes.get(index)?;
    let (delta, settings) = (&process.short, context.settings);
    let (syncs, copies) = (delta.count(Class::Sync, |_| true), blocking_copies(process));
    let launches = delta.launches(&settings.launch_ops);
    if !delta.saw_launches() {
        return None;
    }
    let per_launch = syncs.saturating_add(copies) as f64 / launches.max(1) as f64;
    // A thread that launches is not held up by another thread's waits.
    let thread = delta.victim(waited)?;
    let idle = claim(&process.span(), thread, Phases::Feeding).total();
    let lost_share = ratio(idle, thread.wall);
    let rule = settings.rule(Cause::ImplicitSync);
    let least = rule.min_lost_share.unwrap_or(settings.severities.medium);
    if launches < settings.min_calls || per_launch < MIN_WAITS || lost_share < least {
        return None;
    }
    // Only where launches and waits for the GPU make up most of the thread's own time.
    let foreign = [Reason::Preempted, Reason::Runqueue, Reason::Io, Reason::PageFault];
    let own = thread.wall.less(lost(thread, &foreign));
    let explained = ratio(Nanos(idle.0 + waited(thread).0), own).min(1.0);
    if explained < rule.explained_share.unwrap_or(MOST) {
        return None;
    }
    let evidence = Evidence::default()
        .with("launches", launches as f64)
        .with("syncs", syncs as f64)
        .with("blocking_copies_to_host", copies as f64)
        .with("waits_per_launch", per_launch)
        .with("gpu_idle_seconds", idle.as_secs_f64())
        .with("lost_share", lost_share)
        .with("explained_share", explained);
    let doing = SelfInflicted {
        cause: Cause::ImplicitSync,
        effect: Effect::SyncStorm,
        explained,
        size: own,
        claim,
        claims_earlier: false,
        lost_share,
        mechanism: "waits after each launch",
        sentence: "{comm} waits for the GPU {waits_per_launch|times} per launch ({syncs|count} synchronisations and \
                    {blocking_copies_to_host|count} blocking copies to the host for {launches|count} launches). The GPU \
                    idles for {lost_share|percent} of the time.",
        fix: "Look for .item(), .cpu(), print of tensors and torch.cuda.synchronize in the loop; keep results on the GPU and copy them rarely, from pinned memory, without blocking.",
    };
    Some(doing.into_detection(index, (process, thread), evidence))
}
