//! Invariants that hold for any accounts.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use gpucause_abi::hist::{Histogram, SLOTS};
use gpucause_abi::op::{CopyKind, OPS, OpId};
use gpucause_abi::snapshot::{
    CallSnapshot, DispatcherSnapshot, ProcessSnapshot, Snapshot, StallSnapshot, TimeAccount, Wait,
};
use gpucause_abi::state::{Phase, Reason, Relation, State};
use gpucause_abi::{Nanos, ProcId, Tgid, Tid};
use gpucause_engine::settings::Settings;
use gpucause_engine::{Engine, EngineInput};
use proptest::collection::vec as some;
use proptest::prelude::*;

use crate::process::comm;
use crate::sentences::numbers_are_evidence;

/// Any number, often near zero, a window or the maximum.
fn amount() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 0..10u64,
        6 => 0..4_000_000_000u64,
        1 => (u64::MAX - 1_000)..=u64::MAX,
        1 => any::<u64>(),
    ]
}

fn nanos() -> impl Strategy<Value = Nanos> {
    amount().prop_map(Nanos)
}

fn histogram() -> impl Strategy<Value = Histogram> {
    let slots = prop::collection::btree_map(0..u16::try_from(SLOTS).unwrap(), amount(), 0..8);
    (nanos(), nanos(), slots).prop_map(|(sum, max, slots)| Histogram {
        sum,
        max,
        slots: slots.into_iter().filter(|&(_, count)| count > 0).collect(),
    })
}

fn account() -> impl Strategy<Value = TimeAccount> {
    some((0..8usize, 0..State::COUNT, amount()), 0..6).prop_map(|cells| {
        let mut account = TimeAccount::default();
        for (phase, state, time) in cells {
            account.0[phase][state] = Nanos(time);
        }
        account
    })
}

/// The outermost call of a thread; some have not returned for minutes.
fn inflight() -> impl Strategy<Value = Option<(OpId, Nanos)>> {
    let call = (0..OPS.len() as u16, 0..1_000_000_000_000u64);
    prop::option::weighted(0.2, call.prop_map(|(op, age)| (OpId(op), Nanos(age))))
}

/// Time that a worker computes in a window, often without a pause.
fn worker_time() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(2_000_000_000u64), 1 => 0..2_000_000_000u64]
}

fn thread() -> impl Strategy<Value = DispatcherSnapshot> {
    let inflight = prop::option::of((0..OPS.len() as u16 + 2, nanos()));
    (0..3u32, account(), inflight, nanos()).prop_map(|(tid, time, inflight, wall)| {
        let inflight = inflight.map(|(op, age)| (OpId(op), age));
        let wall = if wall.0 % 4 == 0 { wall } else { time.total() };
        DispatcherSnapshot { tid: Tid(tid), wall, time, inflight }
    })
}

fn calls() -> impl Strategy<Value = (CallSnapshot, StallSnapshot)> {
    let op = prop_oneof![Just(0u16), 0..OPS.len() as u16 + 2];
    let offcpu =
        prop::collection::vec(nanos(), Reason::COUNT).prop_map(|own| own.try_into().unwrap());
    (op, any::<bool>(), histogram(), histogram(), offcpu).prop_map(
        |(op, cold, durations, stalled, offcpu)| {
            let op = OpId(op);
            let stall = StallSnapshot { op, cold, nested: false, calls: stalled.count(), offcpu };
            (CallSnapshot { op, cold, nested: false, durations, stalled }, stall)
        },
    )
}

fn wait() -> impl Strategy<Value = Wait> {
    let tid = prop::option::of((0..3u32).prop_map(Tid));
    (tid, 0..Reason::COUNT as u8, 0..8u8, 0..4u8, nanos(), nanos(), prop::option::of(0..9u32))
        .prop_map(|(tid, reason, phase, relation, total, held, tgid)| Wait {
            tid,
            reason: Reason::from_raw(reason).unwrap(),
            phase: Phase::from_raw(phase).unwrap(),
            relation: Relation::from_raw(relation).unwrap(),
            on: comm(["a", "b", "c"][usize::from(reason) % 3]),
            tgid: tgid.map(Tgid),
            total,
            held,
            behind: held,
            holder: None,
            lock: None,
            syscall: None,
        })
}

fn process(id: u32) -> impl Strategy<Value = ProcessSnapshot> {
    let counts = (some(calls(), 0..4), some(thread(), 0..3), some(wait(), 0..4), account());
    let rest = (prop::option::of(thread()), histogram(), some((histogram(), 0..6u16), 0..3));
    let life = (nanos(), prop::option::weighted(0.1, nanos()), prop::bool::weighted(0.9));
    let other = (amount(), amount(), prop::option::of((0..3u32, 0..4u32)));
    (counts, rest, life, other).prop_map(move |(counts, rest, life, other)| {
        let mut process = ProcessSnapshot::new(ProcId(id), Tgid(id % 2), comm("p"));
        (process.calls, process.stalls) = counts.0.into_iter().unzip();
        (process.dispatchers, process.waits) = (counts.1, counts.2);
        process.dispatcher_time = counts.3;
        for thread in &process.dispatchers {
            process.dispatcher_time.merge(&thread.time);
        }
        (process.worker, process.launch_gap) = (rest.0.map(Box::new), rest.1);
        let copies = rest.2.into_iter();
        process.copies = copies.map(|(hist, class)| (CopyKind::D2h, class, hist)).collect();
        (process.first_seen, process.ended, process.dispatches) = life;
        process.parent = (id > 0).then_some(ProcId(0));
        (process.memory.allocated, process.memory.freed, process.rank) = other;
        process.measures.ended_waits = process.launch_gap.sum;
        process
    })
}

/// Unrelated snapshots at any time, usually forwards.
fn snapshots() -> impl Strategy<Value = Vec<(u64, Vec<ProcessSnapshot>)>> {
    let step = prop_oneof![4 => Just(2_000_000_000u64), 1 => amount()];
    let processes = (process(0), process(1), process(2), 0..8u8).prop_map(|(a, b, c, which)| {
        let all = [a, b, c].into_iter().enumerate();
        all.filter(|(index, _)| which & (1 << index) != 0 || which > 4).map(|(_, p)| p).collect()
    });
    some((step, processes), 2..14)
}

/// Evaluates everything from the first tick on.
fn eager() -> Settings {
    Settings {
        warm_up_seconds: 1e-9,
        min_calls: 1,
        min_spread: 1.0,
        min_launch_p99_seconds: 1e-9,
        explained_share: 0.1,
        leak_seconds: 4.0,
        leak_bytes: 1,
        ..Settings::default()
    }
}

fn tick(engine: &mut Engine, at: u64, processes: Vec<ProcessSnapshot>) {
    let ids: Vec<_> = processes.iter().map(|process| process.id).collect();
    let snapshot = Snapshot { taken_at: Nanos(at), processes, ..Snapshot::default() };
    let mut input = EngineInput::new(Arc::new(snapshot), at as f64 / 1e9);
    input.throttled_gpus = HashMap::from([("g".to_owned(), f64::NAN), ("h".to_owned(), 7.0)]);
    // A limit explains what preemption would: not for all of them.
    let limited = ids.into_iter().filter(|id| id.0 == 1);
    input.throttled_cgroups = limited.map(|id| (id, Nanos(at))).collect();
    engine.evaluate(&input);
}

fn chains_are_sane(engine: &Engine, wall: f64) {
    let chains = engine.chains();
    let ids: HashSet<_> = chains.iter().map(|chain| &chain.id).collect();
    assert_eq!(ids.len(), chains.len());
    for chain in chains {
        assert!((0.0..=1.0).contains(&chain.explained), "{chain:?}");
        let (attributed, lost) = (chain.attributed_seconds(), chain.lost_seconds);
        assert!((0.0..=wall * 1.000_001).contains(&attributed), "{wall} {chain:?}");
        assert!((0.0..=attributed * 1.000_001).contains(&lost), "{chain:?}");
        assert!(chain.first_seen <= chain.last_seen, "{chain:?}");
        numbers_are_evidence(chain);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn nonsense_makes_no_panic_and_no_more_loss_than_there_was_time(
        snapshots in snapshots(),
        eagerly in any::<bool>(),
    ) {
        let mut engine = Engine::new(if eagerly { eager() } else { Settings::default() });
        let (mut now, mut first, mut latest) = (1_000_000_000_000u64, None, 0);
        let (mut chains, mut stalls) = (HashMap::<String, (f64, f64)>::new(), HashMap::new());
        for (step, processes) in snapshots {
            // A step above a day goes back.
            let back = step > 86_400_000_000_000;
            now = if back { now.saturating_sub(step >> 40) } else { now.saturating_add(step) };
            let first = *first.get_or_insert(now);
            latest = now.max(latest);
            let present: HashSet<_> = processes.iter().map(|process| process.id).collect();
            tick(&mut engine, now, processes);
            // A process may have begun half a second before a snapshot that it is not in.
            chains_are_sane(&engine, (latest.max(first) - first) as f64 / 1e9 + 7.0);
            for chain in engine.chains() {
                let both = (chain.attributed_seconds(), chain.lost_seconds);
                let before = chains.insert(chain.id.clone(), both).unwrap_or_default();
                prop_assert!(before.0 <= both.0 && before.1 <= both.1);
            }
            stalls.retain(|(process, _), _| present.contains(process));
            for stall in engine.stalls() {
                let both = (stall.attributed, stall.lost);
                let before = stalls.insert((stall.process, stall.cause), both).unwrap_or_default();
                prop_assert!(before.0 <= both.0 && before.1 <= both.1);
            }
        }
    }

    #[test]
    fn proven_loss_is_at_most_what_the_account_lost_and_attributed_time_at_most_the_wall_time(
        steps in some((account(), some(wait(), 0..3), calls(), inflight(), worker_time()), 4..20),
    ) {
        let mut engine = Engine::new(eager());
        let mut process = ProcessSnapshot::new(ProcId(1), Tgid(7), comm("p"));
        process.dispatches = true;
        process.first_seen = Nanos(1);
        let wall = Nanos(0);
        let time = TimeAccount::default();
        process.dispatchers = vec![DispatcherSnapshot { tid: Tid(7), wall, time, inflight: None }];
        let mut worker = ProcessSnapshot::new(ProcId(2), Tgid(8), comm("w"));
        worker.parent = Some(ProcId(1));
        worker.worker = Some(Box::new(DispatcherSnapshot { tid: Tid(8), wall, time, inflight: None }));
        let (mut now, mut causes) = (5_000_000_000u64, HashMap::new());
        tick(&mut engine, now, vec![process.clone(), worker.clone()]);
        for (account, waits, (call, stall), inflight, worked) in steps {
            now += 2_000_000_000;
            let thread = &mut process.dispatchers[0];
            // The window's time, cut in the parts that were drawn.
            let all = account.total().0.max(1) as f64;
            for (cell, part) in thread.time.0.iter_mut().flatten().zip(account.0.iter().flatten()) {
                cell.0 += Nanos(2_000_000_000).share(part.0 as f64 / all).0;
            }
            thread.wall = thread.time.total();
            thread.inflight = inflight;
            process.dispatcher_time = thread.time;
            process.waits = waits;
            (process.calls, process.stalls) = (vec![call], vec![stall]);
            worker.measures.ended_waits.0 += 1;
            let own = worker.worker.as_mut().unwrap();
            own.time.0[Phase::Host as usize][State::Running.index()].0 += worked;
            own.wall.0 += worked;
            tick(&mut engine, now, vec![process.clone(), worker.clone()]);
            let wall = (now - 5_000_000_000) as f64 / 1e9;
            chains_are_sane(&engine, wall);
            for stall in engine.stalls().filter(|stall| stall.process == ProcId(1)) {
                let both = (stall.attributed, stall.lost);
                let before = causes.insert(stall.cause, both).unwrap_or_default();
                prop_assert!(before.0 <= both.0 && before.1 <= both.1);
                prop_assert!(both.1 <= both.0);
            }
            let attributed: f64 = causes.values().map(|both| both.0.as_secs_f64()).sum();
            prop_assert!(attributed <= wall * 1.000_001, "{causes:?} in {wall} s");
            let lost: u64 = causes.values().map(|both| both.1.0).sum();
            let account = process.dispatcher_time.all_lost();
            prop_assert!(lost <= account.0, "{causes:?} of {account:?}");
        }
    }
}

#[test]
fn an_engine_that_sees_nothing_says_nothing() {
    let mut engine = Engine::new(eager());
    for at in 1..20 {
        tick(&mut engine, at, Vec::new());
    }
    assert!(engine.chains().is_empty());
    assert_eq!((engine.counts().len(), engine.stalls().len()), (0, 0));
}
