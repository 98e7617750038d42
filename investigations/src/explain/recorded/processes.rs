//! The processes of a recording, which several runs may have recorded, and for how long each was.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included};
use std::ops::ControlFlow;

use gpucause_abi::snapshot::{ProcessSnapshot, TimeAccount};
use gpucause_abi::{Nanos, ProcId, Tgid};

use super::lines::{node_of, unix_seconds};
use gpucause_trace::recording::{
    CallStatistics, NodeIndex, ProcessIndex, RecordedSnapshot, Recording, RecordingError, Session,
    WaitStatistics,
};
use gpucause_trace::trace::{calls_of, waits_of};

/// Start and end, in nanoseconds since the Unix epoch.
pub(super) type Span = (i64, i64);

/// How far the last snapshot of a run that has an end may be behind its events without a note, in seconds.
const MUCH_BEHIND: f64 = 1.0;
/// The last snapshot of a run without an end may be this many seconds behind its events without a note; less is printed as 0.0 s.
const BEHIND: f64 = 0.05;

/// Node, PID, and start on the boot-time clock, which together no two processes have.
type Identity = (NodeIndex, Tgid, Nanos);

/// A process image as one run of a recorder accounted for it.
#[derive(Debug)]
struct Image {
    identity: Identity,
    session: usize,
    id: ProcId,
    first_seen: Nanos,
    /// When it was first seen, by the clock of the recording.
    since_ns: i64,
    /// When it ended, by the same clock.
    ended_ns: Option<i64>,
    /// Time of its dispatcher threads, until the last snapshot.
    time: TimeAccount,
}

/// Which entries of the recording's list are one process.
#[derive(Debug, Default)]
pub(super) struct Processes {
    images: BTreeMap<ProcessIndex, Image>,
    /// A process with several images is listed under the last one that counts, which stands for it, with all that count.
    several: BTreeMap<ProcessIndex, Vec<ProcessIndex>>,
    /// The one that stands for each image of those processes.
    same: BTreeMap<ProcessIndex, ProcessIndex>,
    /// Images of runs that do not count, as another run observed the process at the same time.
    repeated: BTreeSet<ProcessIndex>,
    /// When each run of a recorder began and ended.
    sessions: Vec<Span>,
    /// The last snapshot of each run.
    snapshots: Vec<Option<i64>>,
}

impl Image {
    /// Returns what identifies the image in all files of one recorder.
    const fn key(&self) -> (ProcId, Nanos) {
        (self.id, self.first_seen)
    }
}

fn nanos(seconds: f64) -> i64 {
    (seconds * 1e9) as i64
}

impl Processes {
    pub(super) fn read(recording: &dyn Recording) -> Result<Self, RecordingError> {
        let sessions = recording.sessions().iter();
        let sessions: Vec<_> =
            sessions.map(|own| (own.started_ns, own.ended_ns.unwrap_or(own.started_ns))).collect();
        let snapshots = vec![None; sessions.len()];
        let mut processes = Self { sessions, snapshots, ..Self::default() };
        recording.snapshots(&mut |snapshot| {
            processes.add(&snapshot);
            ControlFlow::Continue(())
        })?;
        let mut groups: BTreeMap<Identity, Vec<ProcessIndex>> = BTreeMap::new();
        for (index, image) in &processes.images {
            // Old recorders did not write the start.
            if image.identity.2 > Nanos(0) {
                groups.entry(image.identity).or_default().push(*index);
            }
        }
        for mut group in groups.into_values().filter(|group| group.len() > 1) {
            group.sort_by_key(|index| (processes.images.get(index).map(|own| own.session), *index));
            let runs = processes.separate_runs(recording, &group);
            let (counted, repeated): (Vec<_>, Vec<_>) = group.into_iter().partition(|index| {
                processes.images.get(index).is_some_and(|own| runs.contains(&own.session))
            });
            let Some(&last) = counted.last() else { continue };
            processes.same.extend(counted.iter().chain(&repeated).map(|index| (*index, last)));
            processes.repeated.extend(repeated);
            processes.several.insert(last, counted);
        }
        Ok(processes)
    }

    /// Returns the runs that count among those with these images of a process. Of different recorders at the same time only one counts:
    /// preferably the one that records events of the process, then the longer one.
    fn separate_runs(&self, recording: &dyn Recording, images: &[ProcessIndex]) -> Vec<usize> {
        let rank = |image: &&Image| {
            let pids = recording.sessions().get(image.session).map(Session::pids);
            let pids = pids.unwrap_or_default();
            let has_events = pids.is_empty() || pids.contains(&image.identity.1.0);
            let (from, until) = self.span(image);
            (Reverse((has_events, until.saturating_sub(from))), image.session)
        };
        let mut ranked: Vec<_> = images.iter().filter_map(|own| self.images.get(own)).collect();
        ranked.sort_by_key(rank);
        let mut kept: Vec<&Image> = Vec::new();
        for image in ranked {
            let (from, until) = self.span(image);
            let is_separate = |own: &&Image| {
                let (begin, end) = self.span(own);
                let is_of_same_recorder = own.session == image.session || own.key() == image.key();
                is_of_same_recorder || end <= from || until <= begin
            };
            if kept.iter().all(is_separate) {
                kept.push(image);
            }
        }
        kept.into_iter().map(|image| image.session).collect()
    }

    /// When the run that has this image began and ended.
    fn span(&self, image: &Image) -> Span {
        self.sessions.get(image.session).copied().unwrap_or_default()
    }

    /// A recorder that was killed and wrote no accounts ends with the last event of its node before the next run there. `events` is
    /// the time of the events of each process.
    pub(super) fn end_runs(
        &mut self,
        recording: &dyn Recording,
        events: &BTreeMap<ProcessIndex, Span>,
    ) {
        let sessions = recording.sessions();
        let starts: BTreeSet<_> = sessions.iter().map(|own| (own.node, own.started_ns)).collect();
        let spans = events.iter();
        let spans = spans.filter_map(|(own, span)| Some((node_of(recording, *own)?, *span)));
        // By the start of a process's events: the last end of those that started until then.
        let mut ends: BTreeMap<(NodeIndex, i64), i64> = BTreeMap::new();
        for (node, (from, until)) in spans.collect::<BTreeSet<_>>() {
            let before = ends.range((node, i64::MIN)..=(node, from)).next_back();
            let last = before.map_or(until, |(_, before)| until.max(*before));
            ends.insert((node, from), last);
        }
        for (session, span) in sessions.iter().zip(&mut self.sessions) {
            let (node, started) = (session.node, span.0);
            if span.1 > started {
                continue;
            }
            let later = (Excluded((node, started)), Included((node, i64::MAX)));
            let next = starts.range(later).next().map_or(i64::MAX, |(_, next)| *next);
            if let Some((_, last)) = ends.range((node, i64::MIN)..(node, next)).next_back() {
                span.1 = span.1.max(next.min(*last));
            }
        }
    }

    /// When each run ended, in seconds since the Unix epoch.
    pub(super) fn ends(&self) -> Vec<f64> {
        self.sessions.iter().map(|(_, until)| unix_seconds(*until)).collect()
    }

    fn add(&mut self, snapshot: &RecordedSnapshot) {
        let RecordedSnapshot { node, session, processes, input } = snapshot;
        if let Some(span) = self.sessions.get_mut(*session) {
            // A recorder that was killed ends with its last snapshot.
            span.1 = span.1.max(nanos(input.unix_seconds));
        }
        if let Some(last) = self.snapshots.get_mut(*session) {
            *last = Some(nanos(input.unix_seconds));
        }
        for process in &input.snapshot.processes {
            let Some(&index) = processes.get(&process.id) else { continue };
            let ProcessSnapshot { id, tgid, started_boottime, first_seen, ended, .. } = *process;
            let time = process.dispatcher_time;
            let unix_ns = |at| {
                let ago = input.snapshot.taken_at.less(at).as_secs_f64();
                nanos(input.unix_seconds - ago)
            };
            let (since_ns, ended_ns) = (unix_ns(first_seen), ended.map(unix_ns));
            let (session, identity) = (*session, (*node, tgid, started_boottime));
            let image = Image { identity, session, id, first_seen, since_ns, ended_ns, time };
            let known = self.images.entry(index).or_insert(image);
            (known.time, known.ended_ns) = (time, ended_ns);
        }
    }

    /// The one that stands for the process; `None` for an image that does not count.
    pub(super) fn counted_as(&self, process: ProcessIndex) -> Option<ProcessIndex> {
        let counts = !self.repeated.contains(&process);
        counts.then(|| self.same.get(&process).copied().unwrap_or(process))
    }

    /// The images of a process whose accounts add up: of those that one exporter wrote to several files, the last has all.
    fn images(&self, process: ProcessIndex) -> Vec<(ProcessIndex, &Image)> {
        let alone = [process];
        let all = self.several.get(&process).map_or(&alone[..], |all| all);
        let mut images: BTreeMap<(ProcId, Nanos), (ProcessIndex, &Image)> = BTreeMap::new();
        for index in all {
            if let Some(image) = self.images.get(index) {
                images.insert(image.key(), (*index, image));
            }
        }
        images.into_values().collect()
    }

    /// The processes that have accounts, by PID, with the time of their dispatcher threads.
    pub(super) fn dispatcher_time(&self) -> Vec<(ProcessIndex, TimeAccount)> {
        let own = self.images.keys().filter(|own| self.counted_as(**own) == Some(**own));
        own.map(|process| {
            let mut time = TimeAccount::default();
            self.images(*process).iter().for_each(|(_, image)| time.merge(&image.time));
            (*process, time)
        })
        .collect()
    }

    /// The statistics of each process, with those of its images as one.
    pub(super) fn statistics(
        &self,
        recording: &dyn Recording,
    ) -> Result<(Vec<CallStatistics>, Vec<WaitStatistics>), RecordingError> {
        let (mut calls, mut waits) = (recording.calls()?, recording.waits()?);
        if self.several.is_empty() {
            return Ok((calls, waits));
        }
        calls.retain(|own| !self.same.contains_key(&own.process));
        waits.retain(|own| !self.same.contains_key(&own.process));
        let mut last: BTreeMap<ProcessIndex, ProcessSnapshot> = BTreeMap::new();
        recording.snapshots(&mut |RecordedSnapshot { processes, input, .. }| {
            for process in &input.snapshot.processes {
                let index = processes.get(&process.id).filter(|own| self.same.contains_key(own));
                if let Some(index) = index {
                    last.insert(*index, process.clone());
                }
            }
            ControlFlow::Continue(())
        })?;
        for process in self.several.keys().copied() {
            // Quantiles do not add up, but histograms do.
            let mut whole = ProcessSnapshot::default();
            for image in self.images(process).iter().filter_map(|(index, _)| last.get(index)) {
                whole.calls.extend_from_slice(&image.calls);
                whole.stalls.extend_from_slice(&image.stalls);
                whole.offcpu.extend_from_slice(&image.offcpu);
            }
            calls.extend(calls_of(process, &whole));
            waits.extend(waits_of(process, &whole));
        }
        calls.sort_by_key(|own| own.process);
        waits.sort_by_key(|own| own.process);
        Ok((calls, waits))
    }

    /// For how long a process was recorded, in seconds: the runs in which it was observed. Of one without accounts, `events` is the
    /// time of its events, if it has any.
    pub(super) fn recorded_seconds(
        &self,
        recording: &dyn Recording,
        process: ProcessIndex,
        events: Option<Span>,
    ) -> f64 {
        let mut runs: BTreeMap<usize, Span> = BTreeMap::new();
        for (_, image) in self.images(process) {
            let Some(&(_, until)) = self.sessions.get(image.session) else { continue };
            let until = image.ended_ns.map_or(until, |ended| until.min(ended));
            // Its accounts are of the time since: a flight recorder writes all that the exporter counted of the process.
            let run = runs.entry(image.session).or_insert((image.since_ns, until));
            *run = (run.0.min(image.since_ns), run.1.max(until));
        }
        if runs.is_empty() {
            let node = node_of(recording, process);
            let runs = node.into_iter().flat_map(|node| self.runs_of(recording, node));
            return or_events(
                covered(runs.filter(|span| {
                    events.is_none_or(|(from, until)| span.0 <= until && span.1 >= from)
                })),
                events,
            );
        }
        or_events(runs.values().map(|span| length(*span)).sum(), events)
    }

    /// For how long a node was recorded, in seconds. `events` is the time of its events, if it has any.
    pub(super) fn recorded_seconds_of_node(
        &self,
        recording: &dyn Recording,
        node: NodeIndex,
        events: Option<Span>,
    ) -> f64 {
        or_events(covered(self.runs_of(recording, node)), events)
    }

    /// Returns the longest time for which a shown process was observed only by runs that do not count.
    pub(super) fn left_out_seconds(&self, is_shown: impl Fn(ProcessIndex) -> bool) -> Option<f64> {
        let of_process = |process: &ProcessIndex| {
            let standing = self.same.get(process)?;
            let all = self.same.iter().filter(|(_, own)| *own == standing).map(|(image, _)| image);
            let counted = self.several.get(standing)?.iter();
            let span = |image: &ProcessIndex| self.images.get(image).map(|own| self.span(own));
            Some(covered(all.filter_map(span)) - covered(counted.filter_map(span)))
        };
        let shown = self.repeated.iter().filter(|own| is_shown(**own));
        shown.filter_map(of_process).max_by(f64::total_cmp)
    }

    /// For how long at most the events of a run go on after its last snapshot, in seconds, where that is worth a note: totals and
    /// chains are of that snapshot. Of shown processes in runs that count. `events` is as in [`end_runs`](Self::end_runs).
    pub(super) fn behind_seconds(
        &self,
        recording: &dyn Recording,
        node: NodeIndex,
        events: &BTreeMap<ProcessIndex, Span>,
        is_shown: impl Fn(ProcessIndex) -> bool,
    ) -> Option<f64> {
        let sessions = recording.sessions();
        let is_counted = |own: ProcessIndex| is_shown(own) && !self.repeated.contains(&own);
        let last_before = |at: i64| {
            let own = (0..).zip(sessions).filter(|(_, own)| own.node == node);
            let own = own.filter(|(_, own)| own.started_ns <= at);
            own.max_by_key(|(_, own)| own.started_ns).map(|(run, _)| run)
        };
        let own = events
            .iter()
            .filter(|(own, _)| node_of(recording, **own) == Some(node) && is_counted(**own));
        let behind = own.filter_map(|(process, &(from, until))| {
            // A process that no snapshot has is of the run that had begun.
            let known = self.images.get(process).map(|image| image.session);
            let run: usize = known.or_else(|| last_before(from))?;
            let seconds = length(((*self.snapshots.get(run)?)?, until));
            let has_end = sessions.get(run)?.ended_ns.is_some();
            (seconds >= if has_end { MUCH_BEHIND } else { BEHIND }).then_some(seconds)
        });
        behind.max_by(f64::total_cmp)
    }

    fn runs_of(&self, recording: &dyn Recording, node: NodeIndex) -> impl Iterator<Item = Span> {
        let sessions = recording.sessions().iter().zip(&self.sessions);
        sessions.filter(move |(own, _)| own.node == node).map(|(_, span)| *span)
    }
}

/// Seconds in these; times in which two recorders ran count once.
fn covered(runs: impl Iterator<Item = Span>) -> f64 {
    let (mut seconds, mut covered) = (0.0, i64::MIN);
    for (from, until) in runs.collect::<BTreeSet<_>>() {
        seconds += length((from.max(covered), until));
        covered = covered.max(until);
    }
    seconds
}

/// The time of the events where the file does not say when a recorder ran.
fn or_events(seconds: f64, events: Option<Span>) -> f64 {
    match events {
        Some(events) if seconds <= 0.0 => length(events),
        _ => seconds,
    }
}

fn length((from, until): Span) -> f64 {
    until.saturating_sub(from).max(0) as f64 / 1e9
}
