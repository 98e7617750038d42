//! The victim waited for another process, which was busy: a reader that does not keep up, a child that compiles, a parent that prepares
//! the work, a driver's service; or which had the lock of a file.
//!
//! The part of a wait that the other process owes is measured in the kernel. Where the victim asked for something, as room in a pipe, that
//! is all of it. A thread that reads may be idle: then only the other's computing meanwhile counts, and only if it did nothing else.

use gpucause_abi::snapshot::{TimeAccount, Wait};
use gpucause_abi::state::{Reason, Relation, State};
use gpucause_abi::{Nanos, Tid};

use super::Rule;
use super::share::{MOST, best};
use crate::chain::{Cause, Chain, Step};
use crate::claim::Span;
use crate::context::{Context, Measured, Process, total_by_name, waits_in};
use crate::delta::{Delta, ThreadDelta};
use crate::detection::{Detection, Sentence, culprit_of, name_of};
use crate::phases::Phases;
use crate::times::{at_most, part, ratio, total};

/// Reasons of waits that another process can end, but for files, which are causes of their own.
const WAITS: [Reason; 6] =
    [Reason::Poll, Reason::Net, Reason::Child, Reason::GpuDriver, Reason::Futex, Reason::Other];
/// Least share that a process must owe of the waits that it ended.
const MIN_OWED: f64 = 0.8;

pub(super) const RULE: Rule = Rule {
    cause: Cause::ProcessWait,
    reads: &["gpucause_dispatcher_seconds_total", "gpucause_blocked_on_seconds_total"],
    needs: "waits for another process are part of an effect: for room in a pipe or local socket, the lock of a file, a file system or a driver that it serves, or for \
            its end or its data while it computes for 80 % of them; workers that prepare data are another cause",
    during_warm_up: false,
    evaluate,
};

/// A process ended the wait.
const fn is_of_process(wait: &Wait) -> bool {
    wait.tgid.is_some() && matches!(wait.relation, Relation::Other | Relation::Worker)
}

/// Waits of one thread for processes that owe nearly all of them, most time first.
fn owed(delta: &Delta<'_>, tid: Option<Tid>, phases: Phases, reason: Reason) -> Vec<Wait> {
    let waits = total_by_name(waits_in(delta, tid, phases, &[reason]).filter(is_of_process));
    waits.into_iter().filter(|wait| ratio(wait.held, wait.total) >= MIN_OWED).collect()
}

fn sum(waits: &[Wait]) -> Nanos {
    total(waits.iter().map(|wait| wait.held))
}

fn owed_in(process: &Process<'_>, effect: &Measured) -> Nanos {
    let delta = effect.delta(process);
    // Checked first: most programs have no such wait.
    if !delta.waits().iter().any(is_of_process) {
        return Nanos(0);
    }
    let by_reason = WAITS.iter().map(|&reason| {
        sum(&owed(delta, effect.tid, effect.phases, reason)).min(effect.offcpu(&[reason]))
    });
    total(by_reason)
}

fn claim(span: &Span<'_, '_>, thread: &ThreadDelta, phases: Phases) -> TimeAccount {
    let mut claim = TimeAccount::default();
    for reason in WAITS {
        let waited =
            part(&thread.time, |phase, state| state == State::Off(reason) && phases.contain(phase));
        let most = sum(&owed(span.delta, Some(thread.tid), phases, reason));
        claim.merge(&at_most(waited, most));
    }
    claim
}

/// Returns the advice about a wait for this reason.
fn fix(reason: Reason, name: &str, pid: u32) -> String {
    let what = match reason {
        Reason::Child => {
            "Let it do so before the training, or once for all: warm up all shapes, and keep compiled kernels in a cache on a local disk."
        }
        Reason::GpuDriver => "It has to answer before the call returns.",
        Reason::Other => {
            "It has the lock of a file that flock or fcntl asks for; lslocks shows which. Hold it for less time, or lock another file in each process."
        }
        _ => {
            "Where it reads what the thread writes, write less, or from another thread; where it prepares the work, prepare it ahead, or in more processes."
        }
    };
    format!("Find what {name} (PID {pid}) does meanwhile. {what}")
}

fn evaluate(context: &Context<'_>, index: usize) -> Option<Detection> {
    let process = context.processes.get(index)?;
    let cause = Cause::ProcessWait;
    let share = best(
        context,
        process,
        cause,
        |effect| owed_in(process, effect),
        |effect, thread| {
            let delta = effect.delta(process);
            claim(&Span { delta, throttled: Nanos(0) }, thread, effect.phases).total()
        },
    )?;
    let delta = share.effect.delta(process);
    let of = |tid| WAITS.map(|reason| owed(delta, tid, share.effect.phases, reason));
    let mut waits = of(Some(share.tid));
    if waits.iter().all(Vec::is_empty) {
        waits = of(None);
    }
    let waits = waits.concat();
    let worst = waits.iter().max_by_key(|wait| wait.held)?;
    let culprit = culprit_of(worst)?;
    let (all, seconds) = (sum(&waits), |time: Nanos| time.min(delta.wall).as_secs_f64());
    let mut evidence = share
        .evidence()
        .with("culprit_share", ratio(worst.held, all))
        .with("culprit_seconds", seconds(worst.total))
        .with("owed_seconds", seconds(worst.held));
    if worst.reason == Reason::Other {
        evidence = evidence.with(Chain::FILE_LOCK_SECONDS, seconds(worst.held));
    }
    let (comm, victim) = (process.now.comm.to_text(), name_of(process));
    let name = culprit.comm.clone();
    let (mechanism, what, sentence) = words(worst.reason);
    let what = match ratio(worst.held, all) >= MOST {
        true => what.replace("{culprit}", &name),
        false => format!("other processes, longest for {name},"),
    };
    let from = format!("{name} ({})", culprit.pid);
    Some(Detection {
        path: vec![
            Step::new(from, &victim, share.mechanism(mechanism), share.time),
            Step::new(victim, share.effect.effect.label(), share.mechanism("blocked"), share.time),
        ],
        sentence: Sentence::new(
            sentence,
            [("comm", &*comm), ("culprit", &*name), ("what", &*what)],
        ),
        fix: fix(worst.reason, &name, culprit.pid),
        culprit: Some(culprit),
        ..share.detection(cause, (index, process), claim, evidence)
    })
}

/// A sentence that ends with what the culprit did meanwhile.
macro_rules! sentence {
    ($did:literal) => {
        concat!(
            "Waiting for {what} took {taken_share|percent} of the last {window_seconds|seconds} of {comm} and explains \
             {explained_share|percent} of its {effect}; {culprit} ",
            $did
        )
    };
}

/// The mechanism, what is waited for, and the sentence.
const fn words(reason: Reason) -> (&'static str, &'static str, &'static str) {
    match reason {
        Reason::Child => (
            "did not end",
            "its child {culprit}",
            sentence!("computed for {owed_seconds|seconds} of {culprit_seconds|seconds}."),
        ),
        Reason::Other => (
            "held a file lock",
            "the lock of a file that {culprit} had",
            sentence!("had it for {owed_seconds|seconds}."),
        ),
        _ => (
            "kept it waiting",
            "the process {culprit}",
            sentence!(
                "owes {owed_seconds|seconds} of {culprit_seconds|seconds}: it computed, or had to answer or to read first."
            ),
        ),
    }
}
