//! The program waits for the GPU after nearly every launch, by synchronising or copying a result to the host. Each wait drains the
//! GPU, which then has little or no work while the host prepares the next launch.

use gpucause_abi::Nanos;
use gpucause_abi::op::{Class, CopyKind};
use gpucause_abi::snapshot::TimeAccount;
use gpucause_abi::state::{Phase, Reason, State};

use super::Rule;
use super::share::{CAUSES, MOST, lost};
use crate::chain::{Cause, Effect, Evidence};
use crate::claim::Span;
use crate::context::{Context, Process};
use crate::delta::ThreadDelta;
use crate::detection::{Detection, SelfInflicted};
use crate::phases::Phases;
use crate::times::{part, ratio, total};

/// Least waits per launch.
const MIN_WAITS: f64 = 0.5;

/// Blocking copies to the host.
fn blocking_copies(process: &Process<'_>) -> u64 {
    let blocking = |name: &str| !name.ends_with("Async");
    let to_host = process.short.copies().filter(|&(kind, ..)| kind == CopyKind::D2h);
    let to_host = to_host.fold(0u64, |all, (_, _, count, _)| all.saturating_add(count));
    to_host.min(process.short.count(Class::Memcpy, blocking))
}

/// Time on the CPU between waits. Time off it there, in which the GPU has no more work, is charged to other causes.
fn claim(_: &Span<'_, '_>, thread: &ThreadDelta, _: Phases) -> TimeAccount {
    part(&thread.time, |phase, state| {
        state == State::Running && matches!(phase, Phase::Host | Phase::Launch | Phase::Other)
    })
}

/// Time in waits for the GPU, without what other causes take of it.
fn waited(thread: &ThreadDelta) -> Nanos {
    let is_wait = |phase| matches!(phase, Phase::Sync | Phase::Memcpy);
    let lost = |&reason: &Reason| {
        let state = State::Off(reason);
        thread.in_state(state, |phase| is_wait(phase) && state.is_lost_in(phase))
    };
    let all = Phase::ALL.iter().filter(|&&phase| is_wait(phase));
    total(all.map(|&phase| thread.in_phase(phase))).less(total(CAUSES.iter().map(lost)))
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
    let waiting = waited(thread);
    let between = claim(&process.span(), thread, Phases::Feeding).total();
    let taken_share = ratio(between, thread.wall);
    let rule = settings.rule(Cause::ImplicitSync);
    let least = rule.min_lost_share.unwrap_or(settings.severities.medium);
    if launches < settings.min_calls || per_launch < MIN_WAITS || taken_share < least {
        return None;
    }
    // Only where launches and waits for the GPU make up most of the thread's own time.
    let own = thread.wall.less(lost(thread, &CAUSES));
    let explained = ratio(Nanos(between.0 + waiting.0), own).min(1.0);
    if explained < rule.explained_share.unwrap_or(MOST) {
        return None;
    }
    let evidence = Evidence::default()
        .with("launches", launches as f64)
        .with("syncs", syncs as f64)
        .with("blocking_copies_to_host", copies as f64)
        .with("waits_per_launch", per_launch)
        .with("waiting_seconds", waiting.as_secs_f64())
        .with("between_waits_seconds", between.as_secs_f64())
        .with("taken_share", taken_share)
        .with("explained_share", explained);
    let doing = SelfInflicted {
        cause: Cause::ImplicitSync,
        effect: Effect::SyncStorm,
        explained,
        size: own,
        claim,
        claims_earlier: false,
        taken_share,
        mechanism: "computes and launches between waits",
        sentence: "{comm} waits for the GPU {waits_per_launch|times} per launch ({syncs|count} synchronisations and \
                    {blocking_copies_to_host|count} blocking copies to the host for {launches|count} launches), \
                    {waiting_seconds|seconds} in all. Each wait drains the GPU, which then has little or no work while {comm} \
                    computes and launches: for at least {taken_share|percent} of the time.",
        fix: "Look for .item(), .cpu(), print of tensors and torch.cuda.synchronize in the loop; keep results on the GPU and copy them rarely, from pinned memory, without blocking.",
    };
    Some(doing.into_detection(index, (process, thread), evidence))
}
