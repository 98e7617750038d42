//! Calls in flight for more than one tick, with the accounts of their threads when they began. A call hangs only after many ticks,
//! and is then charged from its beginning.

use std::collections::HashMap;

use gpucause_abi::snapshot::{DispatcherSnapshot, Snapshot, TimeAccount};
use gpucause_abi::{Nanos, ProcId, Tid};

use crate::baseline::{Baseline, PackedTime};

#[derive(Debug, Default)]
pub(crate) struct LongCalls(HashMap<(ProcId, Tid), Call>);

#[derive(Debug)]
struct Call {
    /// Number and time of the tick before it began.
    tick: u64,
    at: Nanos,
    /// Account of the thread at that tick.
    time: PackedTime,
    /// When the call was last seen: a call that began later is another.
    seen: Nanos,
    charged: bool,
}

impl LongCalls {
    /// Adds calls that are still in flight and removes those that have returned.
    pub(crate) fn update(&mut self, now: &Snapshot, baselines: &[Baseline], tick: u64) {
        let mut known = std::mem::take(&mut self.0);
        let last = baselines.last().map_or(now.taken_at, |last| last.at);
        for process in now.processes.iter().filter(|process| process.ended.is_none()) {
            for thread in &process.dispatchers {
                let Some(began) = thread.inflight.map(|(_, age)| now.taken_at.less(age)) else {
                    continue;
                };
                if began > last {
                    continue;
                }
                let key = (process.id, thread.tid);
                let same = known.remove(&key).filter(|call| began <= call.seen);
                if let Some(call) = same.or_else(|| begin(baselines, key, began, tick)) {
                    self.0.insert(key, Call { seen: now.taken_at, ..call });
                }
            }
        }
    }

    /// Returns a thread's time since the tick before its call began, how long ago that tick was, and the number of the tick after it.
    pub(crate) fn since(
        &self,
        process: ProcId,
        thread: &DispatcherSnapshot,
        now: Nanos,
    ) -> Option<(TimeAccount, Nanos, u64)> {
        let call = self.0.get(&(process, thread.tid)).filter(|call| !call.charged)?;
        Some((call.time.until(thread.time), now.less(call.at), call.tick + 1))
    }

    pub(crate) fn set_charged(&mut self, process: ProcId, tid: Tid) {
        if let Some(call) = self.0.get_mut(&(process, tid)) {
            call.charged = true;
        }
    }

    /// The first tick whose charges are still needed for a process with such a call.
    pub(crate) fn first_tick(&self, process: ProcId) -> Option<u64> {
        let own = self.0.iter().filter(|((id, _), call)| *id == process && !call.charged);
        own.map(|(_, call)| call.tick + 1).min()
    }
}

fn begin(
    baselines: &[Baseline],
    (process, tid): (ProcId, Tid),
    began: Nanos,
    tick: u64,
) -> Option<Call> {
    let (ticks_ago, baseline) =
        (0..).zip(baselines.iter().rev()).find(|(_, baseline)| baseline.at <= began)?;
    let threads = &baseline.processes.get(&process)?.threads;
    let time = threads.iter().find(|thread| thread.tid == tid)?.time.clone();
    let tick = tick.saturating_sub(1 + ticks_ago);
    Some(Call { tick, at: baseline.at, time, seen: baseline.at, charged: false })
}
