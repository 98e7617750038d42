//! The victim waited for a lock, or for a busy thread of its own process.

use gpucause_abi::snapshot::{TimeAccount, Wait};
use gpucause_abi::state::{Phase, Reason, Relation, State};
use gpucause_abi::{Nanos, Tid};

use super::Rule;
use super::share::best;
use crate::chain::{Cause, Step};
use crate::context::{Context, Process, waits_in};
use crate::delta::{Delta, ThreadDelta};
use crate::detection::{Detection, Sentence, culprit_of, name_of};
use crate::divide::Span;
use crate::effect::{Measured, Phases, ratio, total};

const FUTEX: [Reason; 1] = [Reason::Futex];

fn is_for_lock(wait: &&Wait) -> bool {
    wait.relation != Relation::Worker
}

/// Whether the thread that ended the wait was busy for most of it. If it slept, as a front end does between requests, it held no
/// lock: the victim was idle.
pub(crate) fn was_held(wait: &Wait) -> bool {
    is_for_lock(&wait) && wait.held.0 >= wait.total.less(wait.held).0
}

/// Share of the futex time in these phases in which a lock was held.
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

/// The futex time of an effect in which a lock was held.
pub(super) fn held_in(process: &Process<'_>, effect: &Measured) -> Nanos {
    let held = held_share(effect.delta(process), effect.phases, effect.tid);
    effect.offcpu(&FUTEX).share(held)
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
    // Waiting for other dispatcher threads loses nothing.
    let own = ratio(waited.less(span.delta.worked_by_others(thread)), waited);
    for &phase in Phase::ALL.iter().filter(|&&phase| between(phase)) {
        let cell = &mut claim.0[phase as usize][futex.index()];
        *cell = cell.share(own);
    }
    claim
}

pub(super) const RULE: Rule = Rule {
    cause: Cause::LockWait,
    reads: &[
        "gpucause_cuda_call_offcpu_seconds_total",
        "gpucause_dispatcher_seconds_total",
        "gpucause_blocked_on_seconds_total",
    ],
    needs: "futex waits for a lock, or for a thread that was busy for most of the wait, are part of an effect",
    during_warm_up: false,
    evaluate,
};

fn evaluate(context: &Context<'_>, index: usize) -> Option<Detection> {
    let process = context.processes.get(index)?;
    let cause = Cause::LockWait;
    let share = best(
        context,
        process,
        cause,
        |effect| held_in(process, effect),
        |effect, thread| {
            let delta = effect.delta(process);
            claim(&Span { delta, throttled: Nanos(0) }, thread, effect.phases).total()
        },
    )?;
    let waits = process.waits_of(share.tid, share.effect, &FUTEX);
    let all = total(waits.iter().filter(is_for_lock).map(|wait| wait.total));
    let tasks = waits.iter().filter(is_for_lock).filter(|wait| wait.tgid.is_some());
    let holder = tasks.max_by_key(|wait| wait.held);
    let evidence = share
        .evidence()
        .with("held_seconds", share.time.as_secs_f64())
        .with("holder_share", holder.map_or(0.0, |wait| ratio(wait.total, all)))
        .with("holder_seconds", holder.map_or(0.0, |wait| wait.total.as_secs_f64()));
    let (comm, victim) = (process.now.comm.to_text(), name_of(process));
    let name = holder.map_or_else(|| "another thread".to_owned(), |wait| wait.on.to_text());
    let sentence = "Waiting for a lock held by {holder} took {taken_share|percent} of the last {window_seconds|seconds} of \
                    {comm} and explains {explained_share|percent} of its {effect}; {holder} ended {holder_seconds|seconds} of \
                    the waits[ in {calls}].";
    Some(Detection {
        culprit: holder.and_then(culprit_of),
        path: vec![
            Step::new(name.clone(), &victim, share.mechanism("held a lock"), share.time),
            Step::new(
                victim,
                share.effect.effect.label(),
                share.mechanism("blocked in futex"),
                share.time,
            ),
        ],
        sentence: Sentence::new(sentence, [("comm", &*comm), ("holder", &*name)])
            .and("calls", share.effect.effect.slow_calls()),
        fix: format!(
            "Find what thread {name} does while it holds the lock, and move that out; gdb stops the process for about a second."
        ),
        ..share.detection(cause, (index, process), claim, evidence)
    })
}
