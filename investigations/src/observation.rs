//! Which part of a time window was observed: as a live node reports, or as a trace file shows.

use std::ops::ControlFlow;
use std::sync::Arc;

use gpucause_abi::Nanos;
use gpucause_abi::snapshot::{ProcessSnapshot, Snapshot};
use gpucause_engine::observation::{ObservationState, Period, State};
use serde::Serialize;

use gpucause_engine::utc::utc;
use gpucause_trace::recording::{
    Completeness, Filter, NodeIndex, RecordedSnapshot, Recording, RecordingError,
};

/// Result of the search for causal chains. Finding none differs from not observing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// All of the time was observed, and no causal chain was found.
    NothingFound,
    /// No causal chain was found, and some of the time was not observed.
    NotObserved,
    /// There is a causal chain.
    Found,
}

/// The observed part of a time window. Times are in seconds since the Unix epoch.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Observed {
    /// The state now, or at the end of a trace file; `None` for a node too old to report it.
    #[serde(flatten)]
    pub current: Option<Period>,
    /// Begin and end of the window.
    pub window: (f64, f64),
    /// The parts of the window that were not observed in full, in the order of time.
    pub not_fully_observed: Vec<Period>,
}

impl Observed {
    /// Returns the observation of a live node; `state` is `None` for one too old to report it.
    pub fn of_node(state: Option<ObservationState>, from: f64, until: f64) -> Self {
        let parts = state.as_ref().map(|state| state.over(from, until)).unwrap_or_default();
        let short = parts.into_iter().filter(|part| part.state != State::Attached);
        let not_fully_observed = short.collect();
        Self {
            current: state.map(|state| state.current),
            window: (from, until),
            not_fully_observed,
        }
    }

    /// Returns what the runs of a recorder observed of a node of a trace file between the times of `asked`, by default those of the first
    /// and last run. `last_event` is the end of its last event; `ends` has the end of each run of the file whose recorder did not report
    /// it, and is empty where that is not known.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn of_recording(
        recording: &dyn Recording,
        node: NodeIndex,
        (last_event, ends): (Option<f64>, &[f64]),
        asked: (Option<f64>, Option<f64>),
    ) -> Result<Self, RecordingError> {
        let mut runs = runs(recording, node, ends)?;
        runs.sort_by(|a, b| a.since.total_cmp(&b.since));
        let mut whole = None;
        for run in &runs {
            absorb_run(&mut whole, run.clone());
        }
        let whole = whole.unwrap_or_else(|| Period {
            until: last_event.or(Some(0.0)),
            ..Period::disabled(0.0, "the file holds no run of a recorder")
        });
        let until = whole.until.unwrap_or(whole.since);
        let window = (asked.0.unwrap_or(whole.since), asked.1.unwrap_or(until));
        let mut parts = with_gaps(runs, window);
        parts.retain(|part| part.state != State::Attached);
        Ok(Self { current: Some(whole), window, not_fully_observed: parts })
    }

    /// The outcome, by whether there is a causal chain.
    pub fn outcome(&self, found: bool) -> Outcome {
        match found {
            true => Outcome::Found,
            false if self.is_blind() => Outcome::NotObserved,
            false if self.not_fully_observed.iter().all(Period::shows_causes) => {
                Outcome::NothingFound
            }
            false => Outcome::NotObserved,
        }
    }

    /// Returns true if no part of the window is known to have been observed.
    pub fn is_blind(&self) -> bool {
        let blind: f64 = (self.not_fully_observed.iter())
            .filter(|part| part.state == State::Disabled)
            .map(|part| part.until.unwrap_or(self.window.1) - part.since)
            .sum();
        // The tolerance covers rounding of the sum.
        self.current.is_none() || blind >= self.window.1 - self.window.0 - 1e-3
    }

    /// The first lines of a report: the state, and each part that was not observed in full.
    pub fn lines(&self) -> Vec<String> {
        let state = match &self.current {
            Some(current) => sentence(current),
            None => "not reported: this node runs an older version; whether it observed is unknown"
                .into(),
        };
        let mut lines = vec![format!("OBSERVATION  {state}")];
        for part in &self.not_fully_observed {
            let what =
                if part.state == State::Disabled { "NOT OBSERVED" } else { "PARTLY OBSERVED" };
            let until = utc(part.until.unwrap_or(self.window.1), true);
            lines.push(format!(
                "{what}  {} - {until} UTC: {}",
                utc(part.since, true),
                detail(part)
            ));
        }
        lines
    }
}

/// Reason for a time without a recorder.
const NO_RECORDER: &str = "no recorder ran";
/// Shortest time without a recorder that is reported, in seconds.
const SHORTEST_GAP: f64 = 1.0;
/// Shorter recordings are over before a process has warmed up and a small loss was seen twice, in seconds.
const SHORTEST_EVALUATED: f64 = 10.0;
/// Reason for a recording shorter than [`SHORTEST_EVALUATED`].
const TOO_SHORT: &str = "the recording is too short to find all causes: record 15 s or more";
/// Reason for a recording without events and accounts.
const NO_ACCOUNTS: &str = "the recording was interrupted before anything was observed";

/// Extends what the runs so far observed by the next one.
fn absorb_run(all: &mut Option<Period>, run: Period) {
    let Some(all) = all else {
        *all = Some(run);
        return;
    };
    let end = all.until.unwrap_or(all.since);
    let until = end.max(run.until.unwrap_or(run.since));
    let has_gap = run.since - end >= SHORTEST_GAP;
    all.absorb(run);
    all.until = Some(until);
    if has_gap {
        all.state = all.state.max(State::Partial);
        all.timed_share = None;
        all.reason = format!("{NO_RECORDER} for a part of this time");
    }
}

/// The parts of these runs within the window, and the times in it without any. Runs are in the order of their start and may overlap.
fn with_gaps(runs: Vec<Period>, (from, until): (f64, f64)) -> Vec<Period> {
    let mut parts = Vec::with_capacity(runs.len() * 2 + 1);
    let mut covered = from;
    let gap = |from: f64, until: f64, parts: &mut Vec<Period>| {
        if until - from >= SHORTEST_GAP {
            parts.push(Period { until: Some(until), ..Period::disabled(from, NO_RECORDER) });
        }
    };
    for run in runs {
        let end = run.until.unwrap_or(run.since);
        let Some(part) = run.within(from, until) else { continue };
        gap(covered, part.since, &mut parts);
        covered = covered.max(end);
        parts.push(part);
    }
    gap(covered, until, &mut parts);
    parts
}

/// A state in words, such as `disabled since 2023-11-15 12:00:00 UTC: nothing is observed (SIGUSR1)`.
pub fn sentence(period: &Period) -> String {
    let until = period.until.map(|until| format!(" until {}", utc(until, true)));
    let since = utc(period.since, true);
    let state = match &*period.reason {
        Period::STARTING => "starting",
        _ => period.state.label(),
    };
    format!("{state} since {since}{} UTC: {}", until.unwrap_or_default(), detail(period))
}

fn detail(period: &Period) -> String {
    let what = match (period.state, period.timed_share) {
        (State::Attached, _) => "every launch is timed".to_owned(),
        (State::Partial, Some(share)) => format!("{} % of launches are timed", percent(share)),
        (State::Partial, None) => "some launches or causes are not observed".to_owned(),
        (State::Disabled, _) => "nothing is observed".to_owned(),
    };
    if period.reason.is_empty() { what } else { format!("{what} ({})", period.reason) }
}

/// Rounded down: 99.99 % is not 100 %.
fn percent(share: f64) -> f64 {
    (share * 1000.0).floor() / 10.0
}

/// The snapshots of one run of a recorder.
#[derive(Debug, Clone, Copy, Default)]
struct Snapshots {
    last: f64,
    timed: f64,
    elapsed: f64,
}

/// Seconds between two snapshots, and those of them in which the launches of every process were observed.
fn timed(previous: &Snapshot, snapshot: &Snapshot) -> (f64, f64) {
    let seconds = |now: Nanos, then: Nanos| now.0.saturating_sub(then.0) as f64 / 1e9;
    let elapsed = seconds(snapshot.taken_at, previous.taken_at);
    let unobserved = |process: &ProcessSnapshot| {
        let earlier = previous.processes.iter().find(|earlier| earlier.id == process.id);
        let earlier = earlier.map_or(Nanos(0), |earlier| earlier.launches.unobserved);
        seconds(process.launches.unobserved, earlier)
    };
    (elapsed, elapsed - snapshot.processes.iter().map(unobserved).fold(0.0, f64::max))
}

/// A period for each run of a recorder on this node. One that was killed ends with the last that the file has of it.
fn runs(
    recording: &dyn Recording,
    node: NodeIndex,
    ends: &[f64],
) -> Result<Vec<Period>, RecordingError> {
    let sessions = recording.sessions();
    let mut snapshots: Vec<Option<Snapshots>> = vec![None; sessions.len()];
    let mut previous: Option<(usize, Arc<Snapshot>)> = None;
    recording.snapshots(&mut |RecordedSnapshot { session, input, .. }| {
        let Some(own) = snapshots.get_mut(session) else { return ControlFlow::Continue(()) };
        let own = own.get_or_insert_default();
        own.last = input.unix_seconds;
        if let Some((_, previous)) = previous.as_ref().filter(|(known, _)| *known == session) {
            let (elapsed, timed) = timed(previous, &input.snapshot);
            (own.elapsed, own.timed) = (own.elapsed + elapsed, own.timed + timed);
        }
        previous = Some((session, input.snapshot));
        ControlFlow::Continue(())
    })?;
    let stored = stored_share(recording)?;
    // Some recorders write events and no accounts.
    let are_events = snapshots.iter().all(Option::is_none) && recording.event_count()? > 0;
    let mut periods = Vec::new();
    let own = sessions.iter().zip(snapshots).enumerate();
    for (index, (session, snapshots)) in own.filter(|(_, (own, _))| own.node == node) {
        let since = session.started_ns as f64 / 1e9;
        let ended = session.ended_ns.map(|ended| ended as f64 / 1e9);
        let last = ended.or(snapshots.map(|snapshots| snapshots.last));
        let last = last.or(ends.get(index).copied()).unwrap_or(since);
        if let Some(state) = session.observation() {
            periods.extend(state.over(since, last));
            continue;
        }
        let (share, reason) = match snapshots {
            Some(_) if last - since < SHORTEST_EVALUATED => (None, TOO_SHORT.to_owned()),
            // The engine's chains come from the accounts, which are complete even where events are a sample.
            Some(snapshots) if snapshots.elapsed > 0.0 => {
                let reason = "the probes cost more than their budget".to_owned();
                (Some(snapshots.timed / snapshots.elapsed), reason)
            }
            Some(_) => (Some(1.0), String::new()),
            None => match session.lost_events.filter(|lost| *lost > 0) {
                Some(lost) => (None, format!("{lost} events were lost")),
                None if !are_events && !has_events(recording, node, (since, last))? => {
                    (None, NO_ACCOUNTS.to_owned())
                }
                None => (Some(stored), "not every event was stored".to_owned()),
            },
        };
        periods.push(match share {
            Some(share) if share >= 1.0 => Period { until: Some(last), ..Period::attached(since) },
            share => Period {
                state: State::Partial,
                timed_share: share,
                since,
                until: Some(last),
                reason,
            },
        });
    }
    Ok(periods)
}

/// Returns true if the file has an event of the node in this time.
fn has_events(
    recording: &dyn Recording,
    node: NodeIndex,
    (from, until): (f64, f64),
) -> Result<bool, RecordingError> {
    let [from_ns, until_ns] = [from, until].map(|seconds| Some((seconds * 1e9) as i64));
    let filter = Filter { from_ns, until_ns, ..Filter::default() };
    let mut is_any = false;
    recording.events(&filter, &mut |event| {
        is_any = event.id.node == node;
        if is_any { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(is_any)
}

/// Share of the counted calls that the file stores.
fn stored_share(recording: &dyn Recording) -> Result<f64, RecordingError> {
    let (mut counted, mut stored) = (0.0, 0.0);
    for call in recording.calls()? {
        counted += call.durations.count as f64;
        stored += match call.durations.completeness {
            Completeness::Exact => call.durations.count as f64,
            Completeness::Sample { stored } => stored as f64,
        };
    }
    Ok(if counted > 0.0 { stored / counted } else { 1.0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::tests::MadeUp;
    use gpucause_abi::record::COMM_LEN;
    use gpucause_abi::snapshot::Comm;
    use gpucause_abi::{ProcId, Tgid};
    use gpucause_engine::EngineInput;
    use gpucause_trace::recording::Session;

    const NOON: f64 = 1_700_049_600.0;

    fn observed(state: impl Into<ObservationState>) -> Observed {
        Observed::of_node(Some(state.into()), NOON - 60.0, NOON)
    }

    #[test]
    fn nothing_found_is_said_only_of_a_window_that_was_observed_from_its_beginning_to_its_end() {
        let whole = observed(Period::attached(NOON - 600.0));
        assert_eq!(whole.outcome(false), Outcome::NothingFound);
        assert_eq!(whole.outcome(true), Outcome::Found);
        assert_eq!(observed(Period::attached(NOON - 30.0)).outcome(false), Outcome::NotObserved);
        let off = observed(Period::disabled(NOON - 600.0, "SIGUSR1"));
        assert_eq!((off.outcome(false), off.is_blind()), (Outcome::NotObserved, true));
        let mut back = ObservationState::from(Period::attached(NOON - 600.0));
        back.continue_with(Period::disabled(NOON - 40.0, "SIGUSR1"));
        back.continue_with(Period::attached(NOON - 30.0));
        let back = observed(back);
        assert_eq!((back.outcome(false), back.is_blind()), (Outcome::NotObserved, false));
        assert_eq!(back.outcome(true), Outcome::Found);
    }

    #[test]
    fn a_sample_is_said_to_be_one_and_missing_probes_hide_causes() {
        let partial = |timed_share| Period {
            state: State::Partial,
            timed_share,
            reason: "why".into(),
            ..Period::attached(NOON - 600.0)
        };
        let sampled = observed(partial(Some(0.25)));
        assert_eq!(sampled.outcome(false), Outcome::NothingFound);
        assert!(sampled.lines()[1].starts_with("PARTLY OBSERVED"), "{:?}", sampled.lines());
        assert!(sampled.lines()[1].ends_with("25 % of launches are timed (why)"));
        assert_eq!(observed(partial(None)).outcome(false), Outcome::NotObserved);
    }

    #[test]
    fn a_node_that_does_not_report_its_state_is_not_said_to_have_observed() {
        let unknown = Observed::of_node(None, NOON - 60.0, NOON);
        assert_eq!((unknown.outcome(false), unknown.is_blind()), (Outcome::NotObserved, true));
        assert!(unknown.lines()[0].contains("not reported"), "{:?}", unknown.lines());
    }

    /// Snapshots a second apart, by the time for which launches were not observed until each.
    fn recorded(unwatched_ms: &[u64]) -> Observed {
        let mut recording = MadeUp::new();
        let snapshot = |(second, ms): (u64, &u64)| {
            let taken_at = Nanos(second * 1_000_000_000);
            let comm = Comm([0; COMM_LEN]);
            let mut process = ProcessSnapshot::new(ProcId(1), Tgid(1), comm);
            process.launches.unobserved = Nanos(ms * 1_000_000);
            let processes = vec![process];
            let snapshot = Snapshot { taken_at, processes, ..Snapshot::default() };
            let input = EngineInput::new(Arc::new(snapshot), 1.7e9 + second as f64);
            RecordedSnapshot { node: NodeIndex(0), session: 0, processes: Arc::default(), input }
        };
        recording.snapshots = (0..).zip(unwatched_ms).map(snapshot).collect();
        Observed::of_recording(&recording, NodeIndex(0), (None, &[]), (None, None)).unwrap()
    }

    #[test]
    fn a_trace_file_shows_how_much_of_its_launches_the_recorder_timed() {
        let whole = recorded(&[50, 50, 50]);
        assert_eq!(
            (whole.outcome(false), whole.not_fully_observed.len()),
            (Outcome::NothingFound, 0)
        );
        assert_eq!(whole.window, (1.7e9, 1.7e9 + 10.0), "the run of the recorder");
        let sampled = recorded(&[0, 500, 1_500]).current.unwrap();
        assert_eq!((sampled.state, sampled.timed_share), (State::Partial, Some(0.25)));
        let lost = recorded(&[]);
        assert_eq!(lost.current.as_ref().unwrap().reason, "2 events were lost");
        assert_eq!(lost.outcome(false), Outcome::NotObserved);
        let empty =
            Observed::of_recording(&MadeUp::default(), NodeIndex(0), (None, &[]), (None, None))
                .unwrap();
        assert_eq!((empty.outcome(false), empty.is_blind()), (Outcome::NotObserved, true));
    }

    /// Returns the observation of two runs of this length; the second begins 100 s after the first.
    fn twice_recorded(asked: (Option<f64>, Option<f64>), length_ns: i64) -> Observed {
        let mut recording = MadeUp::new();
        let first = recording.sessions[0].clone();
        let started_ns = first.started_ns + 100_000_000_000;
        recording.sessions.push(Session { started_ns, ..first });
        for session in &mut recording.sessions {
            session.lost_events = None;
            session.ended_ns = Some(session.started_ns + length_ns);
        }
        let snapshot = |session| RecordedSnapshot {
            node: NodeIndex(0),
            session,
            processes: Arc::default(),
            input: EngineInput::new(Arc::default(), 1.7e9),
        };
        recording.snapshots = [0, 1].map(snapshot).into();
        Observed::of_recording(&recording, NodeIndex(0), (None, &[]), asked).unwrap()
    }

    #[test]
    fn time_without_a_recorder_is_not_observed_between_two_runs_and_around_them() {
        let begin = 1.7e9;
        let observed = |from, until| twice_recorded((from, until), 10_000_000_000);
        let unobserved = |observed: &Observed| -> Vec<_> {
            let parts = observed.not_fully_observed.iter();
            parts.map(|part| (part.since - begin, part.until.unwrap() - begin)).collect()
        };
        let whole = observed(None, None);
        assert_eq!(unobserved(&whole), [(10.0, 100.0)]);
        assert_eq!((whole.outcome(false), whole.is_blind()), (Outcome::NotObserved, false));
        assert!(whole.lines()[0].contains("no recorder ran for a part"), "{:?}", whole.lines());
        let gap = observed(Some(begin + 20.0), Some(begin + 90.0));
        assert_eq!((unobserved(&gap), gap.is_blind()), (vec![(20.0, 90.0)], true));
        let second = observed(Some(begin + 101.0), Some(begin + 109.0));
        assert_eq!(second.outcome(false), Outcome::NothingFound);
        let later = observed(Some(begin + 3_600.0), Some(begin + 3_700.0));
        assert_eq!((later.outcome(false), later.is_blind()), (Outcome::NotObserved, true));
        let around = observed(Some(begin - 50.0), Some(begin + 150.0));
        assert_eq!(unobserved(&around), [(-50.0, 0.0), (10.0, 100.0), (110.0, 150.0)]);
    }

    #[test]
    fn a_recording_that_ends_within_the_warm_up_shows_no_cause() {
        let short = twice_recorded((None, None), 4_000_000_000);
        assert_eq!((short.outcome(false), short.is_blind()), (Outcome::NotObserved, false));
        assert!(
            short.lines()[1]
                .ends_with("(the recording is too short to find all causes: record 15 s or more)"),
            "{:?}",
            short.lines()
        );
    }

    #[test]
    fn a_state_is_reported_with_its_beginning_and_its_reason() {
        assert_eq!(
            observed(Period::disabled(NOON - 30.0, "SIGUSR1")).lines()[0],
            "OBSERVATION  disabled since 2023-11-15 11:59:30 UTC: nothing is observed (SIGUSR1)"
        );
        let starting = observed(Period::disabled(NOON - 1.0, Period::STARTING)).lines().remove(0);
        assert!(
            starting.starts_with("OBSERVATION  starting since 2023-11-15 11:59:59"),
            "{starting}"
        );
        assert_eq!(percent(0.9999), 99.9);
    }
}
