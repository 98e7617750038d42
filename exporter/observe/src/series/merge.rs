//! Adding one process's accounts to another's.

use gpucause_abi::hist::Histogram;
use gpucause_abi::snapshot::{HostUse, LaunchSampling, ProcessSnapshot, Wait};

/// Adds the accounts of `image` to those of `sum`; identity, beginning and end of `sum` stay.
pub fn merge_accounts(sum: &mut ProcessSnapshot, image: &ProcessSnapshot) {
    sum.dispatches |= image.dispatches;
    sum.measures.merge(&image.measures);
    merge_by(
        &mut sum.calls,
        &image.calls,
        |a, b| a.kind() == b.kind(),
        |total, call| {
            total.durations.merge(&call.durations);
            total.stalled.merge(&call.stalled);
        },
    );
    merge_by(
        &mut sum.stalls,
        &image.stalls,
        |a, b| a.kind() == b.kind(),
        |total, stall| {
            total.calls += stall.calls;
            for (total, time) in total.offcpu.iter_mut().zip(stall.offcpu) {
                total.0 += time.0;
            }
        },
    );
    // Workers make no calls: how long they lived says nothing of those of their owner.
    if image.dispatches {
        merge_launches(&mut sum.launches, &image.launches);
    }
    merge_by(&mut sum.untimed_calls, &image.untimed_calls, |a, b| a.0 == b.0, |a, b| a.1 += b.1);
    merge_by(&mut sum.errors, &image.errors, |a, b| (a.0, a.1) == (b.0, b.1), |a, b| a.2 += b.2);
    merge_by(&mut sum.kernels, &image.kernels, |a, b| a.0 == b.0, |a, b| a.1 += b.1);
    sum.dispatcher_time.merge(&image.dispatcher_time);
    add_counts(&mut sum.copied, &image.copied);
    merge_timed(&mut sum.copies, &image.copies);
    sum.memory.allocated += image.memory.allocated;
    sum.memory.freed += image.memory.freed;
    merge_by(&mut sum.collectives, &image.collectives, |a, b| a.0 == b.0, |a, b| a.1 += b.1);
    sum.launch_gap.merge(&image.launch_gap);
    let key = |wait: &Wait| {
        (wait.tid, wait.reason, wait.phase, wait.on, wait.holder, wait.lock, wait.syscall)
    };
    merge_by(
        &mut sum.waits,
        &image.waits,
        |a, b| key(a) == key(b),
        |total, wait| {
            total.total.0 += wait.total.0;
            total.held.0 += wait.held.0;
            total.behind.0 += wait.behind.0;
        },
    );
    merge_timed(&mut sum.offcpu, &image.offcpu);
    merge_by(&mut sum.runqueue, &image.runqueue, |a, b| a.0 == b.0, |a, b| a.1.merge(&b.1));
    for (totals, counts) in sum.switches.iter_mut().zip(&image.switches) {
        add_counts(totals, counts);
    }
    merge_host(&mut sum.host, &image.host);
}

/// Adds each of `more` to the entry of `all` that is the same, or appends it.
fn merge_by<T: Clone>(
    all: &mut Vec<T>,
    more: &[T],
    is_same: impl Fn(&T, &T) -> bool,
    add: impl Fn(&mut T, &T),
) {
    for one in more {
        match all.iter_mut().find(|own| is_same(own, one)) {
            Some(own) => add(own, one),
            None => all.push(one.clone()),
        }
    }
}

fn merge_timed<A: Copy + PartialEq, B: Copy + PartialEq>(
    all: &mut Vec<(A, B, Histogram)>,
    more: &[(A, B, Histogram)],
) {
    merge_by(all, more, |a, b| (a.0, a.1) == (b.0, b.1), |a, b| a.2.merge(&b.2));
}

fn add_counts(totals: &mut [u64], counts: &[u64]) {
    for (total, count) in totals.iter_mut().zip(counts) {
        *total += count;
    }
}

fn merge_launches(sum: &mut LaunchSampling, own: &LaunchSampling) {
    sum.untimed += own.untimed;
    sum.observed.0 += own.observed.0;
    sum.unobserved.0 += own.unobserved.0;
    sum.without_queries |= own.without_queries;
    sum.async_one_in = sum.async_one_in.max(own.async_one_in);
    // The rate of one image says nothing of the others.
    sum.rate = None;
    if sum.step.timed_share() > own.step.timed_share() {
        sum.step = own.step;
    }
}

fn merge_host(sum: &mut HostUse, image: &HostUse) {
    merge_by(
        &mut sum.block_io,
        &image.block_io,
        |a, b| (a.device, a.operation) == (b.device, b.operation),
        |total, io| {
            total.time.0 += io.time.0;
            total.bytes += io.bytes;
            total.requests += io.requests;
        },
    );
    if let Some(faults) = image.page_faults {
        add_counts(sum.page_faults.get_or_insert_default(), &faults);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpucause_abi::measure::MEASURES;
    use gpucause_abi::record::{COMM_LEN, DEVICE_LEN};
    use gpucause_abi::snapshot::{BlockIo, Comm, DeviceName, RateEstimate};
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
    fn host_use_of_images_adds_up() {
        let mut sum = image(1, 2);
        merge_accounts(&mut sum, &image(1, 3));
        assert_eq!(sum, image(1, 5));
        merge_accounts(&mut sum, &image(2, 1));
        let amounts: Vec<u64> = sum.host.block_io.iter().map(|io| io.bytes).collect();
        assert_eq!((amounts, sum.measures.oom_kills), (vec![5, 1], 6));
    }

    #[test]
    fn workers_say_nothing_of_how_the_calls_of_their_owner_are_observed() {
        let rate = RateEstimate { per_second: 9.0, error: 0.1 };
        let (mut owner, mut worker) = (image(1, 1), image(1, 1));
        owner.dispatches = true;
        owner.launches.observed = Nanos(3);
        owner.launches.unobserved = Nanos(97);
        owner.launches.rate = Some(rate);
        worker.launches.observed = Nanos(100);
        let own = owner.launches;
        merge_accounts(&mut owner, &worker);
        assert_eq!(owner.launches, own);
        worker.dispatches = true;
        merge_accounts(&mut owner, &worker);
        assert_eq!((owner.launches.observed, owner.launches.rate), (Nanos(103), None));
    }
}
