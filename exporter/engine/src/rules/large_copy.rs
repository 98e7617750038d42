//! Copies are slow because they are large: within a size class they take what such copies take.

use gpucause_abi::Nanos;
use gpucause_abi::snapshot::TimeAccount;
use gpucause_abi::state::{Phase, Reason, State};

use super::{Declaration, Rule, Window};
use crate::case::Scene;
use crate::chain::{Cause, Effect, Evidence};
use crate::delta::{Delta, ThreadDelta};
use crate::divide::{Span, part, share};
use crate::effect::{Phases, ratio};
use crate::finding::{Finding, OwnDoing};

/// Copies above 1 MiB: from class 3 on.
const LARGE: u16 = 3;
/// What the class below ends with, in bytes.
const LARGE_FROM: f64 = 1024.0 * 1024.0;

pub(super) struct LargeCopy;

/// How many, and what they took together.
#[derive(Debug, Default)]
struct Copies {
    count: u64,
    sum: Nanos,
}

/// Copies of the large classes, and of all.
fn copies(delta: &Delta<'_>) -> (Copies, Copies) {
    let (mut large, mut all) = (Copies::default(), Copies::default());
    let add = |copies: &mut Copies, count, sum: Nanos| {
        copies.count = copies.count.saturating_add(count);
        copies.sum.0 = copies.sum.0.saturating_add(sum.0);
    };
    for (_, class, count, sum) in delta.copies() {
        add(&mut all, count, sum);
        if class >= LARGE {
            add(&mut large, count, sum);
        }
    }
    (large, all)
}

/// Time in copies, without what was lost in them to the scheduler, a disk or a lock.
fn own(thread: &ThreadDelta) -> TimeAccount {
    let foreign =
        [Reason::Preempted, Reason::Runqueue, Reason::Io, Reason::PageFault, Reason::Futex];
    let is_foreign = |state| foreign.iter().any(|&reason| state == State::Off(reason));
    part(&thread.time, |phase, state| phase == Phase::Memcpy && !is_foreign(state))
}

/// The share of that time that large copies took.
fn claim(span: &Span<'_, '_>, thread: &ThreadDelta, _: Phases) -> TimeAccount {
    let (large, all) = copies(span.delta);
    share(own(thread), ratio(large.sum, all.sum))
}

impl Rule for LargeCopy {
    fn declaration(&self) -> Declaration {
        Declaration {
            cause: Cause::LargeCopy,
            reads: &[
                "gpucause_memcpy_duration_seconds",
                "gpucause_memcpy_bytes_total",
                "gpucause_dispatcher_seconds_total",
            ],
            window: Window::Looks,
            needs: "copies above 1 MiB take time of the share of severity medium",
        }
    }

    fn judge(&self, scene: &Scene<'_>, index: usize) -> Option<Finding> {
        let subject = scene.subjects.get(index)?;
        let settings = scene.settings;
        let rule = settings.rule(Cause::LargeCopy);
        let (large, all) = copies(&subject.short);
        let thread = subject.short.victim(|thread| thread.in_phase(Phase::Memcpy))?;
        let size = own(thread).total();
        let lost_share =
            ratio(claim(&subject.span(), thread, Phases::Feeding).total(), thread.wall);
        let explained = ratio(large.sum, all.sum).min(1.0);
        let least = rule.min_lost_share.unwrap_or(settings.severities.medium);
        // Copies hold nothing up in a program that only loads or stores.
        if large.count == 0
            || subject.short.launches(&settings.launch_ops) == 0
            || lost_share < least
        {
            return None;
        }
        if explained < rule.explained_share.unwrap_or(settings.explained_share) {
            return None;
        }
        let evidence = Evidence::default()
            .with("large_from_bytes", LARGE_FROM)
            .with("large_copies", large.count as f64)
            .with("copies", all.count as f64)
            .with("large_copies_seconds", large.sum.as_secs_f64())
            .with("large_copy_mean_seconds", large.sum.as_secs_f64() / large.count.max(1) as f64)
            .with("lost_share", lost_share)
            .with("explained_share", explained);
        let doing = OwnDoing {
            cause: Cause::LargeCopy,
            effect: Effect::CopyTail,
            explained,
            size,
            claim,
            at_any_time: true,
            lost_share,
            mechanism: "copies large blocks",
            sentence: "{comm} spends {lost_share|percent} of its time in large copies: {large_copies|count} of {copies|count} were \
                        of more than {large_from_bytes|bytes} and took {large_copy_mean_seconds|seconds} each, \
                        {explained_share|percent} of all that time. They are slow because they are large.",
            fix: "Copy less: keep data on the GPU, use smaller types; copy asynchronously from pinned memory on a stream of its own, while kernels run.",
        };
        Some(doing.told(index, (subject, thread), evidence))
    }
}
