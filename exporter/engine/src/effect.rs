//! Measures the size of each effect, and how much of it the victim thread was off the CPU, by reason.

mod launch_gap;
mod rate_drop;
mod tail;

use gpucause_abi::record::REASONS;
use gpucause_abi::snapshot::Wait;
use gpucause_abi::state::{Reason, Relation};
use gpucause_abi::{Nanos, Tid};

use crate::context::{Measured, Process, waits_in};
use crate::delta::{Delta, ThreadDelta};
use crate::history::History;
use crate::phases::Phases;
use crate::settings::Settings;
use crate::times::total;

/// Evidence key of the usual launch rate of a process whose launches dropped.
pub(crate) const USUAL_LAUNCHES: &str = "usual_launches_per_second";
/// Evidence key of how many times longer its quickest launches take than usual.
pub(crate) const LAUNCH_SLOWDOWN: &str = "launch_slowdown";

/// Reasons of waits for data.
pub(crate) const DATA_WAITS: [Reason; 3] = [Reason::Futex, Reason::Poll, Reason::Net];

/// Off-CPU time of a thread, by reason. Of futex waits only those for data and for other processes count: one that waits for another
/// thread's work, as PyTorch's main thread does for autograd's, or for requests, loses nothing.
fn own_waits(
    delta: &Delta<'_>,
    thread: &ThreadDelta,
    phases: Phases,
    time: impl Fn(Reason) -> Nanos,
) -> [Nanos; REASONS] {
    let mut offcpu = [Nanos(0); REASONS];
    for (own, &reason) in offcpu.iter_mut().zip(Reason::ALL) {
        *own = time(reason);
    }
    let futex = &mut offcpu[Reason::Futex as usize];
    if futex.0 > 0 {
        let tid = Some(thread.tid);
        let counted = [futex_for_data(delta, tid, phases), owed_futex(delta, tid, phases)];
        *futex = total(counted.into_iter()).min(*futex);
    }
    offcpu
}

/// The part of a thread's futex waits that other processes owe, in memory that they share.
fn owed_futex(delta: &Delta<'_>, tid: Option<Tid>, phases: Phases) -> Nanos {
    let of_process = |wait: &Wait| wait.relation == Relation::Other;
    total(waits_in(delta, tid, phases, &[Reason::Futex]).filter(of_process).map(|own| own.held))
}

/// All effects in a process's windows.
pub(crate) fn measure(
    process: &Process<'_>,
    history: &History,
    settings: &Settings,
) -> Vec<Measured> {
    let tails = tail::measure(process, settings);
    let gaps = launch_gap::measure(process, settings);
    let drop = rate_drop::measure(process, history, settings);
    tails.into_iter().chain(gaps).chain(drop).collect()
}

/// Futex waits that were for data, of one thread or of all: ended by a worker, or by an idle thread of the victim that passed on what a
/// worker prepared, such as the one that pins memory. The latter count up to the time that workers ended: such a thread waits for a
/// worker for as long.
pub(crate) fn futex_for_data(delta: &Delta<'_>, tid: Option<Tid>, phases: Phases) -> Nanos {
    let of_worker = |wait: &Wait| wait.relation == Relation::Worker;
    // Checked first: most programs have no workers.
    if !delta.waits().iter().any(of_worker) {
        return Nanos(0);
    }
    let workers =
        total(waits_in(delta, None, phases, &DATA_WAITS).filter(of_worker).map(|w| w.total));
    if workers.0 == 0 {
        return workers;
    }
    let (mut ended, mut passed_on) = (Nanos(0), Nanos(0));
    for wait in waits_in(delta, tid, phases, &[Reason::Futex]) {
        match wait.relation {
            Relation::Worker => ended.0 = ended.0.saturating_add(wait.total.0),
            Relation::Thread => {
                passed_on.0 = passed_on.0.saturating_add(wait.total.less(wait.held).0);
            }
            _ => {}
        }
    }
    Nanos(ended.0.saturating_add(passed_on.min(workers).0))
}
