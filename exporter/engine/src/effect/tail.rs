//! Calls that take far longer than the others of their kind.
//!
//! Excess is what calls took beyond the median, added up over all that were slow. Off-CPU time explains the excess of calls
//! that were off the CPU and of no others: these are counted apart in the kernel. What calls that were off the CPU and yet
//! not slow can have spent so is taken off. First launches of a kernel are left out.

use gpucause_abi::Nanos;
use gpucause_abi::hist::{Histogram, slot_lower, slot_of, slot_upper};
use gpucause_abi::op::Class;
use gpucause_abi::record::REASONS;

use super::{Measured, Phases, ratio, total};
use crate::case::Subject;
use crate::chain::{Effect, Evidence};
use crate::delta::{CallDelta, Delta};
use crate::settings::Settings;

/// How many times the median a call takes at least that counts as slow.
const SLOW: u64 = 4;

/// Tails of launches, copies and allocations; of each the op with the largest excess.
pub(super) fn measure(subject: &Subject<'_>, settings: &Settings) -> Vec<Measured> {
    let classes = [
        (Class::Launch, Effect::LaunchTail),
        (Class::Memcpy, Effect::CopyTail),
        (Class::Alloc, Effect::AllocTail),
    ];
    classes
        .into_iter()
        .filter_map(|(class, effect)| {
            let short = worst(&subject.short, None, class, effect, settings);
            let latest = Some(&subject.short);
            short.or_else(|| worst(&subject.long, latest, class, effect, settings))
        })
        .collect()
}

/// The worst tail of a window; of a longer one when one of its slow calls is in the `latest`.
fn worst(
    delta: &Delta,
    latest: Option<&Delta>,
    class: Class,
    effect: Effect,
    settings: &Settings,
) -> Option<Measured> {
    let of_class = delta
        .calls
        .iter()
        .filter(|call| !call.cold && call.op.op().is_some_and(|op| op.class == class));
    let tails = of_class.filter_map(|call| tail(call, latest, effect, settings));
    let mut worst = tails.max_by_key(|tail| tail.excess)?;
    worst.phases = Phases::Only(class.phase());
    worst.long = latest.is_some();
    Some(worst)
}

fn tail(
    call: &CallDelta,
    latest: Option<&Delta>,
    effect: Effect,
    settings: &Settings,
) -> Option<Measured> {
    let calls = call.durations.count();
    if calls < settings.min_calls {
        return None;
    }
    let (p50, p99) = (call.durations.quantile(0.5)?, call.durations.quantile(0.99)?);
    let spread = ratio(p99, p50);
    if spread < settings.min_spread || p99.as_secs_f64() < settings.min_launch_p99_seconds {
        return None;
    }
    let slow_from = Nanos(p50.0.saturating_mul(SLOW));
    let same = |now: &&CallDelta| (now.op, now.cold) == (call.op, call.cold);
    let slow_of_late = |latest: &Delta| {
        latest.calls.iter().find(same).is_some_and(|c| c.durations.max >= slow_from)
    };
    if !latest.is_none_or(slow_of_late) {
        return None;
    }
    let (all_count, all) = beyond(&call.durations, p50, slow_from);
    let (_, stalled) = beyond(&call.stalled, p50, slow_from);
    Some(Measured {
        effect,
        excess: all,
        offcpu: in_slow_calls(call, slow_from, stalled.min(all)),
        phases: Phases::Feeding,
        tid: None,
        long: false,
        evidence: Evidence::default()
            .with("p50_seconds", p50.as_secs_f64())
            .with("p99_seconds", p99.as_secs_f64())
            .with("spread", spread)
            .with("calls", calls as f64)
            .with("slow_calls", all_count as f64)
            .with("excess_seconds", all.as_secs_f64()),
    })
}

/// Calls of at least `slow_from`, and what they took beyond `usual`, by the middle of their slots and not more than the sum
/// allows.
fn beyond(durations: &Histogram, usual: Nanos, slow_from: Nanos) -> (u64, Nanos) {
    let (mut count, mut excess) = (0u64, 0u64);
    for &(slot, calls) in &durations.slots {
        let (low, high) = (slot_lower(usize::from(slot)), slot_upper(usize::from(slot)));
        if low >= slow_from {
            count = count.saturating_add(calls);
            let middle = low.0.midpoint(high.0.min(durations.max.0.max(low.0)));
            excess = excess.saturating_add(calls.saturating_mul(middle.saturating_sub(usual.0)));
        }
    }
    (count, Nanos(excess.min(durations.sum.0)))
}

/// Off-CPU time of the calls that were slow: not more than their excess, and without what the others that were off the CPU
/// took beyond a call that was not.
fn in_slow_calls(call: &CallDelta, slow_from: Nanos, excess: Nanos) -> [Nanos; REASONS] {
    let unstalled = call.durations.since(&call.stalled).quantile(0.5);
    let shortest = call.stalled.slots.first().map_or(0, |&(slot, _)| usize::from(slot));
    let usual = slot_lower(unstalled.map_or(shortest, slot_of));
    let fast = call.stalled.slots.iter().map(|&(slot, calls)| (usize::from(slot), calls));
    let fast = fast.filter(|&(slot, _)| slot_lower(slot) < slow_from);
    let in_fast = total(fast.map(|(slot, calls)| {
        let upper = slot_upper(slot).min(call.stalled.max);
        Nanos(upper.less(usual).0.saturating_mul(calls))
    }));
    let all = total(call.offcpu.into_iter());
    let part = all.less(in_fast).min(excess);
    let scaled = |time: Nanos| u128::from(time.0) * u128::from(part.0) / u128::from(all.0.max(1));
    call.offcpu.map(|time| Nanos(u64::try_from(scaled(time)).unwrap_or(u64::MAX)))
}
