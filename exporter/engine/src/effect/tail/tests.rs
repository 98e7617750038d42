use super::*;
use crate::baseline::ProcessBaseline;
use gpucause_abi::hist::Histogram;
use gpucause_abi::op::{LaunchOps, op_of_symbol};
use gpucause_abi::snapshot::{CallSnapshot, Comm, ProcessSnapshot, StallSnapshot};
use gpucause_abi::{ProcId, Tgid};
use proptest::prelude::*;

use crate::settings::Severities;

/// The effect of calls of this op, some of them far slower than the others.
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
    let found: Vec<_> = effects
        .into_iter()
        .filter_map(|e| worst(&delta, None, e, settings, &mut Buffers::default()))
        .collect();
    assert!(found.len() <= 1, "{found:?}");
    found.first().map(|measured| measured.effect)
}

#[test]
fn the_settings_say_which_ops_have_launch_tails() {
    let usual = Settings::default();
    assert_eq!(effect("cudaLaunchKernel", &usual), Some(Effect::LaunchTail));
    assert_eq!(effect("cudaMemcpyAsync", &usual), Some(Effect::CopyTail));
    assert_eq!(effect("cudaGraphLaunch", &usual), None);
    let launch_ops: LaunchOps = [op_of_symbol("cudaMemcpyAsync").unwrap()].into_iter().collect();
    let settings = Settings { launch_ops, ..Settings::default() };
    assert_eq!(effect("cudaMemcpyAsync", &settings), Some(Effect::LaunchTail));
    assert_eq!(effect("cudaLaunchKernel", &settings), None);
}

/// Ops with tails of every effect.
const TAILED: [&str; 7] = [
    "cudaLaunchKernel",
    "cuLaunchKernel",
    "cudaLaunchCooperativeKernel",
    "cudaMemcpyAsync",
    "cudaMemcpy",
    "cudaMalloc",
    "cudaGraphLaunch",
];

/// Increase of one op's accounts by its calls.
#[derive(Debug, Clone, Default)]
struct Added {
    durations: Histogram,
    stalled: Histogram,
    offcpu: [Nanos; REASONS],
}

fn added() -> impl Strategy<Value = Added> {
    let slot = prop_oneof![100u16..140, 130u16..360];
    let slots = prop::collection::btree_map(slot, (1u64..3_000, any::<bool>()), 0..12);
    let offcpu = prop::array::uniform((0u64..1_000_000_000).prop_map(Nanos));
    (slots, offcpu, 0u64..4).prop_map(|(slots, offcpu, less)| {
        let of = |wanted: fn(bool) -> bool| {
            let own = slots.iter().filter(|&(_, &(_, stalls))| wanted(stalls));
            let own = own.map(|(&slot, &(count, _))| (slot, count));
            let (mut sum, mut max) = (0, 0);
            for (slot, count) in own.clone() {
                max = slot_upper(usize::from(slot)).0;
                sum += max * count;
            }
            Histogram { sum: Nanos(sum - sum / 8 * less), max: Nanos(max), slots: own.collect() }
        };
        Added { durations: of(|_| true), stalled: of(|stalls| stalls), offcpu }
    })
}

/// Three successive snapshots of a process. Some ops have equal durations, some calls are first launches.
fn process() -> impl Strategy<Value = [ProcessSnapshot; 3]> {
    let times = prop::array::uniform3(added());
    let call = (0..TAILED.len(), prop::bool::weighted(0.1), times, prop::bool::weighted(0.3));
    prop::collection::vec(call, 1..9).prop_map(|calls| {
        let empty = ProcessSnapshot::new(ProcId(1), Tgid(1), Comm([b'x'; 16]));
        let mut all = [empty.clone(), empty.clone(), empty];
        let mut before: Option<[Added; 3]> = None;
        for (op, cold, mut times, same_as_previous) in calls {
            let op = op_of_symbol(TAILED[op]).unwrap();
            // Equal excess, other off-CPU time: it matters which of the two is reported.
            if let Some(before) = before.take().filter(|_| same_as_previous) {
                for (own, before) in times.iter_mut().zip(before) {
                    (own.durations, own.stalled) = (before.durations, before.stalled);
                }
            }
            before = Some(times.clone());
            let known = |process: &ProcessSnapshot| {
                process.calls.iter().any(|call| (call.op, call.cold) == (op, cold))
            };
            if known(&all[0]) {
                continue;
            }
            let mut sum = Added::default();
            for (process, added) in all.iter_mut().zip(times) {
                sum.durations.merge(&added.durations);
                sum.stalled.merge(&added.stalled);
                for (all, own) in sum.offcpu.iter_mut().zip(added.offcpu) {
                    all.0 += own.0;
                }
                let Added { durations, stalled, offcpu } = sum.clone();
                let calls = stalled.count();
                process.calls.push(CallSnapshot { op, cold, nested: false, durations, stalled });
                process.stalls.push(StallSnapshot { op, cold, nested: false, calls, offcpu });
            }
        }
        all
    })
}

/// The worst tail by definition, without shortcuts.
fn plain_worst(
    (before, now): (Option<&ProcessSnapshot>, &ProcessSnapshot),
    latest: Option<&ProcessSnapshot>,
    wall: Nanos,
    effect: Effect,
    settings: &Settings,
) -> Option<Measured> {
    let tails = now.calls.iter().enumerate().filter_map(|(index, call)| {
        let class = call.op.op()?.class;
        if call.cold || effect_of(call.op, class, settings) != Some(effect) {
            return None;
        }
        let since = |before: Option<&ProcessSnapshot>, of: fn(&CallSnapshot) -> &Histogram| {
            let before = before.map(|before| of(&before.calls[index]));
            before.map_or_else(|| of(call).clone(), |before| of(call).since(before))
        };
        let durations = since(before, |call| &call.durations);
        let stalled = since(before, |call| &call.stalled);
        let (p50, p99) = (durations.quantile(0.5)?, durations.quantile(0.99)?);
        let slow_from = Nanos(p50.0 * SLOW_FACTOR);
        if durations.count() < settings.min_calls {
            return None;
        }
        if latest.is_some() {
            let late = since(latest, |call| &call.durations);
            if late.count() >= settings.min_calls || late.max < slow_from || late.count() == 0 {
                return None;
            }
        }
        let excess_of = |values: &Histogram| {
            let slow = values.slots.iter().filter(|&(s, _)| slot_lower(s.into()) >= slow_from);
            slow.fold((0, Nanos(0)), |(count, excess), (slot, calls)| {
                let low = slot_lower(slot.into()).0;
                let high = slot_upper(slot.into()).0.min(values.max.0.max(low));
                (count + calls, Nanos(excess.0 + calls * (low.midpoint(high) - p50.0)))
            })
        };
        let (slow_calls, excess) = excess_of(&durations);
        let excess = excess.min(durations.sum);
        let in_stalled = excess_of(&stalled).1.min(stalled.sum).min(excess);
        let usual = durations.since(&stalled).quantile(0.5).map(slot_of);
        let shortest = stalled.slots.iter().next().map_or(0, |(slot, _)| usize::from(slot));
        let usual = slot_lower(usual.unwrap_or(shortest));
        let fast = stalled.slots.iter().filter(|&(s, _)| slot_lower(s.into()) < slow_from);
        let in_fast = total(fast.map(|(slot, calls)| {
            Nanos(slot_upper(slot.into()).min(stalled.max).less(usual).0 * calls)
        }));
        let mut offcpu = now.stalls[index].offcpu;
        if let Some(before) = before {
            for (time, before) in offcpu.iter_mut().zip(before.stalls[index].offcpu) {
                *time = time.less(before);
            }
        }
        let all = total(offcpu.into_iter());
        let part = u128::from(all.less(in_fast).min(in_stalled).0);
        let scaled = |time: Nanos| u128::from(time.0) * part / u128::from(all.0.max(1));
        let offcpu = offcpu.map(|time| Nanos(u64::try_from(scaled(time)).unwrap()));
        let spread = ratio(p99, p50);
        let spreads =
            spread >= settings.min_spread && p99.as_secs_f64() >= settings.min_launch_p99_seconds;
        let is_heavy = ratio(excess, wall) >= settings.severities.medium
            && ratio(total(offcpu.into_iter()), excess) >= MIN_OFF_CPU;
        if !spreads && (effect != Effect::LaunchTail || !is_heavy) {
            return None;
        }
        let mut evidence = Evidence::default().with("p50_seconds", p50.as_secs_f64());
        if spreads {
            evidence = evidence.with("p99_seconds", p99.as_secs_f64()).with("spread", spread);
        }
        Some(Measured {
            effect,
            excess,
            offcpu,
            phases: Phases::Only(class.phase()),
            tid: None,
            long: latest.is_some(),
            evidence: evidence
                .with("calls", durations.count() as f64)
                .with("slow_calls", slow_calls as f64)
                .with("excess_seconds", excess.as_secs_f64()),
        })
    });
    tails.max_by_key(|tail| tail.excess)
}

proptest! {
    #[test]
    fn the_search_for_the_worst_tail_finds_the_same_as_its_definition(
        process in process(),
        began in any::<bool>(),
        min_calls in prop_oneof![Just(1u64), 1u64..10_000],
        min_spread in prop_oneof![1.0f64..20.0, Just(1e6)],
        medium in 0.0f64..=1.0,
    ) {
        let severities = Severities { medium, ..Severities::default() };
        let settings =
            Settings { min_calls, min_spread, severities, ..Settings::default() };
        let [first, second, third] = &process;
        let before = began.then_some(first);
        let wall = Nanos(2_000_000_000);
        let [kept_first, kept_second] = [first, second].map(|own| ProcessBaseline::new(own, None));
        let short = Delta::between(Some(&kept_second), third, wall);
        let long = Delta::between(began.then_some(&kept_first), third, wall);
        let mut buffers = Buffers::default();
        for effect in [Effect::LaunchTail, Effect::CopyTail, Effect::AllocTail] {
            let found = worst(&long, None, effect, &settings, &mut buffers);
            let plain = plain_worst((before, third), None, wall, effect, &settings);
            prop_assert_eq!(found, plain);
            let found = worst(&long, Some(&short), effect, &settings, &mut buffers);
            let plain = plain_worst((before, third), Some(second), wall, effect, &settings);
            prop_assert_eq!(found, plain);
        }
    }
}
