//! Charges causes with the time that they took.
//!
//! A cause is named a look or more after it began: a first small loss may pass, and some effects need many calls to be seen.
//! When it is named it is charged with what it took in the looks before as well, as far as they are remembered, the process had
//! warmed up and no other cause was charged with it.

use gpucause_abi::Nanos;
use gpucause_abi::snapshot::TimeAccount;

use crate::case::{Scene, Subject};
use crate::chain::Effect;
use crate::charged::Charged;
use crate::delta::Delta;
use crate::divide::{Span, at_most, less, lost, within};
use crate::engine::Moment;
use crate::finding::Finding;
use crate::ledger::{Cost, Ledger, Standing};
use crate::losses;
use crate::past::Past;

/// What is charged at one look.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Books<'a> {
    /// The looks before, the last at the end.
    pub(crate) past: &'a [Past],
    /// This one.
    pub(crate) moment: &'a Moment,
    /// Its number.
    pub(crate) look: u64,
}

impl Books<'_> {
    /// Charges the causes that were found for one process.
    pub(crate) fn charge(
        &self,
        scene: &Scene<'_>,
        found: Vec<Finding>,
        ledger: &mut Ledger,
        charged: &mut Charged,
    ) {
        let (now, unix) = (self.moment.snapshot.taken_at, self.moment.unix_seconds);
        let standing = |finding: Finding| {
            let standing = ledger.standing(scene, &finding, (self.look, now));
            (finding, standing)
        };
        let found: Vec<_> = found.into_iter().map(standing).collect();
        // Even what may pass is not another's.
        let mut pending = TimeAccount::default();
        for (finding, standing) in &found {
            let process = scene.subjects.get(finding.subject).map(|subject| subject.now.id);
            match (standing, process, finding.tid) {
                (Standing::Named { .. }, Some(process), Some(tid)) => {
                    charged.add(process, self.look, tid, &finding.taken);
                }
                (Standing::Pending, ..) => pending.merge(&finding.taken),
                _ => {}
            }
        }
        for (finding, standing) in found {
            let Standing::Named { unseen } = standing else { continue };
            let Some(subject) = scene.subjects.get(finding.subject) else { continue };
            let cost = self.cost(subject, &finding, unseen, (charged, &pending));
            ledger.take(scene, finding, cost, (self.look, now, unix));
        }
    }

    /// What a cause cost since its chain was last charged.
    fn cost(
        &self,
        subject: &Subject<'_>,
        finding: &Finding,
        unseen: u64,
        (charged, pending): (&mut Charged, &TimeAccount),
    ) -> Cost {
        let mut taken = finding.taken;
        let since = (unseen > 0).then(|| self.since(subject, finding, unseen)).flatten();
        let Some((past, looks)) = since else {
            return cost(finding, &subject.span(), &taken);
        };
        let delta = past.delta(&self.moment.snapshot, subject.now);
        let throttled = past.throttled(&self.moment.throttled_cgroups, subject.now.id);
        let span = Span { delta: &delta, throttled };
        let own = |delta: &Delta<'_>| {
            delta.threads().iter().find(|thread| Some(thread.tid) == finding.tid).copied()
        };
        let (thread, short) = (own(&delta), own(&subject.short));
        if let (Some(thread), Some((claim, phases))) = (thread, finding.claim) {
            let (process, first) = (subject.now.id, self.look.saturating_sub(looks));
            let own = charged.of_thread(process, first, thread.tid);
            let left = less(less(thread.time, &own), pending);
            let all = claim(&span, &thread, phases);
            let now = short.map(|short| claim(&subject.span(), &short, phases)).unwrap_or_default();
            let wall = delta.wall.less(charged.total(process, first));
            let earlier = at_most(within(less(all, &now), &left), wall);
            charged.add(process, self.look, thread.tid, &earlier);
            taken.merge(&earlier);
        }
        cost(finding, &span, &taken)
    }

    /// The look from which on a cause is to be charged, and how many looks before this one that is.
    fn since(&self, subject: &Subject<'_>, finding: &Finding, unseen: u64) -> Option<(&Past, u64)> {
        let settled = match finding.effect {
            Effect::Hang => u64::MAX,
            _ => u64::from(subject.settled_looks),
        };
        let looks = unseen.min(settled);
        let begun = self
            .past
            .iter()
            .rev()
            .zip(0..)
            .take_while(|&(past, before)| before <= looks && past.knows(subject.now));
        begun.last().filter(|&(_, looks)| looks > 0)
    }
}

/// Time that was taken in a span, as a cost.
fn cost(finding: &Finding, span: &Span<'_, '_>, taken: &TimeAccount) -> Cost {
    let (attributed, lost): (_, Nanos) = (taken.total(), lost(finding.cause, taken));
    Cost { attributed, lost, losses: losses::of(span.delta, finding, lost) }
}
