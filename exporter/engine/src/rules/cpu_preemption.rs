//! Another task preempted the victim.

use gpucause_abi::snapshot::{TimeAccount, Wait};
use gpucause_abi::state::Reason;

use super::share::{Share, best, lost, lost_part};
use super::{Rule, own_threads};
use crate::chain::{Cause, Culprit, Effect, Feeder, Severity, Step};
use crate::claim::Span;
use crate::context::{Context, Process};
use crate::delta::{NO_CPU, ThreadDelta};
use crate::detection::{Detection, Sentence, culprit_of, name_of};
use crate::phases::Phases;
use crate::times::{ratio, total};

pub(super) const RULE: Rule = Rule {
    cause: Cause::CpuPreemption,
    reads: &[
        "gpucause_cuda_call_offcpu_seconds_total",
        "gpucause_dispatcher_seconds_total",
        "gpucause_preempted_by_seconds_total",
    ],
    needs: "time preempted or in the run queue is part of an effect, and it was mostly preempted, or mostly for the program's own threads and workers; below 5 % of the time only where a task outside of the program had half of it",
    during_warm_up: false,
    evaluate,
};

fn evaluate(context: &Context<'_>, index: usize) -> Option<Detection> {
    let process = context.processes.get(index)?;
    let share = without_cpu(context, process, Cause::CpuPreemption)?;
    if is_little(context, process, &share) {
        return None;
    }
    if let Some(own) = own_threads::share_of(context, process, &share) {
        return Some(own_threads::detection(context, index, &share, own));
    }
    (!was_queued(process, &share)).then(|| detection(Cause::CpuPreemption, context, index, &share))
}

/// Least share of the window in which a thread waits for CPUs that nobody outside of the program has: threads that hand their work over
/// wait for the CPU of the other, and idle CPUs wake up late.
const MIN_WITHOUT_CULPRIT: f64 = 0.05;

/// The wait for CPUs takes less than [`MIN_WITHOUT_CULPRIT`] and has no culprit outside of the program.
pub(super) fn is_little(context: &Context<'_>, process: &Process<'_>, share: &Share<'_>) -> bool {
    let waits = process.waits_of(share.tid, share.effect, &NO_CPU);
    let all = total(waits.iter().map(|wait| wait.total));
    let is_culprit = |wait: &Wait| {
        let is_other = wait.tgid.is_some() && !own_threads::is_own(context, process, wait);
        is_other && ratio(wait.total, all) >= 0.5
    };
    share.taken_share < MIN_WITHOUT_CULPRIT && !waits.iter().any(is_culprit)
}

/// Returns true if the thread waited in the run queue for longer than it was preempted. The long window decides: in a single one a time
/// slice more or less would change the cause.
pub(super) fn was_queued(process: &Process<'_>, share: &Share<'_>) -> bool {
    let thread = process.long.thread(share.tid);
    let time = |reason| thread.map(|thread| lost(&thread, &[reason]));
    time(Reason::Runqueue) > time(Reason::Preempted)
}

/// Returns the time that a thread lost without a CPU.
pub(super) fn claim(_: &Span<'_, '_>, thread: &ThreadDelta, _: Phases) -> TimeAccount {
    lost_part(thread, &NO_CPU)
}

/// The effect that having no CPU explains best.
pub(super) fn without_cpu<'a>(
    context: &Context<'_>,
    process: &'a Process<'_>,
    cause: Cause,
) -> Option<Share<'a>> {
    best(context, process, cause, |e| e.offcpu(&NO_CPU), |_, t| lost(t, &NO_CPU))
}

pub(super) fn detection(
    cause: Cause,
    context: &Context<'_>,
    index: usize,
    share: &Share<'_>,
) -> Detection {
    let process = &context.processes[index];
    let waits = process.waits_of(share.tid, share.effect, &NO_CPU);
    let all = total(waits.iter().map(|wait| wait.total));
    let worst = waits.iter().find(|wait| wait.tgid.is_some());
    let culprit_share = worst.map_or(0.0, |wait| ratio(wait.total, all));
    let (comm, victim) = (process.now.comm.to_text(), name_of(process));
    let name = worst.map(|wait| wait.on.to_text()).unwrap_or_default();
    let evidence = share
        .evidence()
        .with("culprit_share", culprit_share)
        .with("culprit_seconds", worst.map_or(0.0, |wait| wait.total.as_secs_f64()))
        .with("idle_share", ratio(total(waits.iter().filter(is_idle).map(|wait| wait.total)), all));
    // In a window in which the program itself had the CPU for once, it is no culprit.
    let is_own = |wait: &Wait| own_threads::is_own(context, process, wait);
    let named = worst.filter(|wait| culprit_share >= 0.5 && !is_own(wait));
    let was_idle = named.is_none() && evidence.get("idle_share").is_some_and(|share| share >= 0.5);
    let (name_of_cause, mechanism) = match cause {
        Cause::CpuPreemption => ("Preemption", "preempted"),
        _ => ("Waiting for a CPU", "kept waiting for a CPU"),
    };
    let sentence = if named.is_some() {
        "{cause} took {taken_share|percent} of the last {window_seconds|seconds} of {comm} and explains \
         {explained_share|percent} of its {effect}. Top CPU competitor: {culprit}, {culprit_seconds|seconds}[ in {calls}].\
         [ {call} latency: p50 {p50_seconds|seconds}, p99 {p99_seconds|seconds}.]"
    } else if was_idle {
        "{cause} took {taken_share|percent} of the last {window_seconds|seconds} of {comm} and explains \
         {explained_share|percent} of its {effect}. The CPU was idle for {idle_share|percent} of it: the wakeup itself took long."
    } else {
        "{cause} took {taken_share|percent} of the last {window_seconds|seconds} of {comm} and explains \
         {explained_share|percent} of its {effect}, caused by many tasks[; top CPU competitor: {first}, {culprit_share|percent} of it]."
    };
    let names = [
        ("culprit", &*name),
        ("comm", &*comm),
        ("cause", name_of_cause),
        ("call", call_of(share.effect.effect)),
    ];
    let sentence = Sentence::new(sentence, names)
        .and("first", worst.map(|_| &*name))
        .and("calls", share.effect.effect.slow_calls());
    // Who had the CPU is known of all launches together, slow or not.
    let mechanism = match (named, share.effect.effect.slow_calls()) {
        (Some(_), Some(calls)) => format!("{mechanism} in {calls}"),
        _ => share.mechanism(mechanism),
    };
    let others = if was_idle { "idle CPU" } else { "other tasks" };
    let from = named.map_or_else(|| others.to_owned(), |wait| wait.on.to_text());
    let culprit = named.and_then(|wait| competitor(context, process, wait));
    let fix = match &culprit {
        _ if was_idle => SLOW_WAKEUP.into(),
        Some(culprit) => fix(culprit, &comm),
        None => {
            let own = process.now.tgid;
            let other = worst.and_then(|wait| wait.tgid).filter(|&tgid| tgid != own);
            let feeder = other.and_then(|tgid| context.feeder(tgid.0));
            let works_for = |feeder: Feeder| match feeder.pid == own.0 {
                true => format!(" {name} works for {comm} itself."),
                false => format!(
                    " {name} feeds a GPU, or works for what does: another priority only moves the loss."
                ),
            };
            let top = feeder.map(works_for).unwrap_or_default();
            format!("The CPUs of {comm} are oversubscribed: run fewer tasks on them{OR_PIN}.{top}")
        }
    };
    Detection {
        culprit,
        // Nothing that could be moved had the CPU.
        most: if was_idle { Severity::Low } else { Severity::Critical },
        path: vec![
            Step::new(from, &victim, mechanism, named.map_or(share.time, |wait| wait.total)),
            Step::new(
                victim,
                share.effect.effect.label(),
                share.mechanism("off the CPU"),
                share.time,
            ),
        ],
        sentence,
        fix,
        ..share.detection(cause, (index, process), claim, evidence)
    }
}

/// The task that had the CPU, with what it feeds beside the process.
pub(super) fn competitor(
    context: &Context<'_>,
    process: &Process<'_>,
    wait: &Wait,
) -> Option<Culprit> {
    let culprit = culprit_of(wait)?;
    let feeds = context.feeder(culprit.pid).filter(|own| own.pid != process.now.tgid.0);
    Some(Culprit { feeds, ..culprit })
}

/// The call whose latency is meant.
fn call_of(effect: Effect) -> &'static str {
    match effect {
        Effect::CopyTail => "Copy",
        Effect::AllocTail => "Allocation",
        _ => "Launch",
    }
}

/// Returns true if a woken thread waited while no task had the CPU. A preempted one that does is out of CPU quota, or may use no idle CPU.
fn is_idle(wait: &&Wait) -> bool {
    wait.reason == Reason::Runqueue && wait.tgid.is_none() && wait.on.to_text() == "idle"
}

/// The kernel counts a woken thread as runnable from the wakeup on. No task has its CPU until an idle CPU has left its idle state,
/// or the hypervisor runs it.
const SLOW_WAKEUP: &str =
    "Idle CPUs wake up late: limit deep idle states, or check the steal time of a virtual machine.";

/// Alternative to fewer competing tasks.
const OR_PIN: &str = ", or pin the dispatcher thread to dedicated CPUs";

/// The advice against many tasks for a thread that may run on one CPU only.
pub(crate) fn on_one_cpu(advice: &str) -> String {
    advice.replacen(OR_PIN, ", or let the dispatcher thread run on more CPUs", 1)
}

/// Never slows what feeds a GPU itself: it would only move the loss.
fn fix(culprit: &Culprit, comm: &str) -> String {
    let name = &*culprit.comm;
    match &culprit.feeds {
        None => format!(
            "Keep {name} off the CPUs of {comm}: give it a CPU set or a lower CPUWeight{OR_PIN}."
        ),
        Some(feeder) if feeder.pid == culprit.pid => format!(
            "{name} feeds a GPU itself: {name} and {comm} want more CPU than they have. Give them CPUs of their own, or move one to another host; a lower priority only moves the loss."
        ),
        Some(Feeder { comm: feeder, .. }) => format!(
            "{name} works for {feeder}, which feeds a GPU itself: {feeder} and {comm} want more CPU than they have. Give them CPUs of their own, or move one to another host; a lower priority only moves the loss."
        ),
    }
}
