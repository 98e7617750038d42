//! Times the encoding of a page of 64 processes x 20 ops, or as many processes as are asked for, with every slot of each histogram
//! in use and with those of four powers of two, as of calls of one kind: `cargo run --release --example encode_cost [PROCESSES]`.

use gpucause::collector::Collectors;
use gpucause_abi::hist::Histogram;
use gpucause_abi::op::OpId;
use gpucause_abi::record::{COMM_LEN, REASONS};
use gpucause_abi::snapshot::{CallSnapshot, Comm, ProcessSnapshot, Snapshot, StallSnapshot};
use gpucause_abi::state::{Reason, Role};
use gpucause_abi::{Nanos, ProcId, Tgid};
use gpucause_observe::clock::{WallClock, monotonic_now};
use gpucause_observe::observation::Observation;
use gpucause_page::exposition::Format;
use std::ops::Range;
use std::time::{Duration, Instant};

const ROUNDS: u32 = 50;

fn histogram(used: &Range<u64>) -> Histogram {
    let count = |slot| if used.contains(&slot) { slot % 7 } else { 0 };
    Histogram::from_slots(Nanos(123_456_789), Nanos(9_999_999), (0..544).map(count))
}

fn process(id: u32, used: &Range<u64>) -> ProcessSnapshot {
    let ops = || OpId::all().take(20);
    ProcessSnapshot {
        dispatches: true,
        calls: ops().map(|op| CallSnapshot::unstalled(op, false, histogram(used))).collect(),
        stalls: ops()
            .map(|op| StallSnapshot {
                op,
                cold: false,
                nested: false,
                calls: 1,
                offcpu: [Nanos(1_234_567); REASONS],
            })
            .collect(),
        offcpu: Reason::ALL.iter().map(|&r| (Role::Dispatcher, r, histogram(used))).collect(),
        runqueue: vec![(Role::Dispatcher, histogram(used))],
        switches: [[1; 2]; 3],
        ..ProcessSnapshot::new(ProcId(id), Tgid(100_000 + id), Comm([b'p'; COMM_LEN]))
    }
}

fn timed<T>(what: &str, mut work: impl FnMut() -> T) -> T {
    let mut result = work();
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        result = work();
        best = best.min(begin.elapsed());
    }
    println!("{what}: {:.2} ms", best.as_secs_f64() * 1e3);
    result
}

fn main() -> std::io::Result<()> {
    let processes = std::env::args().nth(1).and_then(|number| number.parse().ok()).unwrap_or(64);
    for used in [0..544, 200..264] {
        println!("slots {} to {} in use", used.start, used.end - 1);
        encode(processes, &used)?;
    }
    Ok(())
}

fn encode(processes: u32, used: &Range<u64>) -> std::io::Result<()> {
    let processes = (0..processes).map(|id| process(id, used)).collect();
    let snapshot = Snapshot { processes, ..Snapshot::default() };
    let observation = Observation::new(snapshot, monotonic_now(), WallClock::now());
    let collectors = Collectors::default();
    let families = timed("collect", || collectors.collect(&observation)).into();
    for format in Format::ALL {
        let page = timed(&format!("{format:?}"), || format.encode(&families));
        println!("{format:?}: {} bytes", page.len());
        let zipped = timed(&format!("{format:?} with gzip"), || -> std::io::Result<Vec<u8>> {
            let fast = flate2::Compression::fast();
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), fast);
            format.write(&families, &mut encoder)?;
            encoder.finish()
        })?;
        println!("{format:?}: {} bytes zipped", zipped.len());
    }
    Ok(())
}
