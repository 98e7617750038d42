//! From the messages to the accounts.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use gpucause_abi::hist::{Histogram, Packer, SLOTS};
use gpucause_abi::measure::Measures;
use gpucause_abi::op::CopyKind;
use gpucause_abi::record::{COMM_LEN, FAULTS, PHASES, REASONS, ROLES, STATES, SWITCHES};
use gpucause_abi::snapshot::{
    BlockIo, CallSnapshot, Comm, DeviceName, DispatcherSnapshot, HostUse, LaunchSampling,
    LaunchStep, MapUsage, MemorySnapshot, ProcessSnapshot, Snapshot, StallSnapshot, TimeAccount,
    Wait,
};
use gpucause_abi::state::{Reason, Role};
use gpucause_abi::{Nanos, ProcId, Tgid, Tid};
use gpucause_engine::Moment;

use super::LookError;
use super::axis::{Axes, Axis};
use super::message;

type Result<T> = std::result::Result<T, LookError>;

pub(super) fn look(look: message::Look, unix_seconds: f64) -> Result<Moment> {
    let message::Look {
        labels,
        taken_at,
        processes,
        counters,
        maps,
        throttled_gpus,
        throttled_cgroups,
    } = look;
    let axes = Axes::of(&labels);
    let processes = processes.into_iter().map(|told| process(&axes, told));
    let counters = each(counters, |message::Counter { counter, value }| {
        Ok(axes.counters.at(counter)?.map(|counter| (counter, value)))
    })?;
    let maps = maps.into_iter().map(|message::Map { map, entries, capacity, refused }| {
        Ok(MapUsage { map: name_of_map(map)?, entries, capacity, refused })
    });
    let snapshot = Snapshot {
        taken_at: Nanos(taken_at),
        processes: processes.collect::<Result<_>>()?,
        counters,
        maps: maps.collect::<Result<_>>()?,
    };
    let throttled = |message::Pair { key, value }| Ok((ProcId(narrow(key)?), Nanos(value)));
    Ok(Moment {
        snapshot: Arc::new(snapshot),
        unix_seconds,
        throttled_gpus: throttled_gpus
            .into_iter()
            .map(|message::ThrottledGpu { uuid, share }| (uuid, share))
            .collect(),
        throttled_cgroups: throttled_cgroups.into_iter().map(throttled).collect::<Result<_>>()?,
    })
}

/// Names of maps live as long as the program, as those in it do. There is an end to how many a file can bring.
fn name_of_map(name: String) -> Result<&'static str> {
    const MOST: usize = 256;
    const LONGEST: usize = 64;
    static KNOWN: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(&name) = known.get(name.as_str()) {
        return Ok(name);
    }
    if known.len() >= MOST || name.len() > LONGEST {
        return Err(LookError::Accounts("it has names of maps that no kernel program has"));
    }
    let name: &'static str = String::leak(name);
    known.insert(name);
    drop(known);
    Ok(name)
}

/// What each makes; what is not known here is passed over.
fn each<T, U>(told: Vec<T>, make: impl FnMut(T) -> Result<Option<U>>) -> Result<Vec<U>> {
    told.into_iter().map(make).filter_map(Result::transpose).collect()
}

fn narrow<T: TryFrom<U>, U>(number: U) -> Result<T> {
    T::try_from(number).map_err(|_| LookError::Accounts("it has a number that is too large"))
}

fn process(axes: &Axes, told: message::Process) -> Result<ProcessSnapshot> {
    let message::Process {
        id,
        tgid,
        comm,
        parent,
        started_boottime,
        first_seen,
        dispatches,
        ended,
        execed,
        abandoned_calls,
        calls,
        stalls,
        errors,
        kernels,
        other_launches,
        launch_times,
        copied,
        copies,
        memory_allocated: allocated,
        memory_freed: freed,
        collectives,
        rank,
        ranks,
        dispatcher_time,
        dispatchers,
        worker,
        launch_gap,
        ended_waits,
        waits,
        offcpu,
        runqueue,
        switches,
        host,
        launches,
    } = told;
    let host = host.unwrap_or_default();
    let measures = Measures {
        abandoned_calls,
        other_launches,
        ended_waits: Nanos(ended_waits),
        page_alloc_bytes: host.page_alloc_bytes,
        direct_reclaim: Nanos(host.direct_reclaim),
        tcp_retransmits: host.tcp_retransmits,
        oom_kills: host.oom_kills,
    };
    Ok(ProcessSnapshot {
        id: ProcId(id),
        tgid: Tgid(tgid),
        comm: Comm(text(&comm)?),
        parent: parent.map(ProcId),
        started_boottime: Nanos(started_boottime),
        first_seen: Nanos(first_seen),
        dispatches,
        ended: ended.map(Nanos),
        execed,
        measures,
        calls: each(calls, |told| call(axes, told))?,
        stalls: each(stalls, |told| stall(axes, told))?,
        launches: launches.map_or_else(LaunchSampling::default, |told| launch_sampling(&told)),
        errors: each(errors, |message::CallError { op, code, count }| {
            Ok(axes.ops.at(op)?.map(|op| (op, code, count)))
        })?,
        kernels: kernels.into_iter().map(|message::Pair { key, value }| (key, value)).collect(),
        launch_times: each(launch_times, |message::LaunchTimes { handle, durations }| {
            Ok(Some((handle, histogram(durations)?)))
        })?,
        copied: cells::<_, { CopyKind::COUNT }>(&axes.copies, &copied, |kind| kind as usize)?,
        copies: each(copies, |told| copy(axes, told))?,
        memory: MemorySnapshot { allocated, freed },
        collectives: each(collectives, |message::Pair { key, value }| {
            Ok(axes.ops.at(narrow(key)?)?.map(|op| (op, value)))
        })?,
        rank: rank.zip(ranks),
        dispatcher_time: account(axes, &dispatcher_time)?,
        dispatchers: each(dispatchers, |told| dispatcher(axes, told).map(Some))?,
        worker: worker.map(|told| dispatcher(axes, told).map(Box::new)).transpose()?,
        launch_gap: histogram(launch_gap)?,
        waits: each(waits, |told| wait(axes, told))?,
        offcpu: each(offcpu, |told| off_cpu(axes, told))?,
        runqueue: each(runqueue, |told| run_queue(axes, told))?,
        switches: table::<_, _, ROLES, SWITCHES>(
            (&axes.roles, |role| role as usize),
            (&axes.switches, |switch| switch as usize),
            &switches,
        )?,
        host: host_use(axes, host)?,
    })
}

fn text<const N: usize>(told: &[u8]) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let room = bytes.get_mut(..told.len());
    room.ok_or(LookError::Accounts("it has a name that is too long"))?.copy_from_slice(told);
    Ok(bytes)
}

/// An array by one list of labels. Positions that are the same thing here add up.
fn cells<T: Copy, const N: usize>(
    axis: &Axis<T>,
    told: &[u64],
    index: impl Fn(T) -> usize,
) -> Result<[u64; N]> {
    let mut cells = [0u64; N];
    for (position, &number) in (0..).zip(told) {
        let cell = axis.at(position)?.and_then(|each| cells.get_mut(index(each)));
        if let Some(cell) = cell {
            *cell = cell.saturating_add(number);
        }
    }
    Ok(cells)
}

/// An array by two lists of labels.
fn table<T: Copy, U: Copy, const N: usize, const M: usize>(
    (rows, row_index): (&Axis<T>, impl Fn(T) -> usize),
    (columns, column_index): (&Axis<U>, impl Fn(U) -> usize),
    told: &[u64],
) -> Result<[[u64; M]; N]> {
    let mut table = [[0u64; M]; N];
    for (position, told) in (0..).zip(told.chunks(columns.len().max(1))) {
        let Some(row) = rows.at(position)? else { continue };
        let added: [u64; M] = cells(columns, told, &column_index)?;
        if let Some(row) = table.get_mut(row_index(row)) {
            for (cell, number) in row.iter_mut().zip(added) {
                *cell = cell.saturating_add(number);
            }
        }
    }
    Ok(table)
}

fn account(axes: &Axes, told: &[u64]) -> Result<TimeAccount> {
    let table = table::<_, _, PHASES, STATES>(
        (&axes.phases, |phase| phase as usize),
        (&axes.states, |state| state.index()),
        told,
    )?;
    Ok(TimeAccount(table.map(|row| row.map(Nanos))))
}

fn histogram(told: Option<message::Histogram>) -> Result<Histogram> {
    const DISORDER: LookError = LookError::Accounts("it has a histogram without order");
    let message::Histogram { sum, max, gaps, counts } = told.unwrap_or_default();
    if gaps.len() != counts.len() {
        return Err(DISORDER);
    }
    let mut packer = Packer::with_room(gaps.len() * 2);
    let mut next = 0u16;
    for (gap, count) in gaps.into_iter().zip(counts) {
        let slot = narrow::<u16, _>(gap)?.checked_add(next).ok_or(DISORDER)?;
        if usize::from(slot) >= SLOTS || count == 0 {
            return Err(DISORDER);
        }
        packer.push(slot, count);
        next = slot + 1;
    }
    Ok(Histogram { sum: Nanos(sum), max: Nanos(max), slots: packer.finish() })
}

fn copy(axes: &Axes, told: message::Copies) -> Result<Option<(CopyKind, u16, Histogram)>> {
    let message::Copies { kind, size, durations } = told;
    let Some(kind) = axes.copies.at(kind)? else { return Ok(None) };
    Ok(Some((kind, narrow(size)?, histogram(durations)?)))
}

fn off_cpu(axes: &Axes, told: message::OffCpu) -> Result<Option<(Role, Reason, Histogram)>> {
    let message::OffCpu { role, reason, durations } = told;
    let (role, reason) = (axes.roles.at(role)?, axes.reasons.at(reason)?);
    let Some((role, reason)) = role.zip(reason) else { return Ok(None) };
    Ok(Some((role, reason, histogram(durations)?)))
}

fn run_queue(axes: &Axes, told: message::RunQueue) -> Result<Option<(Role, Histogram)>> {
    let message::RunQueue { role, durations } = told;
    let Some(role) = axes.roles.at(role)? else { return Ok(None) };
    Ok(Some((role, histogram(durations)?)))
}

/// A step that is not known here is from a newer version: what it says of the number of launches still holds.
fn launch_sampling(told: &message::Launches) -> LaunchSampling {
    let &message::Launches { ref step, one_in, share, untimed, estimated, unobserved } = told;
    let step = match step.as_str() {
        "driver_only" => LaunchStep::DriverOnly,
        "sampled" => LaunchStep::Sampled { one_in },
        "part_time" => LaunchStep::PartTime { share, one_in },
        _ => LaunchStep::Full,
    };
    LaunchSampling { step, untimed, estimated, unobserved: Nanos(unobserved) }
}

fn call(axes: &Axes, told: message::Call) -> Result<Option<CallSnapshot>> {
    let message::Call { op, cold, nested, durations, stalled } = told;
    let Some(op) = axes.ops.at(op)? else { return Ok(None) };
    let (durations, stalled) = (histogram(durations)?, histogram(stalled)?);
    Ok(Some(CallSnapshot { op, cold, nested, durations, stalled }))
}

fn stall(axes: &Axes, told: message::Stall) -> Result<Option<StallSnapshot>> {
    let message::Stall { op, cold, nested, calls, offcpu } = told;
    let Some(op) = axes.ops.at(op)? else { return Ok(None) };
    let offcpu = cells::<_, REASONS>(&axes.reasons, &offcpu, |reason| reason as usize)?;
    Ok(Some(StallSnapshot { op, cold, nested, calls, offcpu: offcpu.map(Nanos) }))
}

fn dispatcher(axes: &Axes, told: message::Dispatcher) -> Result<DispatcherSnapshot> {
    let message::Dispatcher { tid, wall, time, inflight_op, inflight_age } = told;
    let inflight = inflight_op.map(|op| axes.ops.at(op)).transpose()?.flatten();
    Ok(DispatcherSnapshot {
        tid: Tid(tid),
        wall: Nanos(wall),
        time: account(axes, &time)?,
        inflight: inflight.map(|op| (op, Nanos(inflight_age))),
    })
}

fn wait(axes: &Axes, told: message::Wait) -> Result<Option<Wait>> {
    let message::Wait { tid, reason, on, phase, total, held, tgid, relation } = told;
    let on = text::<COMM_LEN>(&on)?;
    let known = (axes.reasons.at(reason)?, axes.phases.at(phase)?, axes.relations.at(relation)?);
    let (Some(reason), Some(phase), Some(relation)) = known else { return Ok(None) };
    Ok(Some(Wait {
        tid: tid.map(Tid),
        reason,
        on: Comm(on),
        phase,
        total: Nanos(total),
        held: Nanos(held),
        tgid: tgid.map(Tgid),
        relation,
    }))
}

fn host_use(axes: &Axes, told: message::HostUse) -> Result<HostUse> {
    let message::HostUse { block_io, page_faults_known, page_faults, .. } = told;
    let page_faults = cells::<_, FAULTS>(&axes.faults, &page_faults, |fault| fault as usize)?;
    Ok(HostUse {
        block_io: each(block_io, |told| block(axes, told))?,
        page_faults: page_faults_known.then_some(page_faults),
    })
}

fn block(axes: &Axes, told: message::BlockIo) -> Result<Option<BlockIo>> {
    let message::BlockIo { device, operation, time, bytes, requests } = told;
    let device = DeviceName(text(&device)?);
    let Some(operation) = axes.block_operations.at(operation)? else { return Ok(None) };
    Ok(Some(BlockIo { device, operation, time: Nanos(time), bytes, requests }))
}
