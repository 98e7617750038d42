//! The activity of processes over all of a recording, and a timeline of it in a bounded number of points.

use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use gpucause_abi::snapshot::{ProcessSnapshot, Snapshot};
use gpucause_abi::{Nanos, ProcId, Tgid};

use super::{Activities, Activity, TimelinePoint};
use crate::chain::Chain;
use crate::observation::Period;

/// Points of the timeline at most; when there are more, two become one.
const MAX_POINTS: usize = 1_200;
/// Time between two adjacent points at most, in seconds: clocks differ.
const ADJACENT: f64 = 0.1;

/// The first and the last that is known of a process.
#[derive(Debug)]
struct Span {
    /// `None` where it began after the first snapshot.
    first: Option<ProcessSnapshot>,
    last: ProcessSnapshot,
    until: Nanos,
}

/// PID, start on the boot-time clock, and the number in its run where an old recorder did not write the start.
type Identity = (Tgid, Nanos, Option<(usize, ProcId)>);

/// A process in one run of the recorder: the run's number, when it began and ended, and what the process did.
type Run = (Identity, (usize, Nanos, Nanos), Activity);

/// Sums up the snapshots of a recording, in the order of time.
#[derive(Debug, Default)]
pub struct Totals<'a> {
    session: Option<usize>,
    begun: Nanos,
    begun_unix: f64,
    at: Nanos,
    processes: HashMap<ProcId, Span>,
    /// Processes of earlier runs of the recorder, which have other process numbers.
    earlier: Vec<Run>,
    /// PIDs of the processes that are shown; all where `None`.
    shown: Option<BTreeSet<u32>>,
    periods: &'a [Period],
    /// Begin and end of each run of the recorder, in seconds since the Unix epoch.
    runs: Vec<(f64, f64)>,
    timeline: Vec<TimelinePoint>,
}

impl<'a> Totals<'a> {
    /// Sums up the processes that are shown, or all; the timeline is without the periods in which nothing was observed.
    pub fn of(shown: Option<BTreeSet<u32>>, periods: &'a [Period]) -> Self {
        Self { shown, periods, ..Self::default() }
    }

    /// Adds a snapshot of a run of the recorder.
    pub fn add(&mut self, session: usize, unix_seconds: f64, snapshot: &Snapshot) {
        let now = snapshot.taken_at;
        let begins = self.session != Some(session);
        if begins {
            self.end_session();
            self.session = Some(session);
            (self.begun, self.begun_unix, self.at) = (now, unix_seconds, now);
        }
        let shown: Vec<_> = snapshot.processes.iter().filter(|own| self.shows(own)).collect();
        let (observed, end) = observed(shown.iter().copied(), self.at, now);
        let at = unix_seconds - now.less(end).as_secs_f64();
        let mut point = TimelinePoint::new(at, observed.as_secs_f64());
        for own in shown {
            let known = self.processes.remove(&own.id);
            add_to(&mut point, known.as_ref().map(|span| &span.last), own);
            let first = if begins { Some(own.clone()) } else { known.and_then(|span| span.first) };
            self.processes.insert(own.id, Span { first, last: own.clone(), until: now });
        }
        self.at = now;
        if observed > Nanos(0) && point.is_observed(self.periods) {
            self.timeline.push(point);
        }
        if self.timeline.len() > MAX_POINTS {
            halve(&mut self.timeline);
        }
    }

    fn shows(&self, process: &ProcessSnapshot) -> bool {
        self.shown.as_ref().is_none_or(|shown| shown.contains(&process.tgid.0))
    }

    /// Returns true if there was no snapshot.
    pub const fn is_empty(&self) -> bool {
        self.session.is_none()
    }

    /// Returns the sums, `None` without time, and the timeline with these chains.
    pub fn finish(mut self, chains: &[Chain]) -> (Option<Activities>, Vec<TimelinePoint>) {
        self.end_session();
        for point in &mut self.timeline {
            let (from, until) = (point.at - point.seconds, point.at);
            let seen = chains.iter().filter(|own| own.first_seen <= until && own.last_seen >= from);
            point.worst = seen.clone().map(|own| own.severity_in((from, until))).max();
            point.chains = u32::try_from(seen.count()).unwrap_or(u32::MAX);
        }
        let mut processes: Vec<_> = one_each(self.earlier).collect();
        processes.sort_by_key(|own| (own.pid, own.id));
        let window = covered(self.runs);
        let activities = Activities { window: (Nanos(0), window), processes };
        ((window.0 > 0).then_some(activities), self.timeline)
    }

    fn end_session(&mut self) {
        let Some(session) = self.session else { return };
        let begun = self.begun;
        let spans = std::mem::take(&mut self.processes).into_values();
        let dispatching = spans.filter(|span| span.last.dispatches);
        self.earlier.extend(dispatching.map(|Span { first, last, until }| {
            let started = last.started_boottime;
            let number = (started == Nanos(0)).then_some((session, last.id));
            let activity = Activity::between(first.as_ref(), &last, (begun, until));
            ((last.tgid, started, number), (session, begun, until), activity)
        }));
        let seconds = self.at.less(begun).as_secs_f64();
        self.runs.push((self.begun_unix, self.begun_unix + seconds));
    }
}

/// The time in these runs, that of several once.
fn covered(mut runs: Vec<(f64, f64)>) -> Nanos {
    runs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut seconds, mut end) = (0.0, f64::MIN);
    for (from, until) in runs {
        seconds += (until - from.max(end)).max(0.0);
        end = end.max(until);
    }
    Nanos((seconds * 1e9).round() as u64)
}

/// In how much of the time since `from` any of the processes was observed, and when that ended.
fn observed<'a>(
    processes: impl Iterator<Item = &'a ProcessSnapshot>,
    from: Nanos,
    now: Nanos,
) -> (Nanos, Nanos) {
    let own = processes.filter(|own| own.dispatches);
    let spans = own.map(|own| (own.first_seen.max(from), own.ended.unwrap_or(now).min(now)));
    let (mut time, mut end) = (Nanos(0), from);
    for (begun, ended) in spans.collect::<BTreeSet<_>>() {
        time.0 += ended.less(begun.max(end)).0;
        end = end.max(ended);
    }
    (time, end)
}

/// Makes one point of two adjacent ones. Where too many are not, those with the least time between them.
fn halve(timeline: &mut Vec<TimelinePoint>) {
    let mut apart = ADJACENT;
    while timeline.len() > MAX_POINTS / 4 * 3 {
        let mut is_pair = false;
        timeline.dedup_by(|own, before| {
            let is_apart = (own.at - own.seconds - before.at).abs() > apart;
            is_pair = !is_pair && !is_apart;
            if is_pair {
                *before = TimelinePoint {
                    seconds: before.seconds + own.seconds,
                    launches: before.launches.saturating_add(own.launches),
                    dispatcher_seconds: before.dispatcher_seconds + own.dispatcher_seconds,
                    lost_seconds: before.lost_seconds + own.lost_seconds,
                    ..*own
                };
            }
            is_pair
        });
        apart *= 4.0;
    }
}

/// A process of several runs as one; of runs at the same time, the longest counts.
fn one_each(mut runs: Vec<Run>) -> impl Iterator<Item = Activity> {
    runs.sort_by_key(|(_, (_, from, until), _)| Reverse(until.less(*from)));
    let mut counted: BTreeMap<Identity, Vec<(usize, Nanos, Nanos)>> = BTreeMap::new();
    runs.retain(|(identity, run, _)| {
        let known = counted.entry(*identity).or_default();
        // A run has each image of the process.
        let is_separate =
            |own: &(usize, Nanos, Nanos)| own.0 == run.0 || own.2 <= run.1 || run.2 <= own.1;
        let counts = known.iter().all(is_separate);
        known.extend(counts.then_some(*run));
        counts
    });
    runs.sort_by_key(|(_, run, _)| *run);
    let mut all: BTreeMap<Identity, Activity> = BTreeMap::new();
    for (identity, _, run) in runs {
        match all.entry(identity) {
            Entry::Vacant(new) => drop(new.insert(run)),
            Entry::Occupied(mut known) => known.get_mut().absorb(&run),
        }
    }
    all.into_values()
}

fn add_to(point: &mut TimelinePoint, before: Option<&ProcessSnapshot>, now: &ProcessSnapshot) {
    if !now.dispatches {
        return;
    }
    let sums = |own: &ProcessSnapshot| {
        (own.launches(), own.dispatcher_time.total(), own.dispatcher_time.all_lost())
    };
    let ((launches, total, lost), before) = (sums(now), before.map(sums).unwrap_or_default());
    point.add(launches.saturating_sub(before.0), total.less(before.1), lost.less(before.2));
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpucause_abi::Tgid;
    use gpucause_abi::snapshot::Comm;
    use gpucause_abi::state::{Phase, State};

    const SECOND: u64 = 1_000_000_000;

    fn snapshot(at: u64, launches: &[(u32, u64)]) -> Snapshot {
        let process = |&(id, launches): &(u32, u64)| {
            let mut own = ProcessSnapshot::new(ProcId(id), Tgid(id), Comm([b'p'; 16]));
            (own.dispatches, own.launches.untimed) = (true, launches);
            own.dispatcher_time.0[Phase::Host as usize][State::Running.index()] =
                Nanos(at * SECOND);
            own
        };
        let processes = launches.iter().map(process).collect();
        Snapshot { taken_at: Nanos(at * SECOND), processes, ..Snapshot::default() }
    }

    /// The length of the time; PID, launches and seconds of each process.
    fn rows(activities: Option<Activities>) -> (f64, Vec<(u32, u64, f64)>) {
        let Activities { window: (from, until), processes } = activities.unwrap();
        let row = |own: &Activity| (own.pid.0, own.launches, own.span.as_secs_f64());
        (until.less(from).as_secs_f64(), processes.iter().map(row).collect())
    }

    #[test]
    fn sums_are_over_all_of_the_file_and_runs_of_the_recorder_are_apart() {
        let mut totals = Totals::default();
        totals.add(0, 10.0, &snapshot(10, &[(1, 100)]));
        totals.add(0, 12.0, &snapshot(12, &[(1, 150), (2, 30)]));
        totals.add(0, 14.0, &snapshot(14, &[(2, 40)]));
        totals.add(1, 100.0, &snapshot(5, &[(1, 1_000)]));
        totals.add(1, 101.0, &snapshot(6, &[(1, 1_007)]));
        let (activities, timeline) = totals.finish(&[]);
        let (seconds, rows) = rows(activities);
        assert_eq!((seconds, rows), (5.0, vec![(1, 50, 2.0), (1, 7, 1.0), (2, 40, 4.0)]));
        let launches: Vec<_> = timeline.iter().map(|own| (own.at, own.launches)).collect();
        assert_eq!(launches, [(12.0, 80), (14.0, 10), (101.0, 7)]);
    }

    #[test]
    fn time_without_a_process_or_without_probes_is_no_time_without_launches() {
        let disabled = [Period { until: Some(700.0), ..Period::disabled(600.0, "SIGUSR1") }];
        let mut totals = Totals::of(None, &disabled);
        let begun = |at, launches| {
            let mut own = snapshot(at, &[(2, launches)]);
            own.processes[0].first_seen = Nanos(599 * SECOND);
            own
        };
        let mut ended = snapshot(14, &[(1, 100)]);
        ended.processes[0].ended = Some(Nanos(11 * SECOND));
        totals.add(0, 10.0, &snapshot(10, &[(1, 100)]));
        totals.add(0, 14.0, &ended);
        totals.add(0, 16.0, &Snapshot { taken_at: Nanos(16 * SECOND), ..ended });
        totals.add(0, 600.0, &begun(600, 5));
        totals.add(0, 700.0, &begun(700, 5));
        totals.add(0, 701.0, &begun(701, 9));
        let (_, timeline) = totals.finish(&[]);
        let points: Vec<_> = timeline.iter().map(|own| (own.at, own.seconds)).collect();
        assert_eq!(points, [(11.0, 1.0), (600.0, 1.0), (701.0, 1.0)]);
    }

    #[test]
    fn a_point_is_as_long_as_any_process_was_observed_and_ends_with_the_last() {
        let mut totals = Totals::default();
        let mut snapshot = snapshot(14, &[(1, 10), (2, 20), (3, 30)]);
        let spans = [(10, 11), (12, 13), (12, 12)];
        for (own, (from, until)) in snapshot.processes.iter_mut().zip(spans) {
            (own.first_seen, own.ended) = (Nanos(from * SECOND), Some(Nanos(until * SECOND)));
        }
        totals.add(0, 10.0, &Snapshot { taken_at: Nanos(10 * SECOND), ..Snapshot::default() });
        totals.add(0, 14.0, &snapshot);
        let (_, timeline) = totals.finish(&[]);
        let points: Vec<_> =
            timeline.iter().map(|own| (own.at, own.seconds, own.launches)).collect();
        assert_eq!(points, [(13.0, 2.0, 60)]);
    }

    #[test]
    fn time_in_which_only_processes_ran_that_are_not_shown_is_no_time_without_launches() {
        let mut totals = Totals::of(Some([1].into()), &[]);
        let mut ended = snapshot(14, &[(1, 150), (2, 40)]);
        ended.processes[0].ended = Some(Nanos(12 * SECOND));
        totals.add(0, 10.0, &snapshot(10, &[(1, 100), (2, 30)]));
        totals.add(0, 14.0, &ended);
        totals.add(0, 16.0, &snapshot(16, &[(2, 50)]));
        let (_, timeline) = totals.finish(&[]);
        let points: Vec<_> =
            timeline.iter().map(|own| (own.at, own.seconds, own.launches)).collect();
        assert_eq!(points, [(12.0, 2.0, 50)]);
    }

    #[test]
    fn no_launch_is_lost_where_a_long_recording_has_a_time_without_probes() {
        let disabled = [Period { until: Some(1_000.2), ..Period::disabled(599.0, "SIGUSR1") }];
        let mut totals = Totals::of(None, &disabled);
        for at in (0..600).chain(1_000..1_800) {
            let launches = if at < 600 { at } else { at - 401 };
            totals.add(0, at as f64, &snapshot(at, &[(1, launches)]));
        }
        let (_, timeline) = totals.finish(&[]);
        assert!(timeline.len() <= MAX_POINTS, "{}", timeline.len());
        assert_eq!(timeline.iter().map(|own| own.launches).sum::<u64>(), 1_398);
        let is_in_gap = |own: &&TimelinePoint| own.at > 599.0 && own.at - own.seconds < 1_000.0;
        assert_eq!(timeline.iter().find(is_in_gap), None);
    }

    #[test]
    fn points_are_few_also_where_no_two_are_adjacent() {
        let mut totals = Totals::default();
        for at in (0..10_000).step_by(2) {
            let mut snapshot = snapshot(at, &[(at as u32, 1)]);
            snapshot.processes[0].first_seen = Nanos(at * SECOND - at.min(1) * SECOND);
            totals.add(0, at as f64, &snapshot);
        }
        let (_, timeline) = totals.finish(&[]);
        assert!(timeline.len() <= MAX_POINTS, "{}", timeline.len());
        assert_eq!(timeline.iter().map(|own| own.launches).sum::<u64>(), 4_999);
    }

    #[test]
    fn a_process_of_two_runs_is_one_and_those_that_are_not_shown_are_in_no_sum() {
        let of = |at, launches: &[(u32, u64)]| {
            let mut snapshot = snapshot(at, launches);
            for process in &mut snapshot.processes {
                process.started_boottime = Nanos(process.tgid.0.into());
            }
            snapshot
        };
        let mut totals = Totals::of(Some([1].into()), &[]);
        totals.add(0, 10.0, &of(10, &[(1, 100), (2, 7)]));
        totals.add(0, 12.0, &of(12, &[(1, 150), (2, 9)]));
        totals.add(1, 100.0, &of(5, &[(1, 1_000)]));
        totals.add(1, 101.0, &of(6, &[(1, 1_007)]));
        let (activities, timeline) = totals.finish(&[]);
        assert_eq!(rows(activities).1, [(1, 57, 3.0)]);
        let launches: Vec<_> = timeline.iter().map(|own| own.launches).collect();
        assert_eq!(launches, [50, 7]);
        let mut totals = Totals::default();
        totals.add(0, 10.0, &of(10, &[(1, 0)]));
        totals.add(0, 14.0, &of(14, &[(1, 40)]));
        totals.add(1, 9.0, &of(9, &[(1, 0)]));
        totals.add(1, 14.0, &of(14, &[(1, 50)]));
        let (seconds, rows) = rows(totals.finish(&[]).0);
        assert_eq!(rows[0].1, 50, "of runs at the same time, the longer one");
        assert_eq!(seconds, 5.0, "time of two runs counts once");
    }

    #[test]
    fn a_long_recording_has_few_points_and_all_launches() {
        let mut totals = Totals::default();
        (0..10_000).for_each(|at| totals.add(0, at as f64, &snapshot(at, &[(1, at)])));
        let (_, timeline) = totals.finish(&[]);
        assert!(timeline.len() <= MAX_POINTS, "{}", timeline.len());
        assert_eq!(timeline.iter().map(|own| own.launches).sum::<u64>(), 9_999);
        let seconds: f64 = timeline.iter().map(|own| own.seconds).sum();
        assert_eq!(seconds, 9_999.0);
    }
}
