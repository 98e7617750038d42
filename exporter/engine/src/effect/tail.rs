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

/// How many times the median a call takes at least that counts as slow.
const SLOW: u64 = 4;

/// Tails of launches, copies and allocations; of each the op with the largest excess.
pub(super) fn measure(subject: &Subject<'_>, settings: &Settings) -> Vec<Measured> {
    [Effect::LaunchTail, Effect::CopyTail, Effect::AllocTail]
        .into_iter()
        .filter_map(|effect| {
            let short = worst(&subject.short, None, effect, settings);
            let latest = Some(&subject.short);
            short.or_else(|| worst(&subject.long, latest, effect, settings))
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

/// The worst tail of a window; of a longer one among the ops that had calls in the `latest`, a slow one too, but too few to
/// judge them on.
fn worst(
    delta: &Delta<'_>,
    latest: Option<&Delta<'_>>,
    effect: Effect,
    settings: &Settings,
) -> Option<Measured> {
    let tails = delta.calls.iter().filter(|call| !call.cold).filter_map(|call| {
        let class = call.op.op()?.class;
        if effect_of(call.op, class, settings) != Some(effect) {
            return None;
        }
        let same = |now: &&CallDelta<'_>| (now.op, now.cold) == (call.op, call.cold);
        let of_late = match latest {
            None => None,
            Some(latest) => {
                let few = |now: &&CallDelta<'_>| now.count() < settings.min_calls;
                Some(latest.calls.iter().find(same).filter(few)?)
            }
        };
        let phases = Phases::Only(class.phase());
        tail(delta, call, of_late, effect, settings).map(|tail| Measured { phases, ..tail })
    });
    let mut worst = tails.max_by_key(|tail| tail.excess)?;
    worst.long = latest.is_some();
    Some(worst)
}

fn tail(
    delta: &Delta<'_>,
    call: &CallDelta<'_>,
    of_late: Option<&CallDelta<'_>>,
    effect: Effect,
    settings: &Settings,
) -> Option<Measured> {
    let durations = call.durations();
    let calls = call.count();
    if calls < settings.min_calls {
        return None;
    }
    let (p50, p99) = (durations.quantile(0.5)?, durations.quantile(0.99)?);
    let spread = ratio(p99, p50);
    let slow_from = Nanos(p50.0.saturating_mul(SLOW));
    if of_late.is_some_and(|now| now.durations().max < slow_from) {
        return None;
    }
    let spreads =
        spread >= settings.min_spread && p99.as_secs_f64() >= settings.min_launch_p99_seconds;
    let (all_count, all) = beyond(durations, p50, slow_from);
    // Asked before the calls that were off the CPU are looked at: most of all windows end here.
    if !spreads && (effect != Effect::LaunchTail || !is_heavy(delta, all, settings)) {
        return None;
    }
    let (_, stalled) = beyond(call.stalled(), p50, slow_from);
    let offcpu = in_slow_calls(call, slow_from, stalled.min(all));
    let mut evidence = Evidence::default().with("p50_seconds", p50.as_secs_f64());
    if spreads {
        evidence = evidence.with("p99_seconds", p99.as_secs_f64()).with("spread", spread);
    } else if ratio(total(offcpu.iter().copied()), all) < settings.explained_share {
        return None;
    }
    Some(Measured {
        effect,
        excess: all,
        offcpu,
        phases: Phases::Feeding,
        tid: None,
        long: false,
        evidence: evidence
            .with("calls", calls as f64)
            .with("slow_calls", all_count as f64)
            .with("excess_seconds", all.as_secs_f64()),
    })
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
    let low = |slot: u16| slot_lower(usize::from(slot));
    let first = durations.slots.partition_point(|&(slot, _)| low(slot) < slow_from);
    for &(slot, calls) in &durations.slots[first..] {
        let (low, high) = (low(slot), slot_upper(usize::from(slot)));
        count = count.saturating_add(calls);
        let middle = low.0.midpoint(high.0.min(durations.max.0.max(low.0)));
        excess = excess.saturating_add(calls.saturating_mul(middle.saturating_sub(usual.0)));
    }
    (count, Nanos(excess.min(durations.sum.0)))
}

/// Off-CPU time of the calls that were slow: not more than their excess, and without what the others that were off the CPU
/// took beyond a call that was not.
fn in_slow_calls(call: &CallDelta<'_>, slow_from: Nanos, excess: Nanos) -> [Nanos; REASONS] {
    let unstalled = call.durations().without(call.stalled()).quantile(0.5);
    let shortest = call.stalled().slots.first().map_or(0, |&(slot, _)| usize::from(slot));
    let usual = slot_lower(unstalled.map_or(shortest, slot_of));
    let fast = call.stalled().slots.iter().map(|&(slot, calls)| (usize::from(slot), calls));
    let fast = fast.filter(|&(slot, _)| slot_lower(slot) < slow_from);
    let in_fast = total(fast.map(|(slot, calls)| {
        let upper = slot_upper(slot).min(call.stalled().max);
        Nanos(upper.less(usual).0.saturating_mul(calls))
    }));
    let all = total(call.offcpu.into_iter());
    let part = all.less(in_fast).min(excess);
    let scaled = |time: Nanos| u128::from(time.0) * u128::from(part.0) / u128::from(all.0.max(1));
    call.offcpu.map(|time| Nanos(u64::try_from(scaled(time)).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpucause_abi::hist::Histogram;
    use gpucause_abi::op::{LaunchOps, op_of_symbol};
    use gpucause_abi::snapshot::{CallSnapshot, Comm, ProcessSnapshot};
    use gpucause_abi::{ProcId, Tgid};

    /// The effect of calls of this op of which a few take far longer than the others.
    fn effect(op: &str, settings: &Settings) -> Option<Effect> {
        let slot = |ns| u16::try_from(slot_of(Nanos(ns))).unwrap();
        let slots = vec![(slot(10_000), 900), (slot(5_000_000), 100)].into();
        let durations = Histogram { sum: Nanos(510_000_000), max: Nanos(5_000_000), slots };
        let process = ProcessSnapshot {
            calls: vec![CallSnapshot::unstalled(op_of_symbol(op).unwrap(), false, durations)],
            ..ProcessSnapshot::new(ProcId(1), Tgid(1), Comm([b'x'; 16]))
        };
        let delta = Delta::between(None, &process, Nanos(2_000_000_000));
        let effects = [Effect::LaunchTail, Effect::CopyTail, Effect::AllocTail];
        let found: Vec<_> =
            effects.into_iter().filter_map(|e| worst(&delta, None, e, settings)).collect();
        assert!(found.len() <= 1, "{found:?}");
        found.first().map(|measured| measured.effect)
    }

    #[test]
    fn the_settings_say_which_ops_have_launch_tails() {
        let usual = Settings::default();
        assert_eq!(effect("cudaLaunchKernel", &usual), Some(Effect::LaunchTail));
        assert_eq!(effect("cudaMemcpyAsync", &usual), Some(Effect::CopyTail));
        assert_eq!(effect("cudaGraphLaunch", &usual), None);
        let launch_ops: LaunchOps =
            [op_of_symbol("cudaMemcpyAsync").unwrap()].into_iter().collect();
        let settings = Settings { launch_ops, ..Settings::default() };
        assert_eq!(effect("cudaMemcpyAsync", &settings), Some(Effect::LaunchTail));
        assert_eq!(effect("cudaLaunchKernel", &settings), None);
    }
}
