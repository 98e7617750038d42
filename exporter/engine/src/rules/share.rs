//! What the rules for off-CPU time have in common: which effect the time explains best, and what the victim lost by it.

use gpucause_abi::state::{Phase, Reason, State};
use gpucause_abi::{Nanos, Tid};

use crate::case::{Scene, Subject};
use crate::chain::{Cause, Effect, Evidence};
use crate::delta::ThreadDelta;
use crate::effect::{Measured, Phases, ratio};

/// An effect, and the time that explains enough of it.
#[derive(Debug, Clone)]
pub(super) struct Share<'a> {
    pub(super) effect: &'a Measured,
    /// The time that is part of it.
    pub(super) time: Nanos,
    /// Its share of the effect, 0 to 1.
    pub(super) explained: f64,
    /// The thread of the effect, or that lost most.
    pub(super) tid: Tid,
    /// What it lost since the last look.
    pub(super) lost: Nanos,
    /// Which share of its time that was, in the window of the effect.
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
        let (delta, lost_of) = (effect.delta(subject), |thread: &_| lost_of(effect, thread));
        let thread = match effect.tid {
            Some(tid) => delta.threads.iter().find(|thread| thread.tid == tid)?,
            None => delta.victim(lost_of)?,
        };
        let lost_share = ratio(lost_of(thread), thread.wall).min(1.0);
        let now = subject.short.threads.iter().find(|own| own.tid == thread.tid);
        let lost = now.map_or(Nanos(0), lost_of);
        Some(Share { effect, time, explained, tid: thread.tid, lost, lost_share })
    });
    let enough = |share: &Share<'_>| {
        share.time.0 > 0 && share.explained >= needed && share.lost_share >= least
    };
    // A tail says more than a gap when both are explained: it is what is looked at first.
    let is_tail =
        |effect| matches!(effect, Effect::LaunchTail | Effect::CopyTail | Effect::AllocTail);
    shares.filter(enough).max_by_key(|share| (is_tail(share.effect.effect), share.effect.excess))
}

/// What a thread loses by being off the CPU for these reasons: all but what it waits for the GPU. A thread that the GPU has
/// woken and that gets no CPU loses that too.
pub(super) fn lost(thread: &ThreadDelta, reasons: &[Reason]) -> Nanos {
    let outside = |reason| thread.in_state(State::Off(reason), |p| Phases::Feeding.contain(p)).0;
    let queued = thread.time.at(Phase::Sync, State::Off(Reason::Runqueue)).0;
    let in_sync = if reasons.contains(&Reason::Runqueue) { queued } else { 0 };
    Nanos(reasons.iter().map(|&reason| outside(reason)).sum::<u64>() + in_sync)
}

impl Share<'_> {
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
