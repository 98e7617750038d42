//! What causes were charged with in the last evaluations, so that a cause that is named late is not charged with time of another.

use std::collections::HashMap;

use gpucause_abi::snapshot::TimeAccount;
use gpucause_abi::{Nanos, ProcId, Tid};

/// By process.
#[derive(Debug, Default)]
pub(crate) struct Charged(HashMap<ProcId, Vec<Charge>>);

#[derive(Debug)]
struct Charge {
    look: u64,
    tid: Tid,
    time: TimeAccount,
}

impl Charged {
    /// Remembers that a cause was charged with this time of a thread.
    pub(crate) fn add(&mut self, process: ProcId, look: u64, tid: Tid, time: &TimeAccount) {
        let charges = self.0.entry(process).or_default();
        match charges.iter_mut().find(|own| (own.look, own.tid) == (look, tid)) {
            Some(own) => own.time.merge(time),
            None => charges.push(Charge { look, tid, time: *time }),
        }
    }

    fn since(&self, process: ProcId, look: u64) -> impl Iterator<Item = &Charge> {
        let charges = self.0.get(&process).into_iter().flatten();
        charges.filter(move |own| own.look >= look)
    }

    /// What was charged of a thread's time at this evaluation and later.
    pub(crate) fn of_thread(&self, process: ProcId, look: u64, tid: Tid) -> TimeAccount {
        let own = self.since(process, look).filter(|own| own.tid == tid);
        own.fold(TimeAccount::default(), |mut all, own| {
            all.merge(&own.time);
            all
        })
    }

    /// What was charged of all its threads' time.
    pub(crate) fn total(&self, process: ProcId, look: u64) -> Nanos {
        let times = self.since(process, look).map(|own| own.time.total().0);
        Nanos(times.fold(0, u64::saturating_add))
    }

    /// Forgets what is older than the evaluation that is the oldest for a process, and processes that are gone.
    pub(crate) fn tidy(&mut self, oldest: impl Fn(ProcId) -> Option<u64>) {
        self.0.retain(|&process, charges| {
            let Some(oldest) = oldest(process) else { return false };
            charges.retain(|own| own.look >= oldest);
            !charges.is_empty()
        });
    }
}
