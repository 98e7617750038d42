//! From the accounts to the messages.

use gpucause_abi::Nanos;
use gpucause_abi::hist::Histogram;
use gpucause_abi::measure::Measures;
use gpucause_abi::op::CopyKind;
use gpucause_abi::snapshot::{
    BlockIo, CallSnapshot, Comm, DeviceName, DispatcherSnapshot, HostUse, LaunchSampling,
    LaunchStep, MapUsage, MemorySnapshot, ProcessSnapshot, Snapshot, StallSnapshot, TimeAccount,
    Wait,
};
use gpucause_abi::state::{Reason, Role};
use gpucause_engine::Moment;

use super::axis::OpsTold;
use super::message;

pub(super) fn look(moment: &Moment) -> message::Look {
    let Moment { snapshot, unix_seconds: _, throttled_gpus, throttled_cgroups } = moment;
    let Snapshot { taken_at, processes, counters, maps } = &**snapshot;
    let mut ops = OpsTold::default();
    let processes = processes.iter().map(|each| process(&mut ops, each)).collect();
    let counters = counters
        .iter()
        .map(|&(counter, value)| message::Counter { counter: counter as u32, value })
        .collect();
    let maps = maps.iter().map(|&MapUsage { map, entries, capacity, refused }| message::Map {
        map: map.to_owned(),
        entries,
        capacity,
        refused,
    });
    let mut throttled_gpus: Vec<_> = throttled_gpus
        .iter()
        .map(|(uuid, &share)| message::ThrottledGpu { uuid: uuid.clone(), share })
        .collect();
    throttled_gpus.sort_by(|a, b| a.uuid.cmp(&b.uuid));
    let mut throttled_cgroups: Vec<_> = throttled_cgroups
        .iter()
        .map(|(id, time)| message::Pair { key: id.0.into(), value: time.0 })
        .collect();
    throttled_cgroups.sort_by_key(|pair| pair.key);
    message::Look {
        taken_at: taken_at.0,
        processes,
        counters,
        maps: maps.collect(),
        throttled_gpus,
        throttled_cgroups,
        labels: ops.labels(),
    }
}

fn process(ops: &mut OpsTold, process: &ProcessSnapshot) -> message::Process {
    let ProcessSnapshot {
        id,
        tgid,
        comm: name,
        parent,
        started_boottime,
        first_seen,
        dispatches,
        ended,
        execed,
        measures,
        calls,
        stalls,
        launches,
        errors,
        kernels,
        launch_times,
        copied,
        copies,
        memory: MemorySnapshot { allocated, freed },
        collectives,
        rank,
        dispatcher_time,
        dispatchers,
        worker,
        launch_gap,
        waits,
        offcpu,
        runqueue,
        switches,
        host,
    } = process;
    message::Process {
        id: id.0,
        tgid: tgid.0,
        comm: comm(*name),
        parent: parent.map(|id| id.0),
        started_boottime: started_boottime.0,
        first_seen: first_seen.0,
        dispatches: *dispatches,
        ended: ended.map(|at| at.0),
        execed: *execed,
        abandoned_calls: measures.abandoned_calls,
        calls: calls.iter().map(|each| call(ops, each)).collect(),
        stalls: stalls.iter().map(|each| stall(ops, each)).collect(),
        errors: errors
            .iter()
            .map(|&(op, code, count)| message::CallError { op: ops.position(op), code, count })
            .collect(),
        kernels: kernels.iter().map(|&(key, value)| message::Pair { key, value }).collect(),
        other_launches: measures.other_launches,
        launch_times: launch_times.iter().map(launch_time).collect(),
        copied: used(copied.to_vec()),
        copies: copies.iter().map(copy).collect(),
        memory_allocated: *allocated,
        memory_freed: *freed,
        collectives: collectives
            .iter()
            .map(|&(op, value)| message::Pair { key: ops.position(op).into(), value })
            .collect(),
        rank: rank.map(|(rank, _)| rank),
        ranks: rank.map(|(_, ranks)| ranks),
        dispatcher_time: account(dispatcher_time),
        dispatchers: dispatchers.iter().map(|each| dispatcher(ops, each)).collect(),
        worker: worker.as_ref().map(|worker| dispatcher(ops, worker)),
        launch_gap: histogram(launch_gap),
        ended_waits: measures.ended_waits.0,
        waits: waits.iter().map(wait).collect(),
        offcpu: offcpu.iter().map(off_cpu).collect(),
        runqueue: runqueue.iter().map(run_queue).collect(),
        switches: used(switches.iter().flatten().copied().collect()),
        host: Some(host_use(host, measures)),
        launches: (*launches != LaunchSampling::default()).then(|| launch_sampling(launches)),
    }
}

/// Without the zeros at the end, as all arrays are written.
fn used(mut numbers: Vec<u64>) -> Vec<u64> {
    while numbers.last() == Some(&0) {
        numbers.pop();
    }
    numbers
}

fn nanos(times: impl IntoIterator<Item = Nanos>) -> Vec<u64> {
    used(times.into_iter().map(|time| time.0).collect())
}

fn text(bytes: &[u8]) -> Vec<u8> {
    let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    bytes[..end].to_vec()
}

fn comm(Comm(bytes): Comm) -> Vec<u8> {
    text(&bytes)
}

fn histogram(histogram: &Histogram) -> Option<message::Histogram> {
    let Histogram { sum, max, slots } = histogram;
    let mut next = 0;
    let (gaps, counts) = slots
        .iter()
        .map(|(slot, count)| {
            let gap = u32::from(slot.saturating_sub(next));
            next = slot.saturating_add(1);
            (gap, count)
        })
        .unzip();
    let told = message::Histogram { sum: sum.0, max: max.0, gaps, counts };
    (told != message::Histogram::default()).then_some(told)
}

fn launch_time((handle, durations): &(u64, Histogram)) -> message::LaunchTimes {
    message::LaunchTimes { handle: *handle, durations: histogram(durations) }
}

fn copy((kind, size, durations): &(CopyKind, u16, Histogram)) -> message::Copies {
    let (kind, size) = (*kind as u32, u32::from(*size));
    message::Copies { kind, size, durations: histogram(durations) }
}

fn off_cpu((role, reason, durations): &(Role, Reason, Histogram)) -> message::OffCpu {
    let (role, reason) = (*role as u32, *reason as u32);
    message::OffCpu { role, reason, durations: histogram(durations) }
}

fn run_queue((role, durations): &(Role, Histogram)) -> message::RunQueue {
    message::RunQueue { role: *role as u32, durations: histogram(durations) }
}

fn launch_sampling(launches: &LaunchSampling) -> message::Launches {
    let LaunchSampling { step, untimed, estimated, unobserved } = *launches;
    let (one_in, share) = match step {
        LaunchStep::Full | LaunchStep::DriverOnly => (0, 0.0),
        LaunchStep::Sampled { one_in } => (one_in, 0.0),
        LaunchStep::PartTime { share, one_in } => (one_in, share),
    };
    let (step, unobserved) = (step.label().to_owned(), unobserved.0);
    message::Launches { step, one_in, share, untimed, estimated, unobserved }
}

fn call(ops: &mut OpsTold, call: &CallSnapshot) -> message::Call {
    let CallSnapshot { op, cold, nested, durations, stalled } = call;
    message::Call {
        op: ops.position(*op),
        cold: *cold,
        nested: *nested,
        durations: histogram(durations),
        stalled: histogram(stalled),
    }
}

fn stall(ops: &mut OpsTold, stall: &StallSnapshot) -> message::Stall {
    let StallSnapshot { op, cold, nested, calls, offcpu } = stall;
    message::Stall {
        op: ops.position(*op),
        cold: *cold,
        nested: *nested,
        calls: *calls,
        offcpu: nanos(offcpu.iter().copied()),
    }
}

fn account(TimeAccount(cells): &TimeAccount) -> Vec<u64> {
    nanos(cells.iter().flatten().copied())
}

fn dispatcher(ops: &mut OpsTold, thread: &DispatcherSnapshot) -> message::Dispatcher {
    let DispatcherSnapshot { tid, wall, time, inflight } = thread;
    message::Dispatcher {
        tid: tid.0,
        wall: wall.0,
        time: account(time),
        inflight_op: inflight.map(|(op, _)| ops.position(op)),
        inflight_age: inflight.map_or(0, |(_, age)| age.0),
    }
}

fn wait(wait: &Wait) -> message::Wait {
    let Wait { tid, reason, on, phase, total, held, tgid, relation } = *wait;
    message::Wait {
        tid: tid.map(|tid| tid.0),
        reason: reason as u32,
        on: comm(on),
        phase: phase as u32,
        total: total.0,
        held: held.0,
        tgid: tgid.map(|tgid| tgid.0),
        relation: relation as u32,
    }
}

fn host_use(host: &HostUse, measures: &Measures) -> message::HostUse {
    let HostUse { block_io, page_faults } = host;
    message::HostUse {
        block_io: block_io
            .iter()
            .map(|&BlockIo { device: DeviceName(device), operation, time, bytes, requests }| {
                message::BlockIo {
                    device: text(&device),
                    operation: operation as u32,
                    time: time.0,
                    bytes,
                    requests,
                }
            })
            .collect(),
        page_faults_known: page_faults.is_some(),
        page_faults: page_faults.map(|faults| used(faults.to_vec())).unwrap_or_default(),
        page_alloc_bytes: measures.page_alloc_bytes,
        direct_reclaim: measures.direct_reclaim.0,
        tcp_retransmits: measures.tcp_retransmits,
        oom_kills: measures.oom_kills,
    }
}
