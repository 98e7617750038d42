//! An effect is divided among its causes, and no time is charged twice.
//!
//! What a cause takes is a part of the thread's own time account, by phase and state: time that the kernel measured. Where several
//! causes claim the same part, the first of this [order](ORDER) gets it, and the others get what is left:
//!
//! 1. A call that hangs: all of the thread's time is in it.
//! 2. Having no CPU: the CPU limit of the cgroup as far as it stopped anybody, then preemption or the run queue. A thread that was
//!    woken waits for nothing but a CPU, so the run-queue time after a lock was released is no part of the wait for the lock.
//! 3. What the calls are for: first launches, graphs, allocations, large copies, a wait for the GPU after each launch.
//! 4. What the thread was blocked by: a lock, a disk, a page, a data loader.
//! 5. What makes it wait for the GPU: a rank that is late, a clock that is low.
//!
//! A cause that is left with less than it needs to be named is not named. The shares that causes have in one effect add up to at
//! most 1; what is missing from 1 is the unexplained share.

use gpucause_abi::Nanos;
use gpucause_abi::snapshot::TimeAccount;
use gpucause_abi::state::{Phase, State};

use crate::chain::{Cause, Chain, Effect};
use crate::delta::{Delta, ThreadDelta};
use crate::effect::{Phases, ratio};
use crate::finding::Finding;
use crate::settings::Settings;

/// Who gets time first that several causes claim. A hang goes before all of them.
pub(crate) const ORDER: [Cause; 17] = [
    Cause::NoisyCgroup,
    Cause::CpuPreemption,
    Cause::RunqueueWait,
    Cause::ColdStart,
    Cause::GraphRecapture,
    Cause::AllocatorChurn,
    Cause::LargeCopy,
    Cause::ImplicitSync,
    Cause::LockWait,
    Cause::BlockIo,
    Cause::PageFault,
    Cause::DataloaderStarvation,
    Cause::NcclLateRank,
    Cause::ClockThrottling,
    Cause::MemoryLeak,
    Cause::OomKill,
    Cause::Unexplained,
];

/// A stretch of time that ends now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span<'s, 'a> {
    /// What the process did.
    pub(crate) delta: &'s Delta<'a>,
    /// How long the CPU limit of its cgroup stopped it.
    pub(crate) throttled: Nanos,
}

/// What a cause took of a thread's time in a stretch, where the effect was in these phases.
pub(crate) type Claim = fn(&Span<'_, '_>, &ThreadDelta, Phases) -> TimeAccount;

/// The part of an account that is in these phases and states.
pub(crate) fn part(time: &TimeAccount, wanted: impl Fn(Phase, State) -> bool) -> TimeAccount {
    let mut part = TimeAccount::default();
    for &phase in Phase::ALL {
        for state in State::all().filter(|&state| wanted(phase, state)) {
            part.0[phase as usize][state.index()] = time.at(phase, state);
        }
    }
    part
}

/// A share of an account, from 0 to 1, of each cell alike.
pub(crate) fn share(mut time: TimeAccount, share: f64) -> TimeAccount {
    if share < 1.0 {
        time.0.as_flattened_mut().iter_mut().for_each(|cell| *cell = cell.share(share));
    }
    time
}

/// As much of an account, of each cell alike.
pub(crate) fn at_most(time: TimeAccount, most: Nanos) -> TimeAccount {
    share(time, ratio(most, time.total()))
}

/// Both, cell by cell.
fn both(
    mut time: TimeAccount,
    other: &TimeAccount,
    of: impl Fn(Nanos, Nanos) -> Nanos,
) -> TimeAccount {
    let cells = time.0.as_flattened_mut().iter_mut().zip(other.0.as_flattened());
    cells.for_each(|(own, other)| *own = of(*own, *other));
    time
}

/// What an account has more than another, cell by cell.
pub(crate) fn less(time: TimeAccount, other: &TimeAccount) -> TimeAccount {
    both(time, other, Nanos::less)
}

/// What two accounts both have, cell by cell.
pub(crate) fn within(time: TimeAccount, most: &TimeAccount) -> TimeAccount {
    both(time, most, Nanos::min)
}

/// The time that a cause loses of what it takes. Causes that pass on a CPU or in waits that may be healthy lose nothing that is
/// proven.
pub(crate) fn lost(cause: Cause, time: &TimeAccount) -> Nanos {
    if cause.loses_time() { time.all_lost() } else { Nanos(0) }
}

fn place(finding: &Finding) -> (bool, usize) {
    let position = ORDER.iter().position(|&cause| cause == finding.cause);
    (finding.effect != Effect::Hang, position.unwrap_or(ORDER.len()))
}

/// Divides the time since the last evaluation among the causes that were found for one process.
pub(crate) fn divide(
    (threads, wall): (&[ThreadDelta], Nanos),
    settings: &Settings,
    found: &mut Vec<Finding>,
) {
    found.sort_by_key(place);
    let mut left: Vec<_> = threads.iter().map(|thread| (thread.tid, thread.time)).collect();
    found.retain_mut(|finding| {
        let claimed = finding.taken.total();
        if claimed.0 == 0 {
            return true;
        }
        let own = left.iter_mut().find(|(tid, _)| Some(*tid) == finding.tid);
        let Some((_, left)) = own else { return false };
        *finding.taken = within(*finding.taken, left);
        *left = less(*left, &finding.taken);
        if finding.taken.total() == claimed {
            return true;
        }
        let kept = ratio(finding.taken.total(), claimed);
        (finding.lost_share, finding.explained) =
            (finding.lost_share * kept, finding.explained * kept);
        let least = settings.rule(finding.cause).min_lost_share;
        finding.lost_share >= least.unwrap_or(settings.severities.low)
    });
    // Threads lose time side by side, and a process has lost no more than there was.
    let all = found.iter().fold(0u64, |all, own| all.saturating_add(own.taken.total().0));
    if all > wall.0 {
        let part = ratio(wall, Nanos(all));
        found.iter_mut().for_each(|own| *own.taken = share(*own.taken, part));
    }
}

/// Makes the shares in an effect those of the whole of it: causes of one measured effect have its size, and what a program does to
/// itself is measured beside it.
pub(crate) fn divide_effects(found: &mut [Finding]) {
    for &effect in Effect::ALL {
        let is_part = |own: &&mut Finding| own.effect == effect && own.size.0 > 0;
        let (mut sizes, mut parts) = (Vec::new(), 0.0);
        for own in found.iter_mut().filter(is_part) {
            if !sizes.contains(&own.size) {
                sizes.push(own.size);
            }
            parts += own.explained.clamp(0.0, 1.0) * own.size.as_secs_f64();
        }
        let whole = sizes.iter().map(|size| size.as_secs_f64()).sum::<f64>().max(parts);
        let unexplained = (1.0 - parts / whole).clamp(0.0, 1.0);
        for own in found.iter_mut().filter(is_part) {
            own.explained = own.explained.clamp(0.0, 1.0) * own.size.as_secs_f64() / whole;
            own.evidence = std::mem::take(&mut own.evidence)
                .with("explained_share", own.explained)
                .with("lost_share", own.lost_share)
                .with(Chain::UNEXPLAINED, unexplained);
        }
    }
}

/// The share of an effect of this size that the findings explain.
pub(crate) fn explained(found: &[Finding], effect: Effect, size: Nanos) -> f64 {
    let own = found.iter().filter(|own| own.effect == effect && own.size == size);
    own.map(|own| own.explained).sum::<f64>().min(1.0)
}

#[cfg(test)]
mod tests;
