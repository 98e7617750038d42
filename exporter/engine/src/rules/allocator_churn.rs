//! Device memory is taken and given back all the time, at a steady rate or because there is too little of it in one piece:
//! an allocation fails, what is cached is given back, and it is tried again. Each such call may wait for the GPU.

use gpucause_abi::op::Class;
use gpucause_abi::snapshot::TimeAccount;
use gpucause_abi::state::{Phase, Reason, State};

use super::{Declaration, Rule, Window};
use crate::case::Scene;
use crate::chain::{Cause, Effect, Evidence};
use crate::delta::ThreadDelta;
use crate::divide::{Span, part};
use crate::effect::{Phases, ratio};
use crate::finding::{Finding, OwnDoing};

/// Calls a second from which on it is churn.
const RATE: f64 = 20.0;
/// Failed allocations over several looks from which on there is too little memory in one piece.
const REFUSALS: u64 = 2;

pub(super) struct AllocatorChurn;

/// Time in calls that take or give back, without what was lost in them to other causes.
fn claim(_: &Span<'_, '_>, thread: &ThreadDelta, _: Phases) -> TimeAccount {
    let foreign = [Reason::Preempted, Reason::Runqueue, Reason::Io, Reason::PageFault];
    let is_foreign = |state| foreign.iter().any(|&reason| state == State::Off(reason));
    part(&thread.time, |phase, state| phase == Phase::Alloc && !is_foreign(state))
}

impl Rule for AllocatorChurn {
    fn declaration(&self) -> Declaration {
        Declaration {
            cause: Cause::AllocatorChurn,
            reads: &[
                "gpucause_cuda_call_duration_seconds",
                "gpucause_dispatcher_seconds_total",
                "gpucause_cuda_call_errors_total",
            ],
            window: Window::Looks,
            needs: "20 calls a second that take or give back device memory, or two allocations that fail for lack of it, over several \
                    looks, of the share of severity low",
        }
    }

    fn judge(&self, scene: &Scene<'_>, index: usize) -> Option<Finding> {
        let subject = scene.subjects.get(index)?;
        let (delta, settings) = (&subject.short, scene.settings);
        let rule = settings.rule(Cause::AllocatorChurn);
        let calls = |delta: &crate::delta::Delta<'_>| {
            delta.count(Class::Alloc, |_| true).saturating_add(delta.count(Class::Free, |_| true))
        };
        let per_second = |delta: &crate::delta::Delta<'_>| {
            calls(delta) as f64 / delta.wall.as_secs_f64().max(1e-9)
        };
        let rate = per_second(delta);
        let freed = delta.count(Class::Free, |_| true);
        let thread = delta.victim(|thread| thread.in_phase(Phase::Alloc))?;
        let own = claim(&subject.span(), thread, Phases::Feeding).total();
        let lost_share = ratio(own, thread.wall);
        let size = thread.in_phase(Phase::Alloc);
        let explained = ratio(own, size);
        let least = rule.min_lost_share.unwrap_or(settings.severities.low);
        let (refused, refused_of_late) =
            (delta.refused_allocations(), subject.long.refused_allocations());
        // A program that starts takes memory, and gives none back. One that tries how much there is fails once.
        let under_pressure = refused > 0 && refused_of_late >= REFUSALS;
        let lasts = under_pressure || (rate >= RATE && per_second(&subject.long) >= RATE);
        if !lasts || freed < calls(delta) / 4 || lost_share < least {
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
            .with("live_bytes", subject.now.memory.live() as f64)
            .with("lost_share", lost_share)
            .with("explained_share", explained);
        let evidence = if under_pressure {
            evidence.with("refused_allocations", refused_of_late as f64)
        } else {
            evidence
        };
        let doing = OwnDoing {
            cause: Cause::AllocatorChurn,
            effect: Effect::AllocTail,
            explained,
            size,
            claim,
            at_any_time: true,
            lost_share,
            mechanism: if under_pressure {
                "gives cached device memory back when an allocation fails, and tries again"
            } else {
                "takes and gives back device memory"
            },
            sentence: "{comm} takes and gives back device memory {calls_per_second|count} times a second \
                        ({allocations|count} allocations and {frees|count} frees of late, {allocated_bytes|bytes}), which \
                        costs {lost_share|percent} of its time.[ {refused_allocations|count} allocations failed for lack of \
                        memory in one piece.]",
            fix: if under_pressure {
                "Leave more device memory free or make what is cached fit: smaller batches, buffers of fewer sizes, PyTorch's expandable_segments:True, no second process on the GPU."
            } else {
                "Use a caching or pooled allocator (cudaMallocAsync, PyTorch's without PYTORCH_NO_CUDA_MEMORY_CACHING), allocate before the loop, and leave empty_cache out of it."
            },
        };
        Some(doing.told(index, (subject, thread), evidence))
    }
}
