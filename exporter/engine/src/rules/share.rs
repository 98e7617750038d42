//! Shared by rules for off-CPU time: which effect the time explains best, and what the victim lost.

use gpucause_abi::snapshot::{TimeAccount, Wait};
use gpucause_abi::state::{Reason, State};
use gpucause_abi::{Nanos, Tid};

use crate::chain::{Cause, Culprit, Effect, Evidence, Step};
use crate::claim::Claim;
use crate::context::{Context, Measured, Process};
use crate::delta::ThreadDelta;
use crate::detection::{Detection, Sentence, culprit_of, name_of};
use crate::phases::Phases;
use crate::times::{part, ratio, total};

/// Metrics of a process's off-CPU time, in calls and in total.
pub(super) const OFF_CPU_ACCOUNTS: [&str; 2] =
    ["gpucause_cuda_call_offcpu_seconds_total", "gpucause_dispatcher_seconds_total"];

/// Time that explains a part of an effect.
#[derive(Debug, Clone)]
pub(super) struct Share<'a> {
    pub(super) effect: &'a Measured,
    pub(super) time: Nanos,
    /// Explained share of the effect, 0 to 1.
    pub(super) explained: f64,
    /// The thread of the effect, or the one that lost most.
    pub(super) tid: Tid,
    /// Its time since the previous snapshot.
    now: Option<&'a ThreadDelta>,
    /// Time that the thread lost, as a share of the window of the effect, not of the thread's life.
    pub(super) taken_share: f64,
}

/// The effect that `time_in` explains, if that is enough to report the cause. `lost_of` is what the cause takes of a thread's time.
pub(super) fn best<'a>(
    context: &Context<'_>,
    process: &'a Process<'_>,
    cause: Cause,
    time_in: impl Fn(&Measured) -> Nanos,
    lost_of: impl Fn(&Measured, &ThreadDelta) -> Nanos,
) -> Option<Share<'a>> {
    let settings = context.settings;
    let rule = settings.rule(cause);
    let needed = rule.explained_share.unwrap_or(settings.explained_share);
    let least = rule.min_lost_share.unwrap_or(settings.severities.low);
    let shares = process.effects.iter().filter_map(|effect| {
        let time = time_in(effect);
        let explained = effect.explained_by(time);
        // Checked first: most causes explain little of most effects.
        let explains = time.0 > 0 && explained >= needed;
        if !explains {
            return None;
        }
        let (delta, lost_of) = (effect.delta(process), |thread: &_| lost_of(effect, thread));
        let thread = match effect.tid {
            Some(tid) => delta.threads().iter().find(|thread| thread.tid == tid)?,
            // If several threads lose time, prefer the one that loses it in the phases of the effect.
            None => delta
                .victim(|thread| lost_of(thread).min(off_cpu(thread, effect.phases)))
                .or_else(|| delta.victim(lost_of))?,
        };
        let taken_share = ratio(lost_of(thread), delta.wall).min(1.0);
        let now = process.short.threads().iter().find(|own| own.tid == thread.tid);
        Some(Share { effect, time, explained, tid: thread.tid, now, taken_share })
    });
    let enough = |share: &Share<'_>| share.taken_share >= least;
    // If most of both a tail and a gap is explained, the tail is reported: users look at it first. One that costs next to nothing
    // is not worth a look, however much of it is explained.
    let is_tail = |effect: Effect| effect.slow_calls().is_some();
    let matters = |share: &Share<'_>| {
        let wall = share.effect.delta(process).wall;
        !is_tail(share.effect.effect) || ratio(share.effect.excess, wall) >= settings.severities.low
    };
    shares.filter(enough).max_by_key(|share| match share.explained >= MOST && matters(share) {
        true => (true, is_tail(share.effect.effect), share.effect.excess),
        false => (false, false, share.time),
    })
}

/// Share that counts as most of an effect.
pub(super) const MOST: f64 = 0.5;

/// Reasons to be off the CPU that are causes in themselves, whichever effect of the thread they are charged to.
pub(super) const CAUSES: [Reason; 6] = [
    Reason::Preempted,
    Reason::Runqueue,
    Reason::Io,
    Reason::PageFault,
    Reason::Lock,
    Reason::KernelLock,
];

fn off_cpu(thread: &ThreadDelta, phases: Phases) -> Nanos {
    let time = |&reason| thread.in_state(State::Off(reason), |phase| phases.contain(phase));
    total(Reason::ALL.iter().map(time))
}

/// Returns the time that a thread lost off the CPU for these reasons.
pub(super) fn lost(thread: &ThreadDelta, reasons: &[Reason]) -> Nanos {
    total(reasons.iter().map(|&reason| thread.time.lost(State::Off(reason))))
}

impl Share<'_> {
    /// How the victim was kept, with the place if the time is only that in slow calls: the share taken is of all of its time.
    pub(super) fn mechanism(&self, how: &str) -> String {
        match self.effect.effect.slow_calls() {
            Some(calls) => format!("{how} in slow {calls}"),
            None => how.to_owned(),
        }
    }

    /// Returns the time that the cause took since the previous snapshot.
    pub(super) fn taken(&self, process: &Process<'_>, claim: Claim) -> TimeAccount {
        let taken = |thread| claim(&process.span(), thread, self.effect.phases);
        self.now.map(taken).unwrap_or_default()
    }

    /// The detection of the cause, without its culprit and words.
    pub(super) fn detection(
        &self,
        cause: Cause,
        (index, process): (usize, &Process<'_>),
        claim: Claim,
        evidence: Evidence,
    ) -> Detection {
        Detection {
            tid: Some(self.tid),
            explained: self.explained,
            size: self.effect.excess,
            taken: self.taken(process, claim).into(),
            claim: Some((claim, self.effect.phases)),
            taken_share: self.taken_share,
            ..Detection::new(cause, self.effect.effect, index, evidence)
        }
    }

    pub(super) fn evidence(&self) -> Evidence {
        Evidence::default()
            .with("explained_share", self.explained)
            .with("explained_seconds", self.time.as_secs_f64())
            .with("effect_seconds", self.effect.excess.as_secs_f64())
            .with("taken_share", self.taken_share)
            .and(&self.effect.evidence)
    }
}

/// The part of a thread's time that was lost off the CPU for these reasons.
pub(super) fn lost_part(thread: &ThreadDelta, reasons: &[Reason]) -> TimeAccount {
    part(&thread.time, |phase, state| match state {
        State::Off(reason) => reasons.contains(&reason) && state.is_lost_in(phase),
        State::Running => false,
    })
}

/// A thread that was blocked by something other than a task.
#[derive(Debug)]
pub(super) struct Blocked {
    pub(super) cause: Cause,
    pub(super) reason: Reason,
    pub(super) claim: Claim,
    pub(super) mechanism: &'static str,
    /// State of the thread.
    pub(super) state: &'static str,
    pub(super) words: fn(&Blocking) -> Words,
}

/// Known facts about what blocked a thread.
#[derive(Debug)]
pub(super) struct Blocking {
    /// The process that serves the file system which most of it was for.
    pub(super) server: Option<Culprit>,
    /// The share that the kernel knows to be reads of files: of page faults only.
    pub(super) file_share: f64,
    /// The disk that was busiest for the process, and its seconds as a share of the time.
    pub(super) disk_share: f64,
}

/// How a detection says it.
#[derive(Debug)]
pub(super) struct Words {
    /// Name of what the thread waited for.
    pub(super) by: &'static str,
    /// A template, see [`render`](crate::template::render).
    pub(super) sentence: &'static str,
    pub(super) fix: &'static str,
}

/// The effect that being blocked explains, as a detection.
pub(super) fn blocked(context: &Context<'_>, index: usize, wait: &Blocked) -> Option<Detection> {
    let process = context.processes.get(index)?;
    let reasons = [wait.reason];
    let share =
        best(context, process, wait.cause, |e| e.offcpu(&reasons), |_, t| lost(t, &reasons))?;
    let waits = process.waits_of(share.tid, share.effect, &reasons);
    let waited = total(waits.iter().map(|wait| wait.total));
    // Time in which a thread ran to free memory is in no wait. An effect on calls of several threads has none of it.
    let runs = wait.reason == Reason::PageFault && share.effect.tid.is_some();
    let all = if runs { waited.max(share.time) } else { waited };
    let served = |wait: &&Wait| wait.tgid.is_some() && ratio(wait.total, all) >= MOST;
    let server = waits.iter().find(served).and_then(culprit_of);
    let file_share = ratio(total(waits.iter().map(|wait| wait.held)), all);
    let disk = share.effect.delta(process).busiest_disk();
    let disk_share = disk.map_or(0.0, |disk| ratio(disk.time, share.time));
    let blocking = Blocking { server, file_share, disk_share };
    let words = (wait.words)(&blocking);
    let (comm, victim) = (process.now.comm.to_text(), name_of(process));
    let name = blocking.server.as_ref().map(|server| server.comm.clone());
    let mut evidence = share.evidence().with("file_share", file_share);
    let mut sentence =
        Sentence::new(words.sentence, [("comm", &*comm)]).and("server", name.as_deref());
    if let Some(disk) = disk {
        evidence = evidence
            .with("disk_seconds", disk.time.as_secs_f64())
            .with("disk_requests", disk.requests as f64);
        sentence = sentence.and("disk", Some(&disk.device.to_text()));
    }
    let by = name.unwrap_or_else(|| words.by.to_owned());
    Some(Detection {
        path: vec![
            Step::new(by, &victim, share.mechanism(wait.mechanism), share.time),
            Step::new(victim, share.effect.effect.label(), share.mechanism(wait.state), share.time),
        ],
        culprit: blocking.server,
        sentence,
        fix: words.fix.into(),
        ..share.detection(wait.cause, (index, process), wait.claim, evidence)
    })
}
