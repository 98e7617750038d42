//! The victim waited for a lock, or for a thread of its own process that was busy with what it waited for.

use gpucause_abi::snapshot::{TimeAccount, Wait};
use gpucause_abi::state::{Phase, Reason, Relation, State};
use gpucause_abi::{Nanos, Tid};

use super::share::best;
use super::{Declaration, Rule, Window};
use crate::case::{Scene, waits_in};
use crate::chain::{Cause, Step};
use crate::delta::{Delta, ThreadDelta};
use crate::divide::Span;
use crate::effect::{Phases, ratio, total};
use crate::finding::{Finding, Sentence, culprit_of, name_of};

pub(super) struct LockWait;

const FUTEX: [Reason; 1] = [Reason::Futex];

/// Whether no worker process ended the wait.
fn is_for_lock(wait: &&Wait) -> bool {
    wait.relation != Relation::Worker
}

/// Whether whoever ended the wait was busy for most of it. One that slept for most of it, as a front end does between requests,
/// held no lock: the thread had nothing to do.
pub(crate) fn was_held(wait: &Wait) -> bool {
    is_for_lock(&wait) && wait.held.0 >= wait.total.less(wait.held).0
}

/// Share of the futex time in these phases in which a lock was held. Asked for every thread, and so without adding up by name.
fn held_share(delta: &Delta<'_>, phases: Phases, tid: Option<Tid>) -> f64 {
    let (mut held, mut all) = (Nanos(0), Nanos(0));
    for wait in waits_in(delta, tid, phases, &FUTEX) {
        all.0 = all.0.saturating_add(wait.total.0);
        if was_held(&wait) {
            held.0 = held.0.saturating_add(wait.held.0);
        }
    }
    ratio(held, all)
}

/// What a thread lost to locks, in calls and between them.
fn claim(span: &Span<'_, '_>, thread: &ThreadDelta, _: Phases) -> TimeAccount {
    let mut claim = TimeAccount::default();
    let futex = State::Off(Reason::Futex);
    for &phase in Phase::ALL.iter().filter(|&&phase| futex.is_lost_in(phase)) {
        let waited = thread.time.at(phase, futex);
        if waited.0 > 0 {
            let held = held_share(span.delta, Phases::Only(phase), Some(thread.tid));
            claim.0[phase as usize][futex.index()] = waited.share(held);
        }
    }
    let between = |phase| Phases::BetweenLaunches.contain(phase);
    let waited = thread.in_state(futex, between);
    // One that waits for other threads that feed the GPU loses nothing by it.
    let own = ratio(waited.less(span.delta.worked_by_others(thread)), waited);
    for &phase in Phase::ALL.iter().filter(|&&phase| between(phase)) {
        let cell = &mut claim.0[phase as usize][futex.index()];
        *cell = cell.share(own);
    }
    claim
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
            needs: "futex waits for a lock, or for a thread that was busy for most of them, are part of an effect",
        }
    }

    fn judge(&self, scene: &Scene<'_>, index: usize) -> Option<Finding> {
        let subject = scene.subjects.get(index)?;
        let cause = Cause::LockWait;
        let share = best(
            scene,
            subject,
            cause,
            |effect| {
                let held = held_share(effect.delta(subject), effect.phases, effect.tid);
                effect.offcpu(&FUTEX).share(held)
            },
            |effect, thread| {
                let delta = effect.delta(subject);
                claim(&Span { delta, throttled: Nanos(0) }, thread, effect.phases).total()
            },
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
            size: share.effect.excess,
            taken: share.taken(subject, claim).into(),
            claim: Some((claim, share.effect.phases)),
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
            sentence: Sentence::new(sentence, [("comm", &*comm), ("holder", &*name)]),
            fix: format!(
                "Look at what thread {name} does while it holds the lock (gpucause record, or py-spy dump for Python), and move it out."
            ),
            evidence,
        })
    }
}
