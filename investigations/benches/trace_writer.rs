//! This benchmark measures the cost of recording: CPU time of a million events, and the bytes that each takes.
//!
//! Run with `cargo bench -p gpucause-investigations --bench trace_writer`.

use std::time::Instant;

use gpucause_abi::op::Api;
use gpucause_abi::state::Reason;
use gpucause_abi::{ProcId, Tgid};
use gpucause_trace::trace::{NewCall, NewEvent, NewKind, NewOffCpu, NewTask, Start, Writer};

const EVENTS: u64 = 1_000_000;
/// A recorder takes this many events from the kernel at a time.
const BATCH: u64 = 1000;

/// CPU time of this process so far, in ticks of 10 ms.
fn ticks() -> std::io::Result<u64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let fields = after_name.split_whitespace().skip(11).take(2);
    Ok(fields.filter_map(|ticks| ticks.parse::<u64>().ok()).sum())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::temp_dir().join(format!("gpucause-bench-{}.db", std::process::id()));
    let start = Start { node: "bench".into(), recorder: "bench".into(), ..Start::default() };
    let mut writer = Writer::create(&path, &start)?;
    let process = writer.process(ProcId(1), Tgid(4_000_000), "python3")?;
    let (began, before) = (Instant::now(), ticks()?);
    for batch in 0..EVENTS / BATCH {
        let events = (batch * BATCH..(batch + 1) * BATCH).map(|number| {
            let by = NewTask { pid: Some(4_000_000 + (number % 300) as u32), comm: "fluent-bit" };
            let wait = NewOffCpu { reason: Some(Reason::Preempted), by: Some(by) };
            let call = NewCall {
                api: Api::Runtime,
                op: "cudaLaunchKernel",
                cold: Some(false),
                outermost: true,
                code: 0,
                off_cpu_ns: Some(number % 70_000),
                bytes: None,
                copy: None,
                kernel: Some("gemm"),
            };
            NewEvent {
                start_ns: 1_700_000_000_000_000_000 + (number * 60_000) as i64,
                duration_ns: 3_000 + number % 40_000_000,
                process,
                tid: 4_000_000 + (number % 16) as u32,
                kind: if number.is_multiple_of(4) {
                    NewKind::OffCpu(wait)
                } else {
                    NewKind::Call(call)
                },
                stack: None,
            }
        });
        writer.add_events(events)?;
        writer.commit_if_due()?;
    }
    let written = ticks()?;
    writer.finish()?;
    let finished = ticks()?;
    let bytes = std::fs::metadata(&path)?.len();
    std::fs::remove_file(&path)?;
    println!(
        "{EVENTS} events in {:.1} s: {:.2} s of CPU to write, {:.2} s to finish, {:.1} bytes an event",
        began.elapsed().as_secs_f64(),
        (written - before) as f64 / 100.0,
        (finished - written) as f64 / 100.0,
        bytes as f64 / EVENTS as f64,
    );
    Ok(())
}
