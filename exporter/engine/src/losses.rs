//! Splits the lost time of a detection by culprit, from the waits of the victim thread.

use gpucause_abi::Nanos;
use gpucause_abi::state::{Reason, State};

use crate::chain::losses::{add, fit};
use crate::chain::{Cause, Loss};
use crate::delta::{Delta, NO_CPU};
use crate::detection::Detection;
use crate::rules::lock_wait;
use crate::times::ratio;

/// The waits of a window that are part of the loss and whose culprit is known. Their sum is at most the lost time, but of a lock.
pub(crate) fn of(delta: &Delta<'_>, detection: &Detection, lost: Nanos) -> Vec<Loss> {
    let reasons: &[Reason] = match detection.cause {
        Cause::CpuPreemption | Cause::RunqueueWait => &NO_CPU,
        Cause::LockWait => &[Reason::Lock],
        Cause::KernelLock => &[Reason::KernelLock],
        _ => return Vec::new(),
    };
    let behind = match (detection.cause, detection.tid, detection.claim) {
        (Cause::LockWait, Some(tid), Some((_, phases))) => {
            ratio(lock_wait::behind(delta, tid, phases), lock_wait::of_others(delta, tid))
        }
        _ => 0.0,
    };
    let mut losses = Vec::new();
    for wait in delta.waits() {
        let is_own = wait.tid.is_none() || detection.tid.is_none() || wait.tid == detection.tid;
        let is_lost = State::Off(wait.reason).is_lost_in(wait.phase);
        let time = match (detection.cause, is_own) {
            (Cause::LockWait, true) => wait.held,
            (Cause::LockWait, false) => wait.held.share(behind),
            // Nobody's where it is not known who held it.
            (Cause::KernelLock, true) if wait.tgid.is_none() => Nanos(0),
            (_, true) => wait.total,
            (_, false) => Nanos(0),
        };
        if reasons.contains(&wait.reason) && is_lost && time.0 > 0 {
            let pid = wait.tgid.map(|tgid| tgid.0);
            add(&mut losses, &[Loss { pid, comm: wait.on.to_text(), seconds: time.as_secs_f64() }]);
        }
    }
    // Who holds a polled lock is known when the wait for it ends, which may have begun in an earlier window.
    if detection.cause != Cause::LockWait {
        fit(&mut losses, lost.as_secs_f64());
    }
    losses
}
