//! CPU time of one evaluation on a large host: 64 processes with four threads and 20 ops each, whose histograms use all slots from a
//! microsecond to ten milliseconds and change at every tick. Fails above the bound.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing measurement may panic")]

use std::sync::Arc;
use std::time::Duration;

use gpucause_abi::hist::{Histogram, slot_of};
use gpucause_abi::op::{Class, OPS, OpId};
use gpucause_abi::record::{COMM_LEN, REASONS};
use gpucause_abi::snapshot::{
    CallSnapshot, Comm, DispatcherSnapshot, ProcessSnapshot, Snapshot, StallSnapshot, TimeAccount,
    Wait,
};
use gpucause_abi::state::{Phase, Reason};
use gpucause_abi::{Nanos, ProcId, Tgid, Tid};
use gpucause_engine::settings::Settings;
use gpucause_engine::{Engine, EngineInput};
use nix::time::{ClockId, clock_gettime};

/// Bound on the median.
const BOUND: Duration = Duration::from_millis(5);
const PROCESSES: u32 = 64;
const OPS_EACH: usize = 20;
const THREADS: u32 = 4;
const TICKS: u64 = 200;
const WINDOW: u64 = 2_000_000_000;

/// A histogram after this many windows with calls in every slot; longer ones are rarer.
fn histogram(windows: u64, calls: u64) -> Histogram {
    let slots = slot_of(Nanos(1_000))..slot_of(Nanos(10_000_000));
    let slots = slots.enumerate().map(|(index, slot)| {
        (u16::try_from(slot).unwrap(), windows * (1 + calls / (1 + (index * index) as u64)))
    });
    let sum = Nanos(windows * 300_000_000);
    Histogram { sum, max: Nanos(10_000_000), slots: slots.collect() }
}

fn account(windows: u64) -> TimeAccount {
    let mut account = TimeAccount::default();
    let cells = account.0.iter().flatten().count() as u64;
    account.0.iter_mut().flatten().for_each(|cell| cell.0 = windows * WINDOW / cells);
    account
}

fn process(id: u32, ops: &[OpId], windows: u64) -> ProcessSnapshot {
    let mut process =
        ProcessSnapshot::new(ProcId(id), Tgid(id), Comm(*b"train\0\0\0\0\0\0\0\0\0\0\0"));
    process.dispatches = true;
    for &op in ops {
        let (durations, stalled) = (histogram(windows, 9_000), histogram(windows, 90));
        process.calls.push(CallSnapshot { op, cold: false, nested: false, durations, stalled });
        let offcpu = [Nanos(windows * 30_000_000); REASONS];
        process.stalls.push(StallSnapshot {
            op,
            cold: false,
            nested: false,
            calls: windows * 90,
            offcpu,
        });
    }
    for thread in 0..THREADS {
        let time = account(windows);
        let tid = Tid(id * 100 + thread);
        process.dispatchers.push(DispatcherSnapshot {
            tid,
            wall: time.total(),
            time,
            inflight: None,
        });
        process.dispatcher_time.merge(&time);
    }
    process.launch_gap = histogram(windows, 9_000);
    for number in 0..50u8 {
        let mut name = [0; COMM_LEN];
        name[0] = b'a' + number % 26;
        let reason = Reason::ALL[usize::from(number) % REASONS];
        let phase = Phase::ALL[usize::from(number / 26)];
        let total = Nanos(windows * 1_000_000 * u64::from(number));
        process.waits.push(Wait { phase, ..Wait::host(reason, Comm(name), total) });
    }
    process
}

/// CPU time of this thread: other load on the machine does not count.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

fn main() {
    let busy = [Class::Launch, Class::Memcpy, Class::Alloc, Class::Sync, Class::Graph];
    let ops: Vec<_> = busy
        .iter()
        .flat_map(|&class| {
            let of_class = move |id: &OpId| OPS[usize::from(id.0)].class == class;
            OpId::all().filter(of_class).take(OPS_EACH / busy.len())
        })
        .collect();
    assert_eq!(ops.len(), OPS_EACH);
    let mut engine = Engine::new(Settings::default());
    let mut took = Vec::new();
    for windows in 1..=TICKS {
        let processes = (1..=PROCESSES).map(|id| process(id, &ops, windows)).collect();
        let taken_at = Nanos(windows * WINDOW);
        let snapshot = Arc::new(Snapshot { taken_at, processes, ..Snapshot::default() });
        let input = EngineInput::new(snapshot, windows as f64 * 2.0);
        let start = cpu_time();
        engine.evaluate(&input);
        took.push(cpu_time() - start);
    }
    took.drain(..10);
    took.sort_unstable();
    let median = took[took.len() / 2];
    let slots = histogram(1, 1).slots.iter().count();
    println!(
        "evaluation of {PROCESSES} processes with {OPS_EACH} ops with {slots} slots: median {median:?}, p99 {:?}; {} chains",
        took[took.len() * 99 / 100],
        engine.chains().len()
    );
    assert!(median <= BOUND, "more than {BOUND:?}");
}
