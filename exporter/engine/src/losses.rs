//! Who took how much of the time that a finding lost, by the waits of the victim thread.

use gpucause_abi::Nanos;
use gpucause_abi::snapshot::Wait;
use gpucause_abi::state::{Reason, Relation, State};

use crate::chain::{Cause, Loss};
use crate::delta::{Delta, NO_CPU};
use crate::finding::Finding;
use crate::rules::lock_wait::was_held;

/// Tasks of one chain that are told apart; waits have no more names than that, but for long chains.
const MOST: usize = 32;

/// The waits of a window that are part of the loss, as far as a task ended them or had the CPU meanwhile. They add up to at most
/// what was lost.
pub(crate) fn of(delta: &Delta<'_>, finding: &Finding, lost: Nanos) -> Vec<Loss> {
    if finding.cause == Cause::DataloaderStarvation {
        return by_worker(delta.waits(), lost);
    }
    let reasons: &[Reason] = match finding.cause {
        Cause::CpuPreemption | Cause::RunqueueWait => &NO_CPU,
        Cause::LockWait => &[Reason::Futex],
        _ => return Vec::new(),
    };
    let mut losses = Vec::new();
    for wait in delta.waits() {
        let is_own = wait.tid.is_none() || finding.tid.is_none() || wait.tid == finding.tid;
        let is_lost = State::Off(wait.reason).is_lost_in(wait.phase);
        let time = match finding.cause {
            Cause::LockWait if was_held(wait) => wait.held,
            Cause::LockWait => Nanos(0),
            _ => wait.total,
        };
        if reasons.contains(&wait.reason) && is_own && is_lost && time.0 > 0 {
            let pid = wait.tgid.map(|tgid| tgid.0);
            add(&mut losses, &[Loss { pid, comm: wait.on.to_text(), seconds: time.as_secs_f64() }]);
        }
    }
    let (all, lost) = (total(&losses), lost.as_secs_f64());
    if all > lost {
        losses.iter_mut().for_each(|loss| loss.seconds *= lost / all);
    }
    losses
}

/// The time lost to a data loader, among its workers as the process waited for them: a thread that only passed data on took none.
fn by_worker(waits: &[Wait], lost: Nanos) -> Vec<Loss> {
    let mut losses = Vec::new();
    for wait in waits.iter().filter(|wait| wait.relation == Relation::Worker) {
        let (pid, comm) = (wait.tgid.map(|tgid| tgid.0), wait.on.to_text());
        add(&mut losses, &[Loss { pid, comm, seconds: wait.total.as_secs_f64() }]);
    }
    let all = total(&losses);
    losses.iter_mut().for_each(|loss| loss.seconds *= lost.as_secs_f64() / all);
    losses.retain(|loss| loss.seconds > 0.0);
    losses
}

/// Adds losses to others by name, most time first. The PID is the last of that name.
pub(crate) fn add(losses: &mut Vec<Loss>, added: &[Loss]) {
    for new in added {
        match losses.iter_mut().find(|own| own.comm == new.comm) {
            Some(own) => {
                own.seconds += new.seconds;
                own.pid = new.pid.or(own.pid);
            }
            None => losses.push(new.clone()),
        }
    }
    losses.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    losses.truncate(MOST);
}

fn total(losses: &[Loss]) -> f64 {
    losses.iter().map(|loss| loss.seconds).sum()
}
