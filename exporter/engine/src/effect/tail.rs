//! Calls that are far slower than the others of their op.
//!
//! The excess is the time beyond the median, summed over slow calls. Off-CPU time explains the excess only of calls that were off the
//! CPU, which the kernel side keeps in a histogram of their own. The off-CPU time that calls which were not slow can have had is
//! subtracted. First launches of a kernel are excluded.

use gpucause_abi::Nanos;
use gpucause_abi::hist::{slot_lower, slot_of, slot_upper};
use gpucause_abi::op::{Class, OpId};
use gpucause_abi::record::REASONS;

use crate::chain::{Effect, Evidence};
use crate::context::{Measured, Process};
use crate::delta::{CallDelta, Delta, Values};
use crate::phases::Phases;
use crate::settings::Settings;
use crate::times::{ratio, total};

/// Share of the excess that must be off the CPU if fewer than one call in a hundred is slow.
const MIN_OFF_CPU: f64 = 0.5;
/// A call is slow from this multiple of the median.
const SLOW_FACTOR: u64 = 4;

/// Tails of launches, copies and allocations: for each the op with the largest excess.
pub(super) fn measure(process: &Process<'_>, settings: &Settings) -> Vec<Measured> {
    let mut buffers = Buffers::default();
    [Effect::LaunchTail, Effect::CopyTail, Effect::AllocTail]
        .into_iter()
        .filter_map(|effect| {
            let short = worst(&process.short, None, effect, settings, &mut buffers);
            let latest = Some(&process.short);
            short.or_else(|| worst(&process.long, latest, effect, settings, &mut buffers))
        })
        .collect()
}

/// The effect of a tail of this op. Graph launches have none: their duration depends on the size of the graph.
fn effect_of(id: OpId, class: Class, settings: &Settings) -> Option<Effect> {
    match class {
        Class::Graph => None,
        _ if settings.launch_ops.contains(id) => Some(Effect::LaunchTail),
        Class::Memcpy => Some(Effect::CopyTail),
        Class::Alloc => Some(Effect::AllocTail),
        _ => None,
    }
}

/// Buffers for histograms, reused for each op.
#[derive(Default)]
struct Buffers {
    /// Durations of the current op.
    durations: Values,
    stalled: Values,
    /// Durations of the worst op so far.
    worst: Values,
}

/// A tail of one op.
struct Tail<'d, 'a> {
    call: &'d CallDelta<'a>,
    p50: Nanos,
    p99: Nanos,
    /// True if the quantiles alone make it a tail; otherwise off-CPU time must.
    spreads: bool,
    slow_from: Nanos,
    slow_calls: u64,
    excess: Nanos,
    /// Off-CPU time in the slow calls, computed on first use.
    offcpu: Option<[Nanos; REASONS]>,
}

/// The worst tail of a window, the last of equal ones. In the long window only ops count that had a slow call in the `latest`, but
/// fewer than `min_calls` calls.
///
/// Ops are evaluated by decreasing total time, an upper bound of the excess, so that the search can stop early. Off-CPU time is
/// computed only where it decides, and for the worst.
fn worst(
    delta: &Delta<'_>,
    latest: Option<&Delta<'_>>,
    effect: Effect,
    settings: &Settings,
    buffers: &mut Buffers,
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
        let Some(mut tail) = Tail::of(call, settings, &mut buffers.durations) else { continue };
        if least > Some((tail.excess, index)) || !tail.may_count(delta, effect, settings) {
            continue;
        }
        if latest
            .is_some_and(|latest| !is_slow_in(latest, call, tail.slow_from, &mut buffers.stalled))
        {
            continue;
        }
        if !tail.spreads {
            let offcpu = tail.offcpu(&buffers.durations, &mut buffers.stalled);
            if ratio(total(offcpu.into_iter()), tail.excess) < MIN_OFF_CPU {
                continue;
            }
        }
        std::mem::swap(&mut buffers.durations, &mut buffers.worst);
        worst = Some((index, tail));
    }
    let (_, mut tail) = worst?;
    let class = tail.call.op.op()?.class;
    let offcpu = tail.offcpu(&buffers.worst, &mut buffers.stalled);
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

/// Returns true if the latest window had calls of this kind, but fewer than `min_calls`.
fn is_rare(latest: &Delta<'_>, call: &CallDelta<'_>, settings: &Settings) -> bool {
    same_in(latest, call).is_some_and(|now| now.count() < settings.min_calls)
}

/// Returns true if a call of this kind was slow in the latest window.
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
    /// The tail of these calls, whose durations are read into `durations`.
    fn of(call: &'d CallDelta<'a>, settings: &Settings, durations: &mut Values) -> Option<Self> {
        call.durations_into(durations);
        let (p50, p99) = (durations.quantile(0.5)?, durations.quantile(0.99)?);
        let spreads = ratio(p99, p50) >= settings.min_spread
            && p99.as_secs_f64() >= settings.min_launch_p99_seconds;
        let slow_from = Nanos(p50.0.saturating_mul(SLOW_FACTOR));
        let (slow_calls, excess) = beyond(durations, p50, slow_from);
        Some(Self { call, p50, p99, spreads, slow_from, slow_calls, excess, offcpu: None })
    }

    /// Returns true if it is a tail, provided that the off-CPU time suffices. This rejects most windows.
    fn may_count(&self, delta: &Delta<'_>, effect: Effect, settings: &Settings) -> bool {
        self.spreads || (effect == Effect::LaunchTail && is_heavy(delta, self.excess, settings))
    }

    /// Off-CPU time in the slow calls.
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

/// Returns true if slow calls cost at least severity medium. A time slice rarely ends within a launch of a few microseconds, but then
/// the launch waits for thousands of times its duration: slow launches that were off the CPU are a tail even below one in a hundred.
fn is_heavy(delta: &Delta<'_>, excess: Nanos, settings: &Settings) -> bool {
    ratio(excess, delta.wall) >= settings.severities.medium
}

/// Number of calls of at least `slow_from`, and their time beyond `usual`, estimated from slot centres and bounded by the sum.
fn beyond(durations: &Values, usual: Nanos, slow_from: Nanos) -> (u64, Nanos) {
    let (mut count, mut time) = (0u64, 0u128);
    let first = first_from(slow_from).max(durations.used().start);
    let mut low = slot_lower(first).0;
    for (slot, &calls) in (first..).zip(durations.counts(first..usize::MAX)) {
        let above = slot_lower(slot + 1).0;
        count = count.saturating_add(calls);
        let middle = low.midpoint((above - 1).min(durations.max.0.max(low)));
        time += u128::from(calls) * u128::from(middle);
        low = above;
    }
    let excess = time.saturating_sub(u128::from(count) * u128::from(usual.0));
    (count, Nanos(u64::try_from(excess).unwrap_or(u64::MAX)).min(durations.sum))
}

/// The first slot whose values are all at least `bound`.
fn first_from(bound: Nanos) -> usize {
    let slot = slot_of(bound);
    if slot_lower(slot) < bound { slot + 1 } else { slot }
}

/// The part of the calls' off-CPU time that was in slow calls: at most their excess, and without the time that fast calls which were
/// off the CPU took beyond those which were not.
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
