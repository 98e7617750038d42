//! Calls that take far longer than the others of their kind.
//!
//! Excess is what calls took beyond the median, added up over all that were slow. Off-CPU time explains the excess of calls
//! that were off the CPU and of no others: these are counted apart in the kernel. What calls that were off the CPU and yet
//! not slow can have spent so is taken off. First launches of a kernel are left out.

use gpucause_abi::Nanos;
use gpucause_abi::hist::{slot_lower, slot_of, slot_upper};
use gpucause_abi::op::{Class, OpId};
use gpucause_abi::record::REASONS;

use super::{Measured, Phases, ratio, total};
use crate::case::Subject;
use crate::chain::{Effect, Evidence};
use crate::delta::{CallDelta, Delta, Values};
use crate::settings::Settings;

/// Share of the excess that must be off the CPU where fewer than one call in a hundred are slow.
const OFF_CPU: f64 = 0.5;
/// How many times the median a call takes at least that counts as slow.
const SLOW: u64 = 4;

/// Tails of launches, copies and allocations; of each the op with the largest excess.
pub(super) fn measure(subject: &Subject<'_>, settings: &Settings) -> Vec<Measured> {
    let mut room = Room::default();
    [Effect::LaunchTail, Effect::CopyTail, Effect::AllocTail]
        .into_iter()
        .filter_map(|effect| {
            let short = worst(&subject.short, None, effect, settings, &mut room);
            let latest = Some(&subject.short);
            short.or_else(|| worst(&subject.long, latest, effect, settings, &mut room))
        })
        .collect()
}

/// What a tail of this op is, if it is any. Launches of graphs take as long as the graphs are large, so that a spread among
/// them means nothing.
fn effect_of(id: OpId, class: Class, settings: &Settings) -> Option<Effect> {
    match class {
        Class::Graph => None,
        _ if settings.launch_ops.contains(id) => Some(Effect::LaunchTail),
        Class::Memcpy => Some(Effect::CopyTail),
        Class::Alloc => Some(Effect::AllocTail),
        _ => None,
    }
}

/// Calls of the ops that are looked at, one op in the place of another.
#[derive(Default)]
struct Room {
    /// Of the op that is being looked at.
    durations: Values,
    stalled: Values,
    /// Of the worst so far.
    worst: Values,
}

/// A tail of one op.
struct Tail<'d, 'a> {
    call: &'d CallDelta<'a>,
    p50: Nanos,
    p99: Nanos,
    /// Whether it is one by its quantiles; else only the time off the CPU can make it one.
    spreads: bool,
    slow_from: Nanos,
    slow_calls: u64,
    excess: Nanos,
    /// Off-CPU time in the slow calls, once somebody had to know.
    offcpu: Option<[Nanos; REASONS]>,
}

/// The worst tail of a window; of a longer one among the ops that had calls in the `latest`, a slow one too, but too few to
/// judge them on. Of two that are as bad it is the last.
///
/// Ops are looked at in the order of the time that they took. No tail has a larger excess than that, so that those after the
/// first few need no look; and only of the worst it matters how much of it was off the CPU.
fn worst(
    delta: &Delta<'_>,
    latest: Option<&Delta<'_>>,
    effect: Effect,
    settings: &Settings,
    room: &mut Room,
) -> Option<Measured> {
    let mut calls: Vec<_> = delta.calls().iter().enumerate().collect();
    calls.retain(|(_, call)| {
        let is_of = |class| effect_of(call.op, class, settings) == Some(effect);
        !call.cold
            && !call.nested
            && call.op.op().is_some_and(|op| is_of(op.class))
            && call.count() >= settings.min_calls
    });
    calls.sort_unstable_by_key(|&(index, call)| std::cmp::Reverse((call.sum, index)));
    let mut worst: Option<(usize, Tail<'_, '_>)> = None;
    for (index, call) in calls {
        let least = worst.as_ref().map(|(index, tail)| (tail.excess, *index));
        if least > Some((call.sum, index)) {
            break;
        }
        if latest.is_some_and(|latest| !is_rare(latest, call, settings)) {
            continue;
        }
        let Some(mut tail) = Tail::of(call, settings, &mut room.durations) else { continue };
        if least > Some((tail.excess, index)) || !tail.may_count(delta, effect, settings) {
            continue;
        }
        if latest.is_some_and(|latest| !is_slow_in(latest, call, tail.slow_from, &mut room.stalled))
        {
            continue;
        }
        if !tail.spreads {
            let offcpu = tail.offcpu(&room.durations, &mut room.stalled);
            if ratio(total(offcpu.into_iter()), tail.excess) < OFF_CPU {
                continue;
            }
        }
        std::mem::swap(&mut room.durations, &mut room.worst);
        worst = Some((index, tail));
    }
    let (_, mut tail) = worst?;
    let class = tail.call.op.op()?.class;
    let offcpu = tail.offcpu(&room.worst, &mut room.stalled);
    Some(Measured {
        effect,
        excess: tail.excess,
        offcpu,
        phases: Phases::Only(class.phase()),
        tid: None,
        long: latest.is_some(),
        evidence: tail.evidence(),
    })
}

/// The calls of the same op in another window.
fn same_in<'d, 'a>(delta: &'d Delta<'a>, call: &CallDelta<'_>) -> Option<&'d CallDelta<'a>> {
    delta.calls().iter().find(|other| other.kind() == call.kind())
}

/// Whether there were such calls in the latest window, but too few to judge them on.
fn is_rare(latest: &Delta<'_>, call: &CallDelta<'_>, settings: &Settings) -> bool {
    same_in(latest, call).is_some_and(|now| now.count() < settings.min_calls)
}

/// Whether one of them was slow.
fn is_slow_in(
    latest: &Delta<'_>,
    call: &CallDelta<'_>,
    slow_from: Nanos,
    values: &mut Values,
) -> bool {
    let Some(now) = same_in(latest, call) else { return false };
    now.durations_into(values);
    values.max >= slow_from
}

impl<'d, 'a> Tail<'d, 'a> {
    /// What would be the tail of these calls, whose durations are put in `durations`; `None` when there is no telling.
    fn of(call: &'d CallDelta<'a>, settings: &Settings, durations: &mut Values) -> Option<Self> {
        call.durations_into(durations);
        let (p50, p99) = (durations.quantile(0.5)?, durations.quantile(0.99)?);
        let spreads = ratio(p99, p50) >= settings.min_spread
            && p99.as_secs_f64() >= settings.min_launch_p99_seconds;
        let slow_from = Nanos(p50.0.saturating_mul(SLOW));
        let (slow_calls, excess) = beyond(durations, p50, slow_from);
        Some(Self { call, p50, p99, spreads, slow_from, slow_calls, excess, offcpu: None })
    }

    /// Whether it is a tail, or one if it was off the CPU: most of all windows end here.
    fn may_count(&self, delta: &Delta<'_>, effect: Effect, settings: &Settings) -> bool {
        self.spreads || (effect == Effect::LaunchTail && is_heavy(delta, self.excess, settings))
    }

    /// Off-CPU time in the slow ones of the calls, which took `durations`.
    fn offcpu(&mut self, durations: &Values, stalled: &mut Values) -> [Nanos; REASONS] {
        *self.offcpu.get_or_insert_with(|| {
            self.call.stalled_into(stalled);
            let (_, in_stalled) = beyond(stalled, self.p50, self.slow_from);
            let excess = in_stalled.min(self.excess);
            in_slow_calls(self.call.offcpu(), (durations, stalled), self.slow_from, excess)
        })
    }

    fn evidence(&self) -> Evidence {
        let mut evidence = Evidence::default().with("p50_seconds", self.p50.as_secs_f64());
        if self.spreads {
            evidence = evidence
                .with("p99_seconds", self.p99.as_secs_f64())
                .with("spread", ratio(self.p99, self.p50));
        }
        evidence
            .with("calls", self.call.count() as f64)
            .with("slow_calls", self.slow_calls as f64)
            .with("excess_seconds", self.excess.as_secs_f64())
    }
}

/// Whether slow calls cost the share of severity medium. A launch of a few microseconds is rarely in the midst when a time slice
/// ends, but then waits for thousands of its kind: fewer than one in a hundred are a tail too when that time was off the CPU.
fn is_heavy(delta: &Delta<'_>, excess: Nanos, settings: &Settings) -> bool {
    ratio(excess, delta.wall) >= settings.severities.medium
}

/// Calls of at least `slow_from`, and what they took beyond `usual`, by the middle of their slots and not more than the sum
/// allows.
fn beyond(durations: &Values, usual: Nanos, slow_from: Nanos) -> (u64, Nanos) {
    let (mut count, mut excess) = (0u64, 0u64);
    let first = first_from(slow_from).max(durations.used().start);
    let mut low = slot_lower(first).0;
    for (slot, &calls) in (first..).zip(durations.counts(first..usize::MAX)) {
        let above = slot_lower(slot + 1).0;
        count = count.saturating_add(calls);
        let middle = low.midpoint((above - 1).min(durations.max.0.max(low)));
        excess = excess.saturating_add(calls.saturating_mul(middle.saturating_sub(usual.0)));
        low = above;
    }
    (count, Nanos(excess.min(durations.sum.0)))
}

/// The first slot whose values are at least so long.
fn first_from(bound: Nanos) -> usize {
    let slot = slot_of(bound);
    if slot_lower(slot) < bound { slot + 1 } else { slot }
}

/// Off-CPU time, of all that these calls had, of those that were slow: not more than their excess, and without what the
/// others that were off the CPU took beyond a call that was not.
fn in_slow_calls(
    offcpu: [Nanos; REASONS],
    (durations, stalled): (&Values, &Values),
    slow_from: Nanos,
    excess: Nanos,
) -> [Nanos; REASONS] {
    let unstalled = durations.without(stalled).quantile(0.5);
    let shortest = stalled.used().start;
    let usual = slot_lower(unstalled.map_or(shortest, slot_of));
    let fast = stalled.counts(0..first_from(slow_from));
    let in_fast = total((shortest..).zip(fast).map(|(slot, &calls)| {
        let upper = slot_upper(slot).min(stalled.max);
        Nanos(upper.less(usual).0.saturating_mul(calls))
    }));
    let all = total(offcpu.into_iter());
    let part = all.less(in_fast).min(excess);
    let scaled = |time: Nanos| u128::from(time.0) * u128::from(part.0) / u128::from(all.0.max(1));
    offcpu.map(|time| Nanos(u64::try_from(scaled(time)).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests;
