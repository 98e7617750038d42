//! Time that causes were charged with at recent ticks, so that a cause that is reported late is not charged with time of another.

use std::collections::HashMap;

use gpucause_abi::snapshot::TimeAccount;
use gpucause_abi::{Nanos, ProcId, Tid};

#[derive(Debug, Default)]
pub(crate) struct Charged(HashMap<ProcId, Vec<Charge>>);

#[derive(Debug)]
struct Charge {
    tick: u64,
    tid: Tid,
    time: TimeAccount,
}

impl Charged {
    /// Records that a cause was charged with this time of a thread.
    pub(crate) fn add(&mut self, process: ProcId, tick: u64, tid: Tid, time: &TimeAccount) {
        let charges = self.0.entry(process).or_default();
        match charges.iter_mut().find(|own| (own.tick, own.tid) == (tick, tid)) {
            Some(own) => own.time.merge(time),
            None => charges.push(Charge { tick, tid, time: *time }),
        }
    }

    fn since(&self, process: ProcId, tick: u64) -> impl Iterator<Item = &Charge> {
        let charges = self.0.get(&process).into_iter().flatten();
        charges.filter(move |own| own.tick >= tick)
    }

    /// Time of a thread that was charged since this tick.
    pub(crate) fn of_thread(&self, process: ProcId, tick: u64, tid: Tid) -> TimeAccount {
        let own = self.since(process, tick).filter(|own| own.tid == tid);
        own.fold(TimeAccount::default(), |mut all, own| {
            all.merge(&own.time);
            all
        })
    }

    /// Time of all threads that was charged since this tick.
    pub(crate) fn total(&self, process: ProcId, tick: u64) -> Nanos {
        let times = self.since(process, tick).map(|own| own.time.total().0);
        Nanos(times.fold(0, u64::saturating_add))
    }

    /// Removes charges before the `oldest` tick of a process, and processes that are gone.
    pub(crate) fn tidy(&mut self, oldest: impl Fn(ProcId) -> Option<u64>) {
        self.0.retain(|&process, charges| {
            let Some(oldest) = oldest(process) else { return false };
            charges.retain(|own| own.tick >= oldest);
            !charges.is_empty()
        });
    }
}
