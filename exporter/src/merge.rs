//! Adding one process's accounts to another's.

use gpucause_abi::hist::Histogram;
use gpucause_abi::snapshot::{CallSnapshot, HostUse, LaunchSampling, ProcessSnapshot, Wait};

/// Adds the accounts of `image` to those of `sum`; identity, beginning and end of `sum` stay.
pub fn absorb(sum: &mut ProcessSnapshot, image: &ProcessSnapshot) {
    sum.dispatches |= image.dispatches;
    sum.measures.merge(&image.measures);
    for call in &image.calls {
        match sum.calls.iter_mut().find(|own| own.kind() == call.kind()) {
            Some(CallSnapshot { durations, stalled, .. }) => {
                durations.merge(&call.durations);
                stalled.merge(&call.stalled);
            }
            None => sum.calls.push(call.clone()),
        }
    }
    for stall in &image.stalls {
        match sum.stalls.iter_mut().find(|own| own.kind() == stall.kind()) {
            Some(own) => {
                own.calls += stall.calls;
                for (total, time) in own.offcpu.iter_mut().zip(stall.offcpu) {
                    total.0 += time.0;
                }
            }
            None => sum.stalls.push(stall.clone()),
        }
    }
    absorb_launches(&mut sum.launches, &image.launches);
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
    absorb_waits(sum, image);
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
    absorb_host(&mut sum.host, &image.host);
}

fn absorb_launches(launches: &mut LaunchSampling, own: &LaunchSampling) {
    launches.untimed += own.untimed;
    launches.estimated += own.estimated;
    launches.unobserved.0 += own.unobserved.0;
    if launches.step.timed_share() > own.step.timed_share() {
        launches.step = own.step;
    }
}

fn absorb_host(sum: &mut HostUse, image: &HostUse) {
    for io in &image.block_io {
        let own = sum
            .block_io
            .iter_mut()
            .find(|own| (own.device, own.operation) == (io.device, io.operation));
        match own {
            Some(own) => {
                own.time.0 += io.time.0;
                own.bytes += io.bytes;
                own.requests += io.requests;
            }
            None => sum.block_io.push(*io),
        }
    }
    if let Some(faults) = image.page_faults {
        let own = sum.page_faults.get_or_insert_default();
        for (total, count) in own.iter_mut().zip(faults) {
            *total += count;
        }
    }
}

fn absorb_waits(sum: &mut ProcessSnapshot, image: &ProcessSnapshot) {
    for wait in &image.waits {
        let key = |wait: &Wait| (wait.tid, wait.reason, wait.phase, wait.on);
        match sum.waits.iter_mut().find(|own| key(own) == key(wait)) {
            Some(own) => {
                own.total.0 += wait.total.0;
                own.held.0 += wait.held.0;
            }
            None => sum.waits.push(*wait),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpucause_abi::measure::MEASURES;
    use gpucause_abi::record::{COMM_LEN, DEVICE_LEN};
    use gpucause_abi::snapshot::{BlockIo, Comm, DeviceName};
    use gpucause_abi::state::BlockOperation;
    use gpucause_abi::{Nanos, ProcId, Tgid};

    fn image(device: u8, amount: u64) -> ProcessSnapshot {
        let mut image = ProcessSnapshot::new(ProcId(1), Tgid(1), Comm([0; COMM_LEN]));
        image.host = HostUse {
            block_io: vec![BlockIo {
                device: DeviceName([device; DEVICE_LEN]),
                operation: BlockOperation::Read,
                time: Nanos(amount),
                bytes: amount,
                requests: amount,
            }],
            page_faults: Some([amount, amount]),
        };
        *image.measures.amounts_mut() = [amount; MEASURES.len()];
        image
    }

    #[test]
    fn what_images_asked_of_the_host_adds_up() {
        let mut sum = image(1, 2);
        absorb(&mut sum, &image(1, 3));
        assert_eq!(sum, image(1, 5));
        absorb(&mut sum, &image(2, 1));
        let amounts: Vec<u64> = sum.host.block_io.iter().map(|io| io.bytes).collect();
        assert_eq!((amounts, sum.measures.oom_kills), (vec![5, 1], 6));
    }
}
