//! Device memory is allocated and freed all the time: at a steady rate, or because of fragmentation, when an allocation fails,
//! cached memory is freed and the allocation is retried. Each such call may wait for the GPU.

use gpucause_abi::op::Class;
use gpucause_abi::snapshot::TimeAccount;
use gpucause_abi::state::{Phase, Reason, State};

use super::Rule;
use super::share::CAUSES;
use crate::chain::{Cause, Effect, Evidence};
use crate::claim::Span;
use crate::context::Context;
use crate::delta::ThreadDelta;
use crate::detection::{Detection, SelfInflicted};
use crate::phases::Phases;
use crate::times::{part, ratio};

/// Least calls a second for churn.
const MIN_RATE: f64 = 20.0;
/// Least failed allocations in the long window for fragmentation.
const MIN_FAILED: u64 = 2;

/// Time in allocations and frees, without what other causes took in them.
fn claim(_: &Span<'_, '_>, thread: &ThreadDelta, _: Phases) -> TimeAccount {
    // Its own locks are part of it.
    let is_foreign =
        |state| CAUSES.iter().any(|&reason| reason != Reason::Lock && state == State::Off(reason));
    part(&thread.time, |phase, state| phase == Phase::Alloc && !is_foreign(state))
}

pub(super) const RULE: Rule = Rule {
    cause: Cause::AllocatorChurn,
    reads: &[
        "gpucause_cuda_call_duration_seconds",
        "gpucause_dispatcher_seconds_total",
        "gpucause_cuda_call_errors_total",
    ],
    needs: "20 device memory allocations and frees a second, or two failed allocations, over several ticks, in time of severity low",
    during_warm_up: false,
    evaluate,
};

fn evaluate(context: &Context<'_>, index: usize) -> Option<Detection> {
    let process = context.processes.get(index)?;
    let (delta, settings) = (&process.short, context.settings);
    let rule = settings.rule(Cause::AllocatorChurn);
    let calls = |delta: &crate::delta::Delta<'_>| {
        delta.count(Class::Alloc, |_| true).saturating_add(delta.count(Class::Free, |_| true))
    };
    let per_second =
        |delta: &crate::delta::Delta<'_>| calls(delta) as f64 / delta.wall.as_secs_f64().max(1e-9);
    let rate = per_second(delta);
    let freed = delta.count(Class::Free, |_| true);
    let thread = delta.victim(|thread| thread.in_phase(Phase::Alloc))?;
    let own = claim(&process.span(), thread, Phases::Feeding).total();
    let taken_share = ratio(own, thread.wall);
    let size = thread.in_phase(Phase::Alloc);
    let explained = ratio(own, size);
    let least = rule.min_lost_share.unwrap_or(settings.severities.low);
    let (refused, refused_of_late) =
        (delta.refused_allocations(), process.long.refused_allocations());
    // A program that starts allocates without freeing. One that probes for free memory fails once.
    let under_pressure = refused > 0 && refused_of_late >= MIN_FAILED;
    let lasts = under_pressure || (rate >= MIN_RATE && per_second(&process.long) >= MIN_RATE);
    if !lasts || freed < calls(delta) / 4 || taken_share < least {
        return None;
    }
    if explained < rule.explained_share.unwrap_or(settings.explained_share) {
        return None;
    }
    let evidence = Evidence::default()
        .with("allocations", delta.count(Class::Alloc, |_| true) as f64)
        .with("frees", freed as f64)
        .with("calls_per_second", rate)
        .with("allocated_bytes", delta.allocated() as f64)
        .with("live_bytes", process.now.memory.live() as f64)
        .with("taken_share", taken_share)
        .with("explained_share", explained);
    let evidence = if under_pressure {
        evidence.with("refused_allocations", refused_of_late as f64)
    } else {
        evidence
    };
    let doing = SelfInflicted {
        cause: Cause::AllocatorChurn,
        effect: Effect::AllocTail,
        explained,
        size,
        claim,
        claims_earlier: true,
        taken_share,
        mechanism: if under_pressure {
            "frees cached device memory after a failed allocation and retries"
        } else {
            "allocates and frees device memory"
        },
        sentence: "{comm} allocates or frees device memory {calls_per_second|count} times a second ({allocations|count} \
                    allocations and {frees|count} frees, {allocated_bytes|bytes}), which takes {taken_share|percent} of its \
                    time.[ {refused_allocations|count} allocations failed because no free block was large enough.]",
        fix: if under_pressure {
            "Leave more device memory free or reduce fragmentation: smaller batches, fewer buffer sizes, PyTorch's expandable_segments:True, no second process on the GPU."
        } else {
            "Use a caching or pooled allocator (cudaMallocAsync, PyTorch's without PYTORCH_NO_CUDA_MEMORY_CACHING), allocate before the loop, and do not call empty_cache in it."
        },
    };
    Some(doing.into_detection(index, (process, thread), evidence))
}
