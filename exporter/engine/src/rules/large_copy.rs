//! Copies are slow because they are large.

use gpucause_abi::Nanos;
use gpucause_abi::snapshot::TimeAccount;
use gpucause_abi::state::{Phase, State};

use super::Rule;
use super::share::CAUSES;
use crate::chain::{Cause, Effect, Evidence};
use crate::claim::Span;
use crate::context::Context;
use crate::delta::{Delta, ThreadDelta};
use crate::detection::{Detection, SelfInflicted};
use crate::phases::Phases;
use crate::times::{part, ratio, share};

/// First size class above 1 MiB.
const FIRST_LARGE_CLASS: u16 = 3;
/// Its lower bound in bytes.
const LARGE_FROM: f64 = 1024.0 * 1024.0;

#[derive(Debug, Default)]
struct Copies {
    count: u64,
    sum: Nanos,
}

/// Large copies, and all copies.
fn copies(delta: &Delta<'_>) -> (Copies, Copies) {
    let (mut large, mut all) = (Copies::default(), Copies::default());
    let add = |copies: &mut Copies, count, sum: Nanos| {
        copies.count = copies.count.saturating_add(count);
        copies.sum.0 = copies.sum.0.saturating_add(sum.0);
    };
    for (_, class, count, sum) in delta.copies() {
        add(&mut all, count, sum);
        if class >= FIRST_LARGE_CLASS {
            add(&mut large, count, sum);
        }
    }
    (large, all)
}

/// Time in copies, without what was lost in them to the scheduler, a disk or a lock.
fn own(thread: &ThreadDelta) -> TimeAccount {
    let is_foreign = |state| CAUSES.iter().any(|&reason| state == State::Off(reason));
    part(&thread.time, |phase, state| phase == Phase::Memcpy && !is_foreign(state))
}

/// Large copies' share of that time.
fn claim(span: &Span<'_, '_>, thread: &ThreadDelta, _: Phases) -> TimeAccount {
    let (large, all) = copies(span.delta);
    share(own(thread), ratio(large.sum, all.sum))
}

pub(super) const RULE: Rule = Rule {
    cause: Cause::LargeCopy,
    reads: &[
        "gpucause_memcpy_duration_seconds",
        "gpucause_memcpy_bytes_total",
        "gpucause_dispatcher_seconds_total",
    ],
    needs: "time in copies above 1 MiB of severity medium",
    during_warm_up: false,
    evaluate,
};

fn evaluate(context: &Context<'_>, index: usize) -> Option<Detection> {
    let process = context.processes.get(index)?;
    let settings = context.settings;
    let rule = settings.rule(Cause::LargeCopy);
    let (large, all) = copies(&process.short);
    let thread = process.short.victim(|thread| thread.in_phase(Phase::Memcpy))?;
    let size = own(thread).total();
    let taken_share = ratio(claim(&process.span(), thread, Phases::Feeding).total(), thread.wall);
    let explained = ratio(large.sum, all.sum).min(1.0);
    let least = rule.min_lost_share.unwrap_or(settings.severities.medium);
    // Copies delay nothing in a program that only loads or stores.
    if large.count == 0 || process.short.launches(&settings.launch_ops) == 0 || taken_share < least
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
        .with("taken_share", taken_share)
        .with("explained_share", explained);
    let doing = SelfInflicted {
        cause: Cause::LargeCopy,
        effect: Effect::CopyTail,
        explained,
        size,
        claim,
        claims_earlier: true,
        taken_share,
        mechanism: "copies large blocks",
        sentence: "{comm} spends {taken_share|percent} of its time in large copies: {large_copies|count} of {copies|count} copies \
                    are above {large_from_bytes|bytes}, take {large_copy_mean_seconds|seconds} each and \
                    {explained_share|percent} of all copy time. They are slow because they are large.",
        fix: "Copy less: keep data on the GPU, use smaller types; copy asynchronously from pinned memory on a separate stream while kernels run.",
    };
    Some(doing.into_detection(index, (process, thread), evidence))
}
