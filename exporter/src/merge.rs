//! Adding one process's accounts to another's.

use gpucause_abi::hist::Histogram;
use gpucause_abi::snapshot::{CallSnapshot, ProcessSnapshot};

/// Adds the accounts of `image` to those of `sum`; identity, beginning and end of `sum` stay.
pub fn absorb(sum: &mut ProcessSnapshot, image: &ProcessSnapshot) {
    sum.dispatches |= image.dispatches;
    sum.abandoned_calls += image.abandoned_calls;
    for call in &image.calls {
        match sum.calls.iter_mut().find(|own| (own.op, own.cold) == (call.op, call.cold)) {
            Some(CallSnapshot { durations, .. }) => durations.merge(&call.durations),
            None => sum.calls.push(call.clone()),
        }
    }
    for stall in &image.stalls {
        match sum.stalls.iter_mut().find(|own| own.op == stall.op) {
            Some(own) => {
                own.calls += stall.calls;
                for (total, time) in own.offcpu.iter_mut().zip(stall.offcpu) {
                    total.0 += time.0;
                }
            }
            None => sum.stalls.push(stall.clone()),
        }
    }
    for &(op, code, count) in &image.errors {
        match sum.errors.iter_mut().find(|own| (own.0, own.1) == (op, code)) {
            Some(own) => own.2 += count,
            None => sum.errors.push((op, code, count)),
        }
    }
    for &(function, launches) in &image.kernels {
        match sum.kernels.iter_mut().find(|own| own.0 == function) {
            Some(own) => own.1 += launches,
            None => sum.kernels.push((function, launches)),
        }
    }
    sum.other_launches += image.other_launches;
    sum.dispatcher_time.merge(&image.dispatcher_time);
    for (total, bytes) in sum.copied.iter_mut().zip(image.copied) {
        *total += bytes;
    }
    for (kind, class, durations) in &image.copies {
        match sum.copies.iter_mut().find(|own| (own.0, own.1) == (*kind, *class)) {
            Some((_, _, total)) => total.merge(durations),
            None => sum.copies.push((*kind, *class, durations.clone())),
        }
    }
    sum.memory.allocated += image.memory.allocated;
    sum.memory.freed += image.memory.freed;
    for &(op, bytes) in &image.collectives {
        match sum.collectives.iter_mut().find(|own| own.0 == op) {
            Some(own) => own.1 += bytes,
            None => sum.collectives.push((op, bytes)),
        }
    }
    sum.launch_gap.merge(&image.launch_gap);
    for wait in &image.waits {
        match sum.waits.iter_mut().find(|own| (own.reason, own.on) == (wait.reason, wait.on)) {
            Some(own) => own.total.0 += wait.total.0,
            None => sum.waits.push(*wait),
        }
    }
    for (role, reason, durations) in &image.offcpu {
        let own = sum.offcpu.iter_mut().find(|own| (own.0, own.1) == (*role, *reason));
        match own {
            Some((_, _, total)) => total.merge(durations),
            None => sum.offcpu.push((*role, *reason, durations.clone())),
        }
    }
    for (role, durations) in &image.runqueue {
        match sum.runqueue.iter_mut().find(|own| own.0 == *role) {
            Some((_, total)) => Histogram::merge(total, durations),
            None => sum.runqueue.push((*role, durations.clone())),
        }
    }
    for (totals, counts) in sum.switches.iter_mut().zip(image.switches) {
        for (total, count) in totals.iter_mut().zip(counts) {
            *total += count;
        }
    }
}
