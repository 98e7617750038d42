//! A replayed host that was made up: no probes.

use std::path::Path;
use std::sync::Arc;

use gpucause_abi::hist::{Histogram, slot_of};
use gpucause_abi::op::op_of_symbol;
use gpucause_abi::record::COMM_LEN;
use gpucause_abi::snapshot::{CallSnapshot, Comm, ProcessSnapshot, Snapshot};
use gpucause_abi::state::{Phase, Reason, State};
use gpucause_abi::{Nanos, ProcId, Tgid};
use gpucause_engine::EngineInput;
use gpucause_fixture::exporter::{Exporter, gpucause};
use gpucause_trace::trace::{Start, Writer};

const SECOND: u64 = 1_000_000_000;
/// PID of the first process.
pub(crate) const FIRST: u32 = 4_001;
/// Seconds of the snapshots.
const TIMES: [u64; 4] = [50, 52, 54, 56];

fn name(index: u32) -> String {
    match index {
        0 => "<script>x</scri".into(),
        1 => "a&amp;\"'\u{fc}".into(),
        index => format!("rank-{index}"),
    }
}

fn histogram(counts: [(u64, u64); 2]) -> Histogram {
    let slot = |value| u16::try_from(slot_of(Nanos(value))).unwrap();
    Histogram {
        sum: Nanos(counts.iter().map(|(value, count)| value * count).sum()),
        max: Nanos(counts[1].0),
        slots: counts.iter().map(|&(value, count)| (slot(value), count)).collect(),
    }
}

/// A process after so many seconds.
fn process(index: u32, at: u64) -> ProcessSnapshot {
    let mut comm = [0; COMM_LEN];
    let name = name(index);
    comm[..name.len()].copy_from_slice(name.as_bytes());
    let launches = at * (100 + u64::from(index));
    let durations = histogram([(10_000, launches), (3_000_000, launches / 20)]);
    let mut process = ProcessSnapshot {
        dispatches: true,
        calls: vec![CallSnapshot::unstalled(
            op_of_symbol("cudaLaunchKernel").unwrap(),
            false,
            durations,
        )],
        ..ProcessSnapshot::new(ProcId(index), Tgid(FIRST + index), Comm(comm))
    };
    let lost = at * 1_000_000 * u64::from(index % 400);
    let time = &mut process.dispatcher_time;
    time.0[Phase::Host as usize][State::Running.index()] = Nanos(at * SECOND / 2 - lost);
    time.0[Phase::Sync as usize][State::Off(Reason::GpuDriver).index()] = Nanos(at * SECOND / 2);
    time.0[Phase::Launch as usize][State::Off(Reason::Preempted).index()] = Nanos(lost);
    process
}

/// Writes what so many processes did.
fn record(path: &Path, processes: u32) {
    let start = Start {
        node: "gpu-1".into(),
        recorder: "a test".into(),
        started_ns: 1_700_000_000_000_000_000,
        ..Start::default()
    };
    let mut writer = Writer::create(path, &start).unwrap();
    for index in 0..processes {
        writer.process(ProcId(index), Tgid(FIRST + index), &name(index)).unwrap();
    }
    for at in TIMES {
        let processes = (0..processes).map(|index| process(index, at)).collect();
        let snapshot = Snapshot { taken_at: Nanos(at * SECOND), processes, ..Snapshot::default() };
        let input = EngineInput::new(Arc::new(snapshot), 1_700_000_000.0 + at as f64);
        writer.add_snapshot(&input, &[]).unwrap();
    }
    writer.finish().unwrap();
}

/// Serves them.
pub(crate) fn serve(processes: u32) -> Exporter {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("host.db");
    record(&path, processes);
    // The file stays open when its folder is gone.
    replay(&path, "50")
}

/// Serves a recording, so many times as fast.
pub(crate) fn replay(path: &Path, speed: &str) -> Exporter {
    let listen = "--web.listen-address=127.0.0.1:0";
    Exporter::of(gpucause(&["replay", listen, "--speed", speed, "--db"]).arg(path))
}
