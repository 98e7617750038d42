//! The victim waited for a lock that another thread held.
//!
//! The kernel's account has a state of its own for waits whose futex is known to be a held lock. A thread that waits for the work of
//! another one, as autograd's for its queue, is in another state, and nobody is blamed for it, whatever the other does.

use gpucause_abi::snapshot::{TimeAccount, Wait};
use gpucause_abi::state::{Phase, Reason, State};
use gpucause_abi::{Nanos, Tid};

use super::Rule;
use super::share::{MOST, best, lost, lost_part};
use crate::chain::{Cause, Culprit, Step};
use crate::claim::Span;
use crate::context::{Context, waits_in};
use crate::delta::{Delta, ThreadDelta};
use crate::detection::{Detection, Sentence, culprit_of, name_of};
use crate::phases::Phases;
use crate::times::{at_most, part, ratio, total};

const LOCK: [Reason; 1] = [Reason::Lock];
/// A holder of several is named from this part of the waits on.
const WORTH_NAMING: f64 = 0.1;
const MOST_NAMED: usize = 3;

pub(super) const RULE: Rule = Rule {
    cause: Cause::LockWait,
    reads: &[
        "gpucause_cuda_call_offcpu_seconds_total",
        "gpucause_dispatcher_seconds_total",
        "gpucause_blocked_on_seconds_total",
    ],
    needs: "waits for a held lock (a mutex or read-write lock of the C library, or a lock that its threads poll, as Python's for its interpreter) are part of an effect",
    during_warm_up: false,
    evaluate,
};

/// How long a thread waited for the work of others that launch for it, as autograd's, while those waited for locks.
pub(crate) fn behind(delta: &Delta<'_>, tid: Tid, phases: Phases) -> Nanos {
    let behind = waits_in(delta, Some(tid), phases, &[Reason::Futex]).map(|wait| wait.behind);
    total(behind).min(of_others(delta, tid))
}

/// Time that other threads of the process that launch lost to locks.
pub(crate) fn of_others(delta: &Delta<'_>, tid: Tid) -> Nanos {
    let others = delta.threads().iter().filter(|own| own.tid != tid);
    total(others.map(|own| lost(own, &LOCK)))
}

fn claim(span: &Span<'_, '_>, thread: &ThreadDelta, phases: Phases) -> TimeAccount {
    let waits = part(&thread.time, |phase, state| {
        state == State::Off(Reason::Futex) && phases.contain(phase) && phase != Phase::Sync
    });
    let mut claim = at_most(waits, behind(span.delta, thread.tid, phases));
    claim.merge(&lost_part(thread, &LOCK));
    claim
}

/// The threads that held the lock for most of the waits, each for a part worth naming, without and with their shares; `None` for fewer than
/// two. The waits are those by name, the longest first.
fn several(waits: &[Wait], all: Nanos) -> Option<(String, String)> {
    let holders: Vec<_> = waits
        .iter()
        .filter(|wait| wait.tgid.is_some() && wait.held.0 > 0)
        .map(|wait| (ratio(wait.total, all), wait))
        .filter(|(share, _)| *share >= WORTH_NAMING)
        .take(MOST_NAMED)
        .collect();
    if holders.len() < 2 || holders.iter().map(|(share, _)| share).sum::<f64>() < MOST {
        return None;
    }
    let names = holders.iter().map(|(_, wait)| match wait.holder {
        Some(tid) => format!("{} (thread {})", wait.on.to_text(), tid.0),
        None => wait.on.to_text(),
    });
    let shares = holders.iter().map(|(share, wait)| {
        let thread = wait.holder.map(|tid| format!("thread {}, ", tid.0)).unwrap_or_default();
        format!("{} ({thread}{:.0} %)", wait.on.to_text(), share * 100.0)
    });
    Some((listed(&names.collect::<Vec<_>>()), listed(&shares.collect::<Vec<_>>())))
}

/// "a, b and c".
fn listed(names: &[String]) -> String {
    match names {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => names.concat(),
    }
}

fn evaluate(context: &Context<'_>, index: usize) -> Option<Detection> {
    let process = context.processes.get(index)?;
    let cause = Cause::LockWait;
    let mut share = best(context, process, cause, |e| e.offcpu(&LOCK), |_, t| lost(t, &LOCK))?;
    let delta = share.effect.delta(process);
    let behind = behind(delta, share.tid, share.effect.phases);
    share.taken_share = (share.taken_share + ratio(behind, delta.wall)).min(1.0);
    let waits = process.waits_of(share.tid, share.effect, &LOCK);
    let all = total(waits.iter().map(|wait| wait.total));
    let holders = waits.iter().filter(|wait| wait.tgid.is_some() && wait.held.0 > 0);
    let holder = holders.max_by_key(|wait| wait.held);
    let holder = holder.filter(|wait| ratio(wait.total, all) >= MOST);
    let mut evidence = share.evidence();
    if behind.0 > 0 {
        evidence = evidence.with("behind_seconds", behind.as_secs_f64());
    }
    evidence = evidence.with("held_seconds", share.time.as_secs_f64());
    if let Some(holder) = holder {
        evidence = evidence
            .with("holder_share", ratio(holder.total, all))
            .with("holder_seconds", holder.total.min(share.time).as_secs_f64());
    }
    let (comm, victim) = (process.now.comm.to_text(), name_of(process));
    let culprit = holder.and_then(|wait| {
        let tid = wait.holder.map(|tid| tid.0);
        culprit_of(wait).map(|culprit| Culprit { tid, ..culprit })
    });
    let name = match &culprit {
        Some(Culprit { comm, tid: Some(tid), .. }) => format!("{comm} (thread {tid})"),
        Some(culprit) => culprit.comm.clone(),
        None => "other threads".to_owned(),
    };
    let in_turns = if culprit.is_some() { None } else { several(&waits, all) };
    let (name, shown) = in_turns.unwrap_or_else(|| (name.clone(), name));
    let (does, holds) = if culprit.is_some() { ("does", "it holds") } else { ("do", "they hold") };
    let sentence = "Waiting for a lock held by {holder} took {taken_share|percent} of the last {window_seconds|seconds} of \
                    {comm} and explains {explained_share|percent} of its {effect}[, {behind_seconds|seconds} of it behind another thread][; {holder} ended {holder_seconds|seconds} of \
                    the waits][ in {calls}].";
    Some(Detection {
        culprit,
        path: vec![
            Step::new(name.clone(), &victim, share.mechanism("held a lock"), share.time),
            Step::new(
                victim,
                share.effect.effect.label(),
                share.mechanism("blocked in futex"),
                share.time,
            ),
        ],
        sentence: Sentence::new(sentence, [("comm", &*comm), ("holder", &*shown)])
            .and("calls", share.effect.effect.slow_calls()),
        fix: format!(
            "Find what {name} {does} while {holds} the lock, and move that out; gdb stops the process for about a second."
        ),
        ..share.detection(cause, (index, process), claim, evidence)
    })
}
