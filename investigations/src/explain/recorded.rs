//! The incident report of a trace file.

mod lines;
mod processes;
mod thread_time;

use std::collections::BTreeSet;
use std::path::Path;

use super::Incident;
use super::report::{NodeReport, Recorded, Report, TraceFile};
use crate::chain_filter::{ChainFilter, is_reportable};
use crate::observation::{Observed, Outcome};
use crate::stack_costs::{Cost, Origin};
use gpucause_trace::recording::{
    CallStatistics, Completeness, NodeIndex, ProcessIndex, Recording, RecordingError, Session,
    WaitStatistics,
};
use lines::{Seen, unix_seconds};
use processes::{Processes, Span};

impl Report {
    /// Makes the report of a trace file.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn of(path: &Path, recording: &dyn Recording) -> Result<Self, RecordingError> {
        Self::filtered(path, recording, &ChainFilter::default())
    }

    /// Makes the report of the chains that the filter selects.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn filtered(
        path: &Path,
        recording: &dyn Recording,
        filter: &ChainFilter,
    ) -> Result<Self, RecordingError> {
        Self::read(path, recording, filter, &mut |_| {})
    }

    /// Makes the report of the selected chains; calls `progress` with the number of events read.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn read(
        path: &Path,
        recording: &dyn Recording,
        filter: &ChainFilter,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, RecordingError> {
        let mut chains = recording.chains()?;
        let mut processes = Processes::read(recording)?;
        let (calls, waits) = processes.statistics(recording)?;
        let mut seen = Seen::read(recording, progress)?;
        let spans = seen.spans_of_nodes(recording);
        processes.end_runs(recording, &seen.spans);
        let ends = processes.ends();
        let stacks = std::mem::take(&mut seen.stacks);
        let stacks = stacks.merged(|own| processes.counted_as(own)).ranked();
        let rows = Rows { recording, processes, calls, waits, seen, stacks };
        let mut nodes = Vec::new();
        for (index, node) in (0u16..).map(NodeIndex).zip(recording.nodes()) {
            let (own, others): (Vec<_>, _) = chains.into_iter().partition(|c| c.node == index);
            chains = others;
            let own = own.into_iter().map(|chain| chain.chain).filter(is_reportable).collect();
            let span = spans.get(&index).copied();
            let last = span.map(|(_, until)| unix_seconds(until));
            let period = (filter.from, filter.until);
            let observation = Observed::of_recording(recording, index, (last, &ends), period)?;
            let pids = pids(recording, index);
            // It is not known whether the chains that another filter excludes are of other processes.
            let is_of_recorder = *filter == ChainFilter::default() && !pids.is_empty();
            let asked = &filter.pids;
            let wanted = if asked.is_empty() { pids.clone() } else { asked.clone() };
            let wanted = ChainFilter { pids: wanted, ..filter.clone() };
            let incident = Incident::selected(node.name.clone(), own, observation, wanted);
            let incident = Incident { is_of_recorder, ..incident };
            let recorded = rows.of_node(index, span, pids, &incident)?;
            nodes.push(NodeReport { url: None, clock: None, incident, recorded: Some(recorded) });
        }
        let outcomes = nodes.iter().map(|node| node.incident.outcome);
        Ok(Self {
            outcome: outcomes.max().unwrap_or(Outcome::NotObserved),
            file: Some(rows.file(path)?),
            nodes,
            failures: Vec::new(),
            warnings: Vec::new(),
        })
    }
}

/// The processes of `record --pid`; none where a run recorded all.
fn pids(recording: &dyn Recording, node: NodeIndex) -> Vec<u32> {
    let runs = recording.sessions().iter().filter(|own| own.node == node).map(Session::pids);
    let runs: Vec<_> = runs.collect();
    match runs.iter().any(Vec::is_empty) {
        true => Vec::new(),
        false => runs.into_iter().flatten().collect::<BTreeSet<_>>().into_iter().collect(),
    }
}

/// Source data for the rows of a report.
struct Rows<'a> {
    recording: &'a dyn Recording,
    processes: Processes,
    calls: Vec<CallStatistics>,
    waits: Vec<WaitStatistics>,
    seen: Seen,
    stacks: Vec<(Origin, Cost)>,
}

impl Rows<'_> {
    /// Returns the rows of the shown processes of a node, or of all its processes.
    fn of_node(
        &self,
        node: NodeIndex,
        span: Option<Span>,
        pids: Vec<u32>,
        incident: &Incident,
    ) -> Result<Recorded, RecordingError> {
        let Self { recording, processes, calls, waits, seen, stacks } = self;
        let recording = *recording;
        let shown = incident.shown_pids();
        let is_shown = |process| {
            let own = recording.process_at(process).filter(|own| own.node == node);
            own.is_some_and(|own| shown.as_ref().is_none_or(|shown| shown.contains(&own.pid)))
        };
        let recorded = |process| {
            processes.recorded_seconds(recording, process, seen.spans.get(&process).copied())
        };
        let mut missing: BTreeSet<ProcessIndex> = BTreeSet::new();
        let mut rows = Vec::new();
        for own in calls.iter().filter(|own| is_shown(own.process)) {
            let events = seen.calls(processes, own);
            missing.extend((events < own.durations.count).then_some(own.process));
            rows.push(lines::call(recording, own, events));
        }
        let waits = waits.iter().filter(|own| is_shown(own.process));
        // A call that is not stored would be time between calls.
        let is_whole = |process| is_shown(process) && !missing.contains(&process);
        let mut recorded = Recorded {
            from: span.map(|(from, _)| unix_seconds(from)),
            until: span.map(|(_, until)| unix_seconds(until)),
            seconds: processes.recorded_seconds_of_node(recording, node, span),
            left_out_seconds: processes.left_out_seconds(is_shown),
            behind_seconds: processes.behind_seconds(recording, node, &seen.spans, is_shown),
            pids,
            culprits: incident.culprits().into_iter().collect(),
            calls: rows,
            waits: lines::waits(recording, waits, recorded),
            between_calls: lines::between_calls(recording, processes, is_shown),
            threads: lines::threads(recording, &seen.threads, processes, is_whole),
            stacks: lines::stacks(recording, stacks, is_shown)?,
        };
        recorded.culprits_last();
        Ok(recorded)
    }

    fn file(&self, path: &Path) -> Result<TraceFile, RecordingError> {
        let sampled = self.calls.iter().map(|own| &own.durations);
        let mut sampled = sampled.chain(self.waits.iter().map(|own| &own.durations));
        let lost = self.recording.sessions().iter().filter_map(|session| session.lost_events);
        Ok(TraceFile {
            path: path.display().to_string(),
            format: self.recording.format(),
            events: self.recording.event_count()?,
            lost_events: lost.reduce(u64::saturating_add),
            is_sample: sampled.any(|own| own.completeness != Completeness::Exact),
            sessions: lines::sessions(self.recording),
        })
    }
}
