//! The victim waited for a lock, or for a thread of its own process that was busy with what it waited for.

use gpucause_abi::Nanos;
use gpucause_abi::snapshot::Wait;
use gpucause_abi::state::{Reason, Relation};

use super::share::{best, lost};
use super::{Declaration, Rule, Window};
use crate::case::{Scene, Subject};
use crate::chain::{Cause, Step};
use crate::effect::{Measured, ratio};
use crate::finding::{Finding, culprit_of, name_of};
use crate::tell::tell;

pub(super) struct LockWait;

/// Waits on futexes that are part of an effect, without those that a worker process ended.
fn waits(subject: &Subject<'_>, effect: &Measured) -> Vec<Wait> {
    let mut waits = subject.waits(effect, &[Reason::Futex]);
    waits.retain(|wait| wait.relation != Relation::Worker);
    waits
}

/// Futex time in an effect in which the lock was held. The waits tell the share: they are of all threads of the process.
fn held(subject: &Subject<'_>, effect: &Measured) -> Nanos {
    let all: u64 = subject.waits(effect, &[Reason::Futex]).iter().map(|wait| wait.total.0).sum();
    let held: u64 = waits(subject, effect).iter().map(|wait| wait.held.0).sum();
    effect.offcpu(&[Reason::Futex]).share(ratio(Nanos(held), Nanos(all)))
}

impl Rule for LockWait {
    fn declaration(&self) -> Declaration {
        Declaration {
            cause: Cause::LockWait,
            reads: &[
                "gpucause_cuda_call_offcpu_seconds_total",
                "gpucause_dispatcher_seconds_total",
                "gpucause_blocked_on_seconds_total",
            ],
            window: Window::Looks,
            needs: "futex waits for a lock, or for a thread that did not idle meanwhile, explain the effect",
        }
    }

    fn judge(&self, scene: &Scene<'_>, index: usize) -> Option<Finding> {
        let subject = scene.subjects.get(index)?;
        let cause = Cause::LockWait;
        let mut share = best(
            scene,
            subject,
            cause,
            |effect| held(subject, effect),
            |thread| lost(thread, &[Reason::Futex]),
        )?;
        let locks = ratio(share.time, share.effect.offcpu(&[Reason::Futex]));
        share.lost = share.lost.share(locks);
        share.lost_share *= locks;
        let waits = waits(subject, share.effect);
        let all = Nanos(waits.iter().map(|wait| wait.total.0).sum());
        let holder = waits.iter().filter(|wait| wait.tgid.is_some()).max_by_key(|wait| wait.held);
        let evidence = share
            .evidence()
            .with("held_seconds", share.time.as_secs_f64())
            .with("holder_share", holder.map_or(0.0, |wait| ratio(wait.total, all)))
            .with("holder_seconds", holder.map_or(0.0, |wait| wait.total.as_secs_f64()));
        let (comm, victim) = (subject.now.comm.to_text(), name_of(subject));
        let name = holder.map_or_else(|| "another thread".to_owned(), |wait| wait.on.to_text());
        let sentence = "{comm} waited for a lock that {holder} held: that is {explained_share|percent} of the time that is \
                        missing, and cost {lost_share|percent} of its time[; {holder} ended {holder_seconds|seconds} of \
                        the waits].";
        Some(Finding {
            cause,
            effect: share.effect.effect,
            subject: index,
            tid: Some(share.tid),
            culprit: holder.and_then(culprit_of),
            explained: share.explained,
            lost: share.lost,
            lost_share: share.lost_share,
            path: vec![
                Step {
                    from: name.clone(),
                    to: victim.clone(),
                    mechanism: "held a lock".into(),
                    seconds: share.time.as_secs_f64(),
                },
                Step {
                    from: victim,
                    to: share.effect.effect.label().into(),
                    mechanism: "blocked in futex".into(),
                    seconds: share.time.as_secs_f64(),
                },
            ],
            sentence: tell(sentence, &evidence, &[("comm", &comm), ("holder", &name)]),
            fix: format!(
                "Look at what thread {name} does while it holds the lock (gpucause record, or py-spy dump for Python), and move it out."
            ),
            evidence,
        })
    }
}
