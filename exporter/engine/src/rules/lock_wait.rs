//! The victim waited for a lock, or for a thread of its own process that was busy with what it waited for.

use gpucause_abi::snapshot::Wait;
use gpucause_abi::state::{Reason, Relation, State};
use gpucause_abi::{Nanos, Tid};

use super::share::best;
use super::{Declaration, Rule, Window};
use crate::case::{Scene, Subject};
use crate::chain::{Cause, Step};
use crate::delta::ThreadDelta;
use crate::effect::{Measured, Phases, ratio, total};
use crate::finding::{Finding, culprit_of, name_of};
use crate::tell::tell;

pub(super) struct LockWait;

const FUTEX: [Reason; 1] = [Reason::Futex];

/// Whether no worker process ended the wait.
fn is_for_lock(wait: &&Wait) -> bool {
    wait.relation != Relation::Worker
}

/// Share of the futex time in an effect in which the lock was held. Asked for every thread, and so without adding up by name.
fn held_share(subject: &Subject<'_>, effect: &Measured, tid: Option<Tid>) -> f64 {
    let (mut held, mut all) = (Nanos(0), Nanos(0));
    for wait in subject.waits_in(tid, effect, &FUTEX) {
        all.0 = all.0.saturating_add(wait.total.0);
        if is_for_lock(&&wait) {
            held.0 = held.0.saturating_add(wait.held.0);
        }
    }
    ratio(held, all)
}

/// What a thread lost to locks. Futex waits elsewhere than where the effect is have no part in it: they may be idle.
fn lost(subject: &Subject<'_>, effect: &Measured, thread: &ThreadDelta) -> Nanos {
    let waited = thread.in_state(State::Off(Reason::Futex), |phase| effect.phases.contain(phase));
    let handed_over = match effect.phases {
        Phases::Only(_) => Nanos(0),
        _ => effect.delta(subject).worked_by_others(thread),
    };
    let waited = waited.less(handed_over);
    if waited.0 == 0 {
        return waited;
    }
    waited.share(held_share(subject, effect, Some(thread.tid)))
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
        let share = best(
            scene,
            subject,
            cause,
            |effect| effect.offcpu(&FUTEX).share(held_share(subject, effect, effect.tid)),
            |effect, thread| lost(subject, effect, thread),
        )?;
        let waits = subject.waits_of(share.tid, share.effect, &FUTEX);
        let all = total(waits.iter().filter(is_for_lock).map(|wait| wait.total));
        let tasks = waits.iter().filter(is_for_lock).filter(|wait| wait.tgid.is_some());
        let holder = tasks.max_by_key(|wait| wait.held);
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
            attributed: share.attributed,
            lost: share.attributed,
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
