//! What the rules for off-CPU time have in common: which effect the time explains best, and what the victim lost by it.

use gpucause_abi::snapshot::TimeAccount;
use gpucause_abi::state::{Reason, State};
use gpucause_abi::{Nanos, Tid};

use crate::case::{Scene, Subject};
use crate::chain::{Cause, Effect, Evidence, Step};
use crate::delta::ThreadDelta;
use crate::divide::{Claim, part};
use crate::effect::{Measured, Phases, ratio, total};
use crate::finding::{Finding, Sentence, name_of};

/// Where off-CPU time of a process is told, in calls and in all.
pub(super) const OFF_CPU_ACCOUNTS: [&str; 2] =
    ["gpucause_cuda_call_offcpu_seconds_total", "gpucause_dispatcher_seconds_total"];

/// An effect, and the time that explains a part of it.
#[derive(Debug, Clone)]
pub(super) struct Share<'a> {
    pub(super) effect: &'a Measured,
    /// The time that is part of it.
    pub(super) time: Nanos,
    /// Its share of the effect, 0 to 1.
    pub(super) explained: f64,
    /// The thread of the effect, or that the cause took most of.
    pub(super) tid: Tid,
    /// Its time since the last look.
    now: Option<&'a ThreadDelta>,
    /// Which share of the window of the effect that was: a thread that lived for a moment has not lost much.
    pub(super) lost_share: f64,
}

/// The effect that `time_in` explains, if it is enough for the cause to be named. `lost_of` is what the cause takes of a
/// thread's time.
pub(super) fn best<'a>(
    scene: &Scene<'_>,
    subject: &'a Subject<'_>,
    cause: Cause,
    time_in: impl Fn(&Measured) -> Nanos,
    lost_of: impl Fn(&Measured, &ThreadDelta) -> Nanos,
) -> Option<Share<'a>> {
    let settings = scene.settings;
    let rule = settings.rule(cause);
    let needed = rule.explained_share.unwrap_or(settings.explained_share);
    let least = rule.min_lost_share.unwrap_or(settings.severities.low);
    let shares = subject.effects.iter().filter_map(|effect| {
        let time = time_in(effect);
        let explained = effect.explained_by(time);
        // Asked before what it cost is looked for: most causes explain little of most effects.
        let explains = time.0 > 0 && explained >= needed;
        if !explains {
            return None;
        }
        let (delta, lost_of) = (effect.delta(subject), |thread: &_| lost_of(effect, thread));
        let thread = match effect.tid {
            Some(tid) => delta.threads().iter().find(|thread| thread.tid == tid)?,
            // Of several threads that lose time, the one that loses it in such calls.
            None => delta
                .victim(|thread| lost_of(thread).min(off_cpu(thread, effect.phases)))
                .or_else(|| delta.victim(lost_of))?,
        };
        let lost_share = ratio(lost_of(thread), delta.wall).min(1.0);
        let now = subject.short.threads().iter().find(|own| own.tid == thread.tid);
        Some(Share { effect, time, explained, tid: thread.tid, now, lost_share })
    });
    let enough = |share: &Share<'_>| share.lost_share >= least;
    // A tail says more than a gap when most of both is explained: it is what is looked at first.
    let is_tail =
        |effect| matches!(effect, Effect::LaunchTail | Effect::CopyTail | Effect::AllocTail);
    shares.filter(enough).max_by_key(|share| match share.explained >= MOST {
        true => (true, is_tail(share.effect.effect), share.effect.excess),
        false => (false, false, share.time),
    })
}

/// From this share on most of an effect is explained.
pub(super) const MOST: f64 = 0.5;

/// Off-CPU time of a thread in some phases.
fn off_cpu(thread: &ThreadDelta, phases: Phases) -> Nanos {
    let time = |&reason| thread.in_state(State::Off(reason), |phase| phases.contain(phase));
    total(Reason::ALL.iter().map(time))
}

/// What a thread lost by being off the CPU for these reasons.
pub(super) fn lost(thread: &ThreadDelta, reasons: &[Reason]) -> Nanos {
    total(reasons.iter().map(|&reason| thread.time.lost(State::Off(reason))))
}

impl Share<'_> {
    /// What the cause took since the last look.
    pub(super) fn taken(&self, subject: &Subject<'_>, claim: Claim) -> TimeAccount {
        let taken = |thread| claim(&subject.span(), thread, self.effect.phases);
        self.now.map(taken).unwrap_or_default()
    }

    /// The numbers of the effect and of the share.
    pub(super) fn evidence(&self) -> Evidence {
        Evidence::default()
            .with("explained_share", self.explained)
            .with("explained_seconds", self.time.as_secs_f64())
            .with("effect_seconds", self.effect.excess.as_secs_f64())
            .with("lost_share", self.lost_share)
            .and(&self.effect.evidence)
    }
}

/// The part of a thread's time that was lost by being off the CPU for these reasons.
pub(super) fn lost_part(thread: &ThreadDelta, reasons: &[Reason]) -> TimeAccount {
    part(&thread.time, |phase, state| match state {
        State::Off(reason) => reasons.contains(&reason) && state.is_lost_in(phase),
        State::Running => false,
    })
}

/// What is told of a thread that was blocked for one reason, by something that is no task.
#[derive(Debug)]
pub(super) struct Blocked {
    pub(super) cause: Cause,
    pub(super) reason: Reason,
    pub(super) claim: Claim,
    /// What it waited for.
    pub(super) by: &'static str,
    pub(super) mechanism: &'static str,
    /// What the thread was meanwhile.
    pub(super) state: &'static str,
    /// A template, see [`tell`](mod@crate::tell).
    pub(super) sentence: &'static str,
    pub(super) fix: &'static str,
}

/// The effect that being blocked for this reason explains, as a finding.
pub(super) fn blocked(scene: &Scene<'_>, index: usize, told: &Blocked) -> Option<Finding> {
    let subject = scene.subjects.get(index)?;
    let reasons = [told.reason];
    let share = best(scene, subject, told.cause, |e| e.offcpu(&reasons), |_, t| lost(t, &reasons))?;
    let evidence = share.evidence();
    let (comm, victim) = (subject.now.comm.to_text(), name_of(subject));
    let step = |from: String, to: String, mechanism: &str| Step {
        from,
        to,
        mechanism: mechanism.into(),
        seconds: share.time.as_secs_f64(),
    };
    let effect = share.effect.effect;
    Some(Finding {
        cause: told.cause,
        effect,
        subject: index,
        tid: Some(share.tid),
        culprit: None,
        explained: share.explained,
        size: share.effect.excess,
        taken: share.taken(subject, told.claim).into(),
        claim: Some((told.claim, share.effect.phases)),
        lost_share: share.lost_share,
        path: vec![
            step(told.by.into(), victim.clone(), told.mechanism),
            step(victim, effect.label().into(), told.state),
        ],
        sentence: Sentence::new(told.sentence, [("comm", &*comm)]),
        fix: told.fix.into(),
        evidence,
    })
}
