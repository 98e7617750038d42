//! Charges causes with the time that they took.
//!
//! A cause is reported one tick or more after it began: a first small loss is pending, and some effects show only over many calls.
//! It is then also charged with what it took in earlier ticks, as far as their snapshots are kept, the process had loaded what it begins
//! with and no other cause was charged. A call that hangs is charged from its beginning.

use std::collections::HashMap;

use gpucause_abi::snapshot::TimeAccount;
use gpucause_abi::{Nanos, ProcId, Tid};

use crate::baseline::Baseline;
use crate::chain::Effect;
use crate::chain_store::{ChainStore, Cost, Status};
use crate::charged::Charged;
use crate::claim::Span;
use crate::context::{Context, Process};
use crate::delta::Delta;
use crate::detection::Detection;
use crate::divide::lost;
use crate::input::EngineInput;
use crate::long_calls::LongCalls;
use crate::losses;
use crate::phases::Phases;
use crate::times::{at_most, less, part, within};

/// Data for charging causes at one tick.
#[derive(Debug)]
pub(crate) struct Attribution<'a> {
    /// The latest is last.
    pub(crate) baselines: &'a [Baseline],
    pub(crate) input: &'a EngineInput,
    pub(crate) tick: u64,
    pub(crate) store: &'a mut ChainStore,
    pub(crate) charged: &'a mut Charged,
    pub(crate) long_calls: &'a mut LongCalls,
}

impl Attribution<'_> {
    /// Charges the causes that were found for one process.
    pub(crate) fn charge(&mut self, context: &Context<'_>, found: Vec<Detection>) {
        let (now, unix) = (self.input.snapshot.taken_at, self.input.unix_seconds);
        let mut active = Vec::with_capacity(found.len());
        // No other cause is charged with the time of a pending detection.
        let mut pending: HashMap<Tid, TimeAccount> = HashMap::new();
        for detection in found {
            let Some(process) = context.processes.get(detection.process) else { continue };
            match self.store.status(context, &detection, (self.tick, now)) {
                Status::Pending => {
                    if let Some(tid) = detection.tid {
                        pending.entry(tid).or_default().merge(&detection.taken);
                    }
                }
                Status::Active { unseen } => {
                    if let Some(tid) = detection.tid {
                        self.charged.add(process.now.id, self.tick, tid, &detection.taken);
                    }
                    active.push((process, detection, unseen));
                }
            }
        }
        for (process, detection, unseen) in active {
            let cost = match detection.effect {
                Effect::Hang => self.cost_of_hang(process, &detection),
                _ => self.cost(process, &detection, unseen, &pending),
            };
            self.store.record(context, detection, cost, (self.tick, now, unix));
        }
    }

    /// Returns the cost of a cause since its chain was last charged.
    fn cost(
        &mut self,
        process: &Process<'_>,
        detection: &Detection,
        unseen: u64,
        pending: &HashMap<Tid, TimeAccount>,
    ) -> Cost {
        let unseen = unseen.min(detection.lasted.unwrap_or(u64::MAX));
        let since = (unseen > 0).then(|| since(self.baselines, process, unseen)).flatten();
        let Some((baseline, ticks)) = since else {
            return cost(detection, &process.short, &detection.taken);
        };
        let delta = baseline.delta(&self.input.snapshot, process.now);
        let throttled = baseline.throttled(&self.input.throttled_cgroups, process.now.id);
        let own = |delta: &Delta<'_>| detection.tid.and_then(|tid| delta.thread(tid));
        let mut taken = *detection.taken;
        if let (Some(thread), Some((claim, phases))) = (own(&delta), detection.claim) {
            let all = claim(&Span { delta: &delta, throttled }, &thread, phases);
            let now = |short| claim(&process.span(), &short, phases);
            let earlier = less(all, &own(&process.short).map(now).unwrap_or_default());
            let first = self.tick.saturating_sub(ticks);
            let left = pending.get(&thread.tid).map_or(thread.time, |own| less(thread.time, own));
            let whole = (left, delta.wall, first);
            taken.merge(&self.add_earlier(process.now.id, thread.tid, earlier, whole));
        }
        cost(detection, &delta, &taken)
    }

    /// Returns the cost of a hang since its chain was last charged; for a new chain, since the call began.
    fn cost_of_hang(&mut self, process: &Process<'_>, detection: &Detection) -> Cost {
        let (id, now) = (process.now.id, self.input.snapshot.taken_at);
        let thread = process.now.dispatchers.iter().find(|own| Some(own.tid) == detection.tid);
        let mut taken = *detection.taken;
        if let (Some(thread), Some((_, Phases::Only(phase)))) = (thread, detection.claim)
            && let Some(whole) = self.long_calls.since(id, thread, now)
            && let Some((_, age)) = thread.inflight
        {
            let in_call = less(part(&whole.0, |own, _| own == phase), &detection.taken);
            // The window in which it began may have other calls of its phase.
            let earlier = at_most(in_call, age.less(detection.taken.total()));
            taken.merge(&self.add_earlier(id, thread.tid, earlier, whole));
            self.long_calls.set_charged(id, thread.tid);
        }
        cost(detection, &process.short, &taken)
    }

    /// Charges a cause with earlier time of a thread that no cause was charged with.
    fn add_earlier(
        &mut self,
        process: ProcId,
        tid: Tid,
        earlier: TimeAccount,
        (time, wall, first): (TimeAccount, Nanos, u64),
    ) -> TimeAccount {
        let left = less(time, &self.charged.of_thread(process, first, tid));
        let wall = wall.less(self.charged.total(process, first));
        let earlier = at_most(within(earlier, &left), wall);
        self.charged.add(process, self.tick, tid, &earlier);
        earlier
    }
}

/// The snapshot since which a cause is charged, and how many ticks ago it was the latest.
fn since<'a>(
    baselines: &'a [Baseline],
    process: &Process<'_>,
    unseen: u64,
) -> Option<(&'a Baseline, u64)> {
    let ticks = unseen.min(process.ticks_since_loading.into());
    let known = baselines.iter().rev().zip(0..);
    let known = known.take_while(|&(baseline, ago)| ago <= ticks && baseline.knows(process.now));
    known.last().filter(|&(_, ticks)| ticks > 0)
}

fn cost(detection: &Detection, window: &Delta<'_>, taken: &TimeAccount) -> Cost {
    let (attributed, lost) = (taken.total(), lost(detection.cause, detection.effect, taken));
    Cost { attributed, lost, losses: losses::of(window, detection, lost) }
}
