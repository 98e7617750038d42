//! Recent activity of each process, and activity of all of them in each of the last evaluations, from data that the engine keeps or
//! computes anyway; and of each process in a whole recording.

mod totals;

use std::collections::VecDeque;

use gpucause_abi::hist::Histogram;
use gpucause_abi::op::{Class, OpId};
use gpucause_abi::snapshot::{CallKind, Comm, LaunchSampling, ProcessSnapshot, TimeAccount};
use gpucause_abi::{Nanos, ProcId, Tgid};
use serde::Serialize;

use crate::baseline::{Baseline, Identity, ProcessBaseline};
use crate::chain::Severity;
use crate::context::Context;
use crate::observation::{Period, State};
use crate::times::less;

pub use totals::Totals;

/// How far the timeline goes back, in seconds.
pub const TIMELINE_SECONDS: f64 = 900.0;
/// Points of a timeline at most, whatever the interval between evaluations.
const MAX_POINTS: usize = 640;

/// Activity of a process that makes traced calls.
#[derive(Debug, Clone, PartialEq)]
pub struct Activity {
    /// The process.
    pub id: ProcId,
    /// Its PID.
    pub pid: Tgid,
    /// Its name.
    pub comm: Comm,
    /// True if it has ended.
    pub has_ended: bool,
    /// Length of the time; shorter for a process that began or ended in it.
    pub span: Nanos,
    /// Outermost launches of kernels and graphs that were seen, cold and warm, timed or not.
    pub launches: u64,
    /// Number of these launches that were timed.
    pub timed: u64,
    /// Time of `span` in which calls were not counted.
    pub unobserved: Nanos,
    /// Durations of warm launches of kernels, or of graphs when no kernel was launched by itself.
    pub warm: Histogram,
    /// Time of its dispatcher threads.
    pub time: TimeAccount,
}

impl Activity {
    /// Returns the activity of a process between two snapshots; without the first, since it was first seen, or since `from` when that is later.
    pub fn between(
        before: Option<&ProcessSnapshot>,
        now: &ProcessSnapshot,
        (from, until): (Nanos, Nanos),
    ) -> Self {
        let accounts = Accounts::of_snapshot;
        Self::of(now.id, now.into(), before.map(accounts), &accounts(now), (from, until))
    }

    fn of(
        id: ProcId,
        identity: Identity,
        before: Option<Accounts<'_>>,
        now: &Accounts<'_>,
        (from, until): (Nanos, Nanos),
    ) -> Self {
        let begin = identity.first_seen.max(from);
        let before = before.unwrap_or_default();
        let (timed, warm) = launches(&before, now);
        Self {
            id,
            pid: identity.pid,
            comm: identity.comm,
            has_ended: identity.ended.is_some(),
            span: identity.ended.unwrap_or(until).min(until).less(begin),
            launches: timed.saturating_add(now.untimed.saturating_sub(before.untimed)),
            timed,
            unobserved: now.unobserved.less(before.unobserved),
            warm,
            time: less(now.time, &before.time),
        }
    }

    /// Adds a later part of the time.
    fn absorb(&mut self, later: &Self) {
        (self.comm, self.has_ended) = (later.comm, later.has_ended);
        self.span.0 += later.span.0;
        self.launches += later.launches;
        self.timed += later.timed;
        self.unobserved.0 += later.unobserved.0;
        self.warm.merge(&later.warm);
        self.time.merge(&later.time);
    }

    /// Launches a second, while they were counted.
    pub fn launches_per_second(&self) -> f64 {
        let seconds = self.span.less(self.unobserved).as_secs_f64();
        if seconds > 0.0 { self.launches as f64 / seconds } else { 0.0 }
    }
}

/// The accounts that an [`Activity`] is made of.
#[derive(Default)]
struct Accounts<'a> {
    launches: Vec<(CallKind, &'a Histogram)>,
    untimed: u64,
    unobserved: Nanos,
    time: TimeAccount,
}

impl<'a> Accounts<'a> {
    fn new(
        calls: impl Iterator<Item = (CallKind, &'a Histogram)>,
        sampling: &LaunchSampling,
        time: TimeAccount,
    ) -> Self {
        let is_launch = |(op, _, nested): CallKind| !nested && class(op).is_some();
        let launches = calls.filter(|&(kind, _)| is_launch(kind)).collect();
        let (untimed, unobserved) = (sampling.untimed, sampling.unobserved);
        Self { launches, untimed, unobserved, time }
    }

    fn of_snapshot(process: &'a ProcessSnapshot) -> Self {
        let calls = process.calls.iter().map(|call| (call.kind(), &call.durations));
        Self::new(calls, &process.launches, process.dispatcher_time)
    }

    fn of_baseline(process: &'a ProcessBaseline) -> Self {
        let calls = process.calls.iter().map(|call| (call.kind, &call.durations));
        Self::new(calls, &process.launches, process.dispatcher_time.unpacked())
    }
}

/// The class of an op that launches work.
fn class(op: OpId) -> Option<Class> {
    op.op().filter(|op| op.is_launch()).map(|op| op.class)
}

/// Timed launches between both, and the durations of warm ones.
fn launches(before: &Accounts<'_>, now: &Accounts<'_>) -> (u64, Histogram) {
    let mut count = 0u64;
    let [mut kernels, mut graphs] = [Histogram::default(), Histogram::default()];
    for &(kind, durations) in &now.launches {
        let earlier = before.launches.iter().find(|(earlier, _)| *earlier == kind);
        let added = earlier.map_or_else(|| durations.clone(), |(_, own)| durations.since(own));
        count = count.saturating_add(added.count());
        let (op, cold, _) = kind;
        match class(op) {
            _ if cold => {}
            Some(Class::Launch) => kernels.merge(&added),
            _ => graphs.merge(&added),
        }
    }
    (count, if kernels.count() == 0 { graphs } else { kernels })
}

/// Activity of a host's processes between two snapshots.
#[derive(Debug, Clone, PartialEq)]
pub struct Activities {
    /// Begin and end, on the monotonic clock.
    pub window: (Nanos, Nanos),
    /// Each process that makes traced calls and lived in it.
    pub processes: Vec<Activity>,
}

/// Between the first and the last of these.
pub(crate) fn activities(baselines: &VecDeque<Baseline>) -> Option<Activities> {
    let (first, last) = (baselines.front()?, baselines.back()?);
    if first.at >= last.at {
        return None;
    }
    let lived = |own: &Identity| own.dispatches && own.ended.is_none_or(|ended| ended > first.at);
    let of = |(&id, now): (&ProcId, &ProcessBaseline)| {
        let identity = now.identity;
        let before = first.processes.get(&id).map(Accounts::of_baseline);
        // The activity of an older process that the first snapshot lacks is not known for this window alone.
        let is_known = before.is_some() || identity.first_seen >= first.at;
        let window = (first.at, last.at);
        (lived(&identity) && is_known)
            .then(|| Activity::of(id, identity, before, &Accounts::of_baseline(now), window))
    };
    // Before the first of them began nothing may have been evaluated for long.
    let listed = last.processes.values().map(|now| now.identity).filter(lived);
    let begin = listed.map(|own| own.first_seen.max(first.at)).min().unwrap_or(first.at);
    let window = (begin, last.at);
    let mut processes: Vec<_> = last.processes.iter().filter_map(of).collect();
    processes.sort_by_key(|own| (own.pid, own.id));
    Some(Activities { window, processes })
}

/// Activity of all processes between two evaluations.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TimelinePoint {
    /// The end, in seconds since the Unix epoch.
    pub at: f64,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Launches of all processes.
    pub launches: u64,
    /// Time of all dispatcher threads, in seconds.
    pub dispatcher_seconds: f64,
    /// The part of it that was lost.
    pub lost_seconds: f64,
    /// Ongoing causal chains.
    pub chains: u32,
    /// The highest severity of them.
    pub worst: Option<Severity>,
}

impl TimelinePoint {
    /// A point without activity.
    const fn new(at: f64, seconds: f64) -> Self {
        let (dispatcher_seconds, lost_seconds) = (0.0, 0.0);
        Self { at, seconds, launches: 0, dispatcher_seconds, lost_seconds, chains: 0, worst: None }
    }

    /// Adds launches, and time of dispatcher threads with the part of it that was lost.
    fn add(&mut self, launches: u64, dispatchers: Nanos, lost: Nanos) {
        self.launches = self.launches.saturating_add(launches);
        self.dispatcher_seconds += dispatchers.as_secs_f64();
        self.lost_seconds += lost.as_secs_f64();
    }

    /// Returns true if something was observed in its time: zeros of unobserved time are no measurement.
    pub fn is_observed<'a>(&self, periods: impl IntoIterator<Item = &'a Period>) -> bool {
        let middle = self.at - self.seconds / 2.0;
        let mut disabled = periods.into_iter().filter(|period| period.state == State::Disabled);
        !disabled.any(|Period { since, until, .. }| {
            (*since..until.unwrap_or(f64::INFINITY)).contains(&middle)
        })
    }
}

/// The last [`TIMELINE_SECONDS`], in a ring of bounded size.
#[derive(Debug, Default)]
pub(crate) struct Timeline(VecDeque<TimelinePoint>);

impl Timeline {
    pub(crate) fn push(&mut self, point: TimelinePoint) {
        self.0.push_back(point);
        let from = point.at - TIMELINE_SECONDS;
        while self.0.len() > MAX_POINTS || self.0.front().is_some_and(|own| own.at < from) {
            self.0.pop_front();
        }
    }

    /// Oldest first.
    pub(crate) fn points(&self) -> impl ExactSizeIterator<Item = &TimelinePoint> {
        self.0.iter()
    }
}

/// The point of an evaluation, without its chains; `None` without a process that makes traced calls, as while probes are disabled.
pub(crate) fn point(context: &Context<'_>, unix_seconds: f64) -> Option<TimelinePoint> {
    let dispatching = || context.processes.iter().filter(|process| process.dispatches());
    // No longer than one of them was observed: nothing may have been evaluated for long before.
    let window = dispatching().map(|process| process.short.wall).max()?;
    let mut point = TimelinePoint::new(unix_seconds, window.as_secs_f64());
    for process in dispatching() {
        let time = process.short.dispatcher_time();
        point.add(process.short.all_launches(), time.total(), time.all_lost());
    }
    Some(point)
}

#[cfg(test)]
mod tests;
