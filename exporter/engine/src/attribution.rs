//! Charges causes with the time that they took.
//!
//! A cause is named an evaluation or more after it began: a first small loss may pass, and some effects need many calls to be seen.
//! When it is named it is charged with what it took in the evaluations before as well, as far as they are remembered, the process had
//! warmed up and no other cause was charged with it. A call that hangs is charged from its beginning.

use std::collections::HashMap;

use gpucause_abi::snapshot::TimeAccount;
use gpucause_abi::{Nanos, ProcId, Tid};

use crate::case::{Scene, Subject};
use crate::chain::Effect;
use crate::charged::Charged;
use crate::delta::Delta;
use crate::divide::{Span, at_most, less, lost, part, within};
use crate::effect::Phases;
use crate::engine::Moment;
use crate::finding::Finding;
use crate::ledger::{Cost, Ledger, Standing};
use crate::long_calls::LongCalls;
use crate::losses;
use crate::past::Past;

/// What is charged at one evaluation.
#[derive(Debug)]
pub(crate) struct Attribution<'a> {
    /// The evaluations before, the last at the end.
    pub(crate) past: &'a [Past],
    /// This one.
    pub(crate) moment: &'a Moment,
    /// Its number.
    pub(crate) look: u64,
    pub(crate) ledger: &'a mut Ledger,
    pub(crate) charged: &'a mut Charged,
    pub(crate) long_calls: &'a mut LongCalls,
}

impl Attribution<'_> {
    /// Charges the causes that were found for one process.
    pub(crate) fn charge(&mut self, scene: &Scene<'_>, found: Vec<Finding>) {
        let (now, unix) = (self.moment.snapshot.taken_at, self.moment.unix_seconds);
        let mut named = Vec::with_capacity(found.len());
        // Even what may pass is not another's.
        let mut pending: HashMap<Tid, TimeAccount> = HashMap::new();
        for finding in found {
            let Some(subject) = scene.subjects.get(finding.subject) else { continue };
            match self.ledger.standing(scene, &finding, (self.look, now)) {
                Standing::Pending => {
                    if let Some(tid) = finding.tid {
                        pending.entry(tid).or_default().merge(&finding.taken);
                    }
                }
                Standing::Named { unseen } => {
                    if let Some(tid) = finding.tid {
                        self.charged.add(subject.now.id, self.look, tid, &finding.taken);
                    }
                    named.push((subject, finding, unseen));
                }
            }
        }
        for (subject, finding, unseen) in named {
            let cost = match finding.effect {
                Effect::Hang => self.cost_of_hang(subject, &finding),
                _ => self.cost(subject, &finding, unseen, &pending),
            };
            self.ledger.take(scene, finding, cost, (self.look, now, unix));
        }
    }

    /// What a cause cost since its chain was last charged.
    fn cost(
        &mut self,
        subject: &Subject<'_>,
        finding: &Finding,
        unseen: u64,
        pending: &HashMap<Tid, TimeAccount>,
    ) -> Cost {
        let since = (unseen > 0).then(|| since(self.past, subject, unseen)).flatten();
        let Some((past, looks)) = since else {
            return cost(finding, &subject.short, &finding.taken);
        };
        let delta = past.delta(&self.moment.snapshot, subject.now);
        let throttled = past.throttled(&self.moment.throttled_cgroups, subject.now.id);
        let own = |delta: &Delta<'_>| finding.tid.and_then(|tid| delta.thread(tid));
        let mut taken = *finding.taken;
        if let (Some(thread), Some((claim, phases))) = (own(&delta), finding.claim) {
            let all = claim(&Span { delta: &delta, throttled }, &thread, phases);
            let now = |short| claim(&subject.span(), &short, phases);
            let earlier = less(all, &own(&subject.short).map(now).unwrap_or_default());
            let first = self.look.saturating_sub(looks);
            let left = pending.get(&thread.tid).map_or(thread.time, |own| less(thread.time, own));
            let whole = (left, delta.wall, first);
            taken.merge(&self.add_earlier(subject.now.id, thread.tid, earlier, whole));
        }
        cost(finding, &delta, &taken)
    }

    /// What a call that hangs cost since its chain was last charged: of a new one, since the call began.
    fn cost_of_hang(&mut self, subject: &Subject<'_>, finding: &Finding) -> Cost {
        let (process, now) = (subject.now.id, self.moment.snapshot.taken_at);
        let thread = subject.now.dispatchers.iter().find(|own| Some(own.tid) == finding.tid);
        let mut taken = *finding.taken;
        if let (Some(thread), Some((_, Phases::Only(phase)))) = (thread, finding.claim)
            && let Some(whole) = self.long_calls.since(process, thread, now)
            && let Some((_, age)) = thread.inflight
        {
            let in_call = less(part(&whole.0, |own, _| own == phase), &finding.taken);
            // In the evaluation in which it began there may have been others of its kind.
            let earlier = at_most(in_call, age.less(finding.taken.total()));
            taken.merge(&self.add_earlier(process, thread.tid, earlier, whole));
            self.long_calls.charged(process, thread.tid);
        }
        cost(finding, &subject.short, &taken)
    }

    /// Charges a cause with a part of what a thread did from an evaluation on, as far as nobody was charged with it.
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
        self.charged.add(process, self.look, tid, &earlier);
        earlier
    }
}

/// The evaluation from which on a cause is to be charged, and how many evaluations before this one that is.
fn since<'a>(past: &'a [Past], subject: &Subject<'_>, unseen: u64) -> Option<(&'a Past, u64)> {
    let looks = unseen.min(subject.settled_looks.into());
    let begun = past.iter().rev().zip(0..);
    let begun = begun.take_while(|&(past, before)| before <= looks && past.knows(subject.now));
    begun.last().filter(|&(_, looks)| looks > 0)
}

/// Time that was taken in a window, as a cost.
fn cost(finding: &Finding, window: &Delta<'_>, taken: &TimeAccount) -> Cost {
    let (attributed, lost) = (taken.total(), lost(finding.cause, taken));
    Cost { attributed, lost, losses: losses::of(window, finding, lost) }
}
