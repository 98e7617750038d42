//! Unexplained time: the part of a launch tail without a cause, and lost time without one.
//!
//! Time blocked in system calls that have no reason of their own has no other cause at all: it is named with its largest part by
//! system call and by the task that ended it.
//!
//! The law: the share of the time that is shown as lost, the mean over the threads that launch, exceeds the share that all chains took by at
//! most [`MOST_UNNAMED`]. There is one exception: [short waits for CPUs](super::cpu_preemption::is_little) without a culprit outside of the
//! program.

use gpucause_abi::Syscall;
use gpucause_abi::snapshot::{TimeAccount, Wait};
use gpucause_abi::state::{Phase, Reason, Relation, State};

use super::Rule;
use super::share::{CAUSES, MOST, lost_part};
use crate::chain::{Cause, Chain, Effect, Evidence, Severity, Step};
use crate::claim::{Claim, Span};
use crate::context::{Context, Measured, total_by_name, waits_in};
use crate::delta::ThreadDelta;
use crate::detection::{Detection, Sentence, name_of};
use crate::divide::explained;
use crate::phases::Phases;
use crate::times::{less, part, ratio, total};

/// Least unexplained share of a tail: the width of histogram slots limits the accuracy of its size.
const MIN_SHARE: f64 = 0.1;

pub(super) const RULE: Rule = Rule {
    cause: Cause::Unexplained,
    reads: &[
        "gpucause_cuda_call_duration_seconds",
        "gpucause_cuda_call_offcpu_seconds_total",
        "gpucause_dispatcher_seconds_total",
    ],
    needs: "a tail of launches of severity low that no other cause explains, or 3 % of the time lost in waits for locks, disks and pages that are too short to be causes by themselves, or blocked in system calls that have no reason of their own",
    during_warm_up: false,
    evaluate,
};

/// Advice where launches were off the CPU for something else than the GPU: a full launch queue does not do that.
const WAITS: &str =
    "Record stacks of the slow calls (gpucause record): they show what the launches waited for.";
const SHORT_WAITS: &str =
    "Record stacks of the process (gpucause record): they show what its thread waited for.";
const RUNS: &str = "Record stacks of the slow calls (gpucause record); a full launch queue looks the same: the GPU is then the bottleneck.";

fn evaluate(context: &Context<'_>, index: usize) -> Option<Detection> {
    rest(context, index, &[])
}

/// The part of a tail that the other detections do not explain.
pub(crate) fn rest(context: &Context<'_>, index: usize, found: &[Detection]) -> Option<Detection> {
    let process = context.processes.get(index)?;
    // Rarer slow calls are a tail only if off-CPU time explains them.
    let in_a_hundred = |e: &&Measured| e.evidence.get("p99_seconds").is_some();
    let is_tail = |e: &&Measured| e.effect == Effect::LaunchTail && in_a_hundred(e);
    let tail = process.effects.iter().find(is_tail)?;
    let delta = tail.delta(process);
    let thread = delta.victim(|thread| thread.in_phase(Phase::Launch))?;
    // The tail is measured over all threads that launch.
    let launching = total(delta.feeders().map(|thread| thread.wall));
    // The thread may be off the CPU in launches for a cause that is charged to slow copies.
    let caused = tail.offcpu(&CAUSES);
    let explained = explained(found, tail.effect, tail.excess).max(tail.explained_by(caused));
    let unexplained = 1.0 - explained;
    let excess_share = ratio(tail.excess, launching).min(1.0) * unexplained;
    let rule = context.settings.rule(Cause::Unexplained);
    if excess_share < rule.min_lost_share.unwrap_or(context.settings.severities.low)
        || unexplained < MIN_SHARE
    {
        return None;
    }
    let off = tail.offcpu(Reason::ALL);
    let not_for_gpu = off.less(caused).less(tail.offcpu(&[Reason::GpuDriver]));
    let waited = tail.explained_by(not_for_gpu) >= MOST * unexplained;
    let evidence = tail
        .evidence
        .clone()
        .with("excess_share", excess_share)
        .with(Chain::UNEXPLAINED, unexplained)
        .with("off_cpu_share_of_excess", tail.explained_by(off));
    let (comm, victim) = (process.now.comm.to_text(), name_of(process));
    let sentence = "{slow_calls|count} of {calls|count} launches of {comm} were slow (p50 {p50_seconds|seconds}, p99 \
                        {p99_seconds|seconds}). For {unexplained_share|percent} of their excess time there is no measured cause; \
                        the thread was off the CPU for {off_cpu_share_of_excess|percent} of the excess time.";
    Some(Detection {
        tid: Some(thread.tid),
        explained: 0.0,
        // Launches may as well have waited for a full queue, which loses nothing.
        taken_share: context.settings.severities.low,
        path: vec![Step::new(victim, Effect::LaunchTail.label(), "unknown", tail.excess)],
        sentence: Sentence::new(sentence, [("comm", &*comm)]),
        fix: if waited { WAITS } else { RUNS }.into(),
        ..Detection::new(Cause::Unexplained, Effect::LaunchTail, index, evidence)
    })
}

/// Most of the time that is shown as lost without a chain that has it.
const MOST_UNNAMED: f64 = 0.03;

/// Waits for CPUs have a threshold of their own.
const BLOCKED: [Reason; 4] = [Reason::Lock, Reason::KernelLock, Reason::Io, Reason::PageFault];
const THEIR_CAUSES: [Cause; 4] =
    [Cause::LockWait, Cause::KernelLock, Cause::BlockIo, Cause::PageFault];

fn blocked(_: &Span<'_, '_>, thread: &ThreadDelta, _: Phases) -> TimeAccount {
    let mut blocked = lost_part(thread, &BLOCKED);
    blocked.merge(&part(&thread.time, |phase, state| {
        state == State::Off(Reason::Other) && phase != Phase::Sync
    }));
    blocked
}

/// Time lost by one thread that no detection takes, of this thread or, for the same cause, of another.
pub(crate) fn loss(context: &Context<'_>, index: usize, found: &[Detection]) -> Option<Detection> {
    let process = context.processes.get(index)?;
    // A user who switched such a rule off, or raised its threshold, gets no other name for its time.
    let wanted = THEIR_CAUSES.map(|cause| context.settings.rule(cause));
    let least = wanted.iter().filter_map(|rule| rule.min_lost_share);
    let least = least.fold(context.settings.severities.low.max(MOST_UNNAMED), f64::max);
    if wanted.iter().any(|rule| !rule.enabled) {
        return None;
    }
    let (span, wall) = (process.span(), process.short.wall);
    let is_enough = |rest: &TimeAccount| ratio(rest.total(), wall) >= least;
    let unnamed = |thread: &ThreadDelta| {
        let claims = found.iter().filter_map(|own| own.claim);
        // Most threads lose little, whatever causes take of it.
        let all = Some(blocked(&span, thread, Phases::Feeding)).filter(is_enough)?;
        let take = |rest, (claim, phases): (Claim, _)| less(rest, &claim(&span, thread, phases));
        Some(claims.fold(all, take)).filter(is_enough)
    };
    let threads = process.short.threads().iter();
    let threads = threads.filter_map(|thread| Some((thread, unnamed(thread)?)));
    let (thread, taken) = threads.max_by_key(|(_, rest)| rest.total())?;
    let taken_share = ratio(taken.total(), wall);
    let seconds = |reason| {
        let time = Phase::ALL.iter().map(|&phase| taken.at(phase, State::Off(reason)));
        total(time).as_secs_f64()
    };
    let [lock, kernel_lock, io, page_fault] = BLOCKED.map(seconds);
    let other = seconds(Reason::Other);
    let is_short = other < MOST * taken.total().as_secs_f64();
    let others = waits_in(&process.short, Some(thread.tid), Phases::Feeding, &[Reason::Other]);
    // Other causes have those that a process owes, and those for workers.
    let is_rest = |wait: &Wait| wait.held.0 == 0 && wait.relation != Relation::Worker;
    let largest = total_by_name(others.filter(is_rest)).into_iter().next();
    let largest = largest.filter(|wait| wait.total.as_secs_f64() <= other);
    let ender = largest.map(|wait| match (&*wait.on.to_text(), wait.tgid) {
        ("kernel", None) => "the kernel".to_owned(),
        ("other", None) => "others".to_owned(),
        (name, _) => name.to_owned(),
    });
    let call = largest.map(|wait| wait.syscall.map_or("one of them", Syscall::name));
    let largest_seconds = largest.map_or(0.0, |wait| wait.total.as_secs_f64());
    let evidence = Evidence::default()
        .with("taken_share", taken_share)
        .with("lock_seconds", lock + kernel_lock)
        .with("io_seconds", io)
        .with("page_fault_seconds", page_fault)
        .with("other_seconds", other)
        .with("largest_part_seconds", largest_seconds);
    let (comm, victim) = (process.now.comm.to_text(), name_of(process));
    let sentence = match is_short {
        true => {
            "Of the last {window_seconds|seconds} of {comm}, {taken_share|percent} were lost in short waits for which no \
             cause was found: {lock_seconds|seconds} for locks, {io_seconds|seconds} for disks, \
             {page_fault_seconds|seconds} for pages and {other_seconds|seconds} in other system calls."
        }
        false => {
            "For {taken_share|percent} of the last {window_seconds|seconds} {comm} was blocked and no cause was found: \
             {other_seconds|seconds} in system calls whose reason is not known[; {largest_part_seconds|seconds} of it in {call}, ended by {ender}]."
        }
    };
    Some(Detection {
        tid: Some(thread.tid),
        path: vec![Step::new(victim, Effect::LaunchGap.label(), "off the CPU", taken.total())],
        taken: taken.into(),
        claim: Some((blocked, Phases::Feeding)),
        taken_share,
        explained: 0.0,
        most: if is_short { Severity::Low } else { Severity::Medium },
        sentence: Sentence::new(sentence, [("comm", &*comm)])
            .and("ender", ender.as_deref())
            .and("call", call),
        fix: SHORT_WAITS.into(),
        ..Detection::new(Cause::Unexplained, Effect::LaunchGap, index, evidence)
    })
}
