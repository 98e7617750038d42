//! Calls that have not returned for an evaluation or more: what the accounts of their threads were when they began. A call hangs only after
//! many evaluations, and is then charged from its beginning.

use std::collections::HashMap;

use gpucause_abi::snapshot::{DispatcherSnapshot, Snapshot, TimeAccount};
use gpucause_abi::{Nanos, ProcId, Tid};

use crate::past::{KeptTime, Past};

/// By thread.
#[derive(Debug, Default)]
pub(crate) struct LongCalls(HashMap<(ProcId, Tid), Call>);

/// A call that has not returned.
#[derive(Debug)]
struct Call {
    /// The evaluation before it began, and when that was.
    look: u64,
    at: Nanos,
    /// The account of the thread then.
    time: KeptTime,
    /// When the call was last seen: one that began later is another.
    seen: Nanos,
    /// Whether a chain was charged with it.
    charged: bool,
}

impl LongCalls {
    /// Remembers the calls that last, and forgets those that have returned.
    pub(crate) fn remember(&mut self, now: &Snapshot, past: &[Past], look: u64) {
        let mut known = std::mem::take(&mut self.0);
        let last = past.last().map_or(now.taken_at, |past| past.at);
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
                if let Some(call) = same.or_else(|| begin(past, key, began, look)) {
                    self.0.insert(key, Call { seen: now.taken_at, ..call });
                }
            }
        }
    }

    /// What a thread has done since the evaluation before its call began, how long ago that was, and the number of the evaluation
    /// after.
    pub(crate) fn since(
        &self,
        process: ProcId,
        thread: &DispatcherSnapshot,
        now: Nanos,
    ) -> Option<(TimeAccount, Nanos, u64)> {
        let call = self.0.get(&(process, thread.tid)).filter(|call| !call.charged)?;
        Some((call.time.until(thread.time), now.less(call.at), call.look + 1))
    }

    /// A chain was charged with the call.
    pub(crate) fn charged(&mut self, process: ProcId, tid: Tid) {
        if let Some(call) = self.0.get_mut(&(process, tid)) {
            call.charged = true;
        }
    }

    /// The first evaluation whose charges are still asked for, of a process that has such a call.
    pub(crate) fn first_look(&self, process: ProcId) -> Option<u64> {
        let own = self.0.iter().filter(|((id, _), call)| *id == process && !call.charged);
        own.map(|(_, call)| call.look + 1).min()
    }
}

fn begin(past: &[Past], (process, tid): (ProcId, Tid), began: Nanos, look: u64) -> Option<Call> {
    let (before, past) = (0..).zip(past.iter().rev()).find(|(_, past)| past.at <= began)?;
    let threads = &past.processes.get(&process)?.threads;
    let time = threads.iter().find(|thread| thread.tid == tid)?.time.clone();
    let look = look.saturating_sub(1 + before);
    Some(Call { look, at: past.at, time, seen: past.at, charged: false })
}
