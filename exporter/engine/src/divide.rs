//! Divides an effect among its causes without charging any time twice.
//!
//! A cause takes a part of the thread's own time account, by phase and state, as the kernel measured it. If several causes claim the
//! same part, the first of this [order](ORDER) gets it and the others get the rest:
//!
//! 1. A hang: all of the thread's time is in the call.
//! 2. No CPU: the cgroup's CPU limit as far as it throttled, then preemption or the run queue. A woken thread waits only for a CPU,
//!    so run-queue time after a lock was released is not part of the lock wait.
//! 3. Purpose of the calls: first launches, graphs, allocations, large copies, a wait for the GPU after each launch.
//!    Then the program's own code between launches.
//! 4. Blocked: by a lock, a disk, a page, another process, a data loader.
//! 5. Waits for the GPU: a late rank, a throttled clock.
//!
//! A cause whose rest is below its threshold is not reported. The shares of one effect add up to at most 1; the rest, without what
//! causes of the same thread with another effect took of it, is the unexplained share.

use gpucause_abi::Nanos;
use gpucause_abi::snapshot::TimeAccount;
use gpucause_abi::state::{Phase, Reason, State};

use crate::chain::{Cause, Chain, Effect};
use crate::claim::Span;
use crate::context::{Measured, Process};
use crate::delta::ThreadDelta;
use crate::detection::Detection;
use crate::settings::Settings;
use crate::times::{less, ratio, share, total, within};

/// Priority of causes that claim the same time. A hang comes first.
pub(crate) const ORDER: [Cause; 20] = [
    Cause::NoisyCgroup,
    Cause::CpuPreemption,
    Cause::RunqueueWait,
    Cause::ColdStart,
    Cause::GraphRecapture,
    Cause::AllocatorChurn,
    Cause::LargeCopy,
    Cause::ImplicitSync,
    Cause::HostCode,
    Cause::LockWait,
    Cause::KernelLock,
    Cause::BlockIo,
    Cause::PageFault,
    Cause::ProcessWait,
    Cause::DataloaderStarvation,
    Cause::NcclLateRank,
    Cause::ClockThrottling,
    Cause::MemoryLeak,
    Cause::OomKill,
    Cause::Unexplained,
];

/// The lost part of the time that a cause takes. Causes that run on a CPU or in waits that may be healthy have no proven loss.
pub(crate) fn lost(cause: Cause, effect: Effect, time: &TimeAccount) -> Nanos {
    match cause {
        // All that it claims: the thread that this one waits for behind the lock loses the time. A hang claims all of its call.
        Cause::LockWait if effect != Effect::Hang => time.total(),
        _ if cause.loses_time() => time.all_lost(),
        _ => Nanos(0),
    }
}

fn priority(detection: &Detection) -> (bool, usize) {
    let position = ORDER.iter().position(|&cause| cause == detection.cause);
    (detection.effect != Effect::Hang, position.unwrap_or(ORDER.len()))
}

/// Divides the time since the previous tick among the detections on one process.
pub(crate) fn divide(threads: &[ThreadDelta], settings: &Settings, found: &mut Vec<Detection>) {
    found.sort_by_key(priority);
    let mut left: Vec<_> = threads.iter().map(|thread| (thread.tid, thread.time)).collect();
    found.retain_mut(|detection| {
        let claimed = detection.taken.total();
        if claimed.0 == 0 {
            return true;
        }
        let own = left.iter_mut().find(|(tid, _)| Some(*tid) == detection.tid);
        let Some((_, left)) = own else { return false };
        *detection.taken = within(*detection.taken, left);
        *left = less(*left, &detection.taken);
        if detection.taken.total() == claimed {
            return true;
        }
        let kept = ratio(detection.taken.total(), claimed);
        (detection.taken_share, detection.explained) =
            (detection.taken_share * kept, detection.explained * kept);
        let least = settings.rule(detection.cause).min_lost_share;
        detection.taken_share >= least.unwrap_or(settings.severities.low)
    });
}

/// Scales what detections took: threads lose time in parallel, but a process loses at most the wall time.
pub(crate) fn fit(found: &mut [Detection], wall: Nanos) {
    let all = found.iter().fold(0u64, |all, own| all.saturating_add(own.taken.total().0));
    if all > wall.0 {
        let part = ratio(wall, Nanos(all));
        found.iter_mut().for_each(|own| *own.taken = share(*own.taken, part));
    }
}

/// Converts the shares in an effect to shares of its total size: causes within the program have sizes of their own, measured beside
/// the effect. What causes charged to other effects explain is not unexplained.
pub(crate) fn divide_effects(process: &Process<'_>, found: &mut [Detection]) {
    for &effect in Effect::ALL {
        let is_part = |own: &Detection| own.effect == effect && own.size.0 > 0;
        let (mut sizes, mut parts) = (Vec::new(), 0.0);
        for own in found.iter().filter(|own| is_part(own)) {
            if !sizes.contains(&own.size) {
                sizes.push(own.size);
            }
            parts += own.explained.clamp(0.0, 1.0) * own.size.as_secs_f64();
        }
        let whole = sizes.iter().map(|size| size.as_secs_f64()).sum::<f64>().max(parts);
        let measured = process.effects.iter().filter(|own| own.effect == effect);
        let measured = measured.filter(|own| sizes.contains(&own.excess));
        let elsewhere: f64 = measured.map(|own| explained_elsewhere(process, own, found)).sum();
        let unexplained = (1.0 - (parts + elsewhere) / whole).clamp(0.0, 1.0);
        for own in found.iter_mut().filter(|own| is_part(own)) {
            own.explained = own.explained.clamp(0.0, 1.0) * own.size.as_secs_f64() / whole;
            own.evidence = std::mem::take(&mut own.evidence)
                .with("explained_share", own.explained)
                .with("taken_share", own.taken_share)
                .with(Chain::UNEXPLAINED, unexplained);
        }
    }
}

/// How much of an effect, in seconds, causes of its thread explain that are charged to other effects.
fn explained_elsewhere(process: &Process<'_>, effect: &Measured, found: &[Detection]) -> f64 {
    let mut elsewhere = TimeAccount::default();
    let is_other = |own: &&Detection| {
        own.effect != effect.effect && (effect.tid.is_none() || own.tid == effect.tid)
    };
    for own in found.iter().filter(is_other) {
        elsewhere.merge(&match own.claim.zip(own.tid) {
            Some(((claim, phases), tid)) if effect.long => {
                let span = Span { delta: &process.long, throttled: process.throttled };
                let thread = process.long.thread(tid);
                thread.map(|thread| claim(&span, &thread, phases)).unwrap_or_default()
            }
            _ => *own.taken,
        });
    }
    let explained = |&reason: &Reason| {
        let is_part = |phase| effect.phases.contain_wait(phase, reason);
        let phases = Phase::ALL.iter().filter(|&&phase| is_part(phase));
        let time = total(phases.map(|&phase| elsewhere.at(phase, State::Off(reason))));
        time.min(effect.offcpu(&[reason]))
    };
    total(Reason::ALL.iter().map(explained)).as_secs_f64()
}

/// The share of an effect of this size that the detections explain together.
pub(crate) fn explained(found: &[Detection], effect: Effect, size: Nanos) -> f64 {
    let own = found.iter().filter(|own| own.effect == effect && own.size == size);
    own.map(|own| own.explained).sum::<f64>().min(1.0)
}

#[cfg(test)]
mod tests;
