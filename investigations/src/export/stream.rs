//! Streams the selected events of a recording, ordered so that slices nest.

use std::cmp::Reverse;
use std::ops::ControlFlow;

use super::selection::Selected;
use super::{ExportError, Output};
use gpucause_trace::recording::{Event, Kind, Recording, or_break};

/// Events between two reports of progress.
const PROGRESS_STEP: u64 = 4096;
/// Most events with the same start that are sorted by length. More occur in damaged files only.
const MAX_TIES: usize = 4096;

/// An event with its times on the clock of the first node.
pub(super) struct Aligned<'a> {
    pub(super) event: &'a Event,
    /// Index of its node.
    pub(super) node: usize,
    /// Start in nanoseconds since the Unix epoch.
    pub(super) start: u64,
    /// End in nanoseconds since the Unix epoch.
    pub(super) end: u64,
}

/// Converts times to the clock of the first node.
pub(super) struct Clocks(Vec<i64>);

impl Clocks {
    pub(super) fn of(recording: &dyn Recording) -> Self {
        Self(recording.nodes().iter().map(|node| node.clock_ahead_ns.unwrap_or(0)).collect())
    }

    /// A node's timestamp on the first node's clock, in nanoseconds; 0 for one before the epoch.
    pub(super) fn align(&self, node: usize, at_ns: i64) -> u64 {
        let ahead = self.0.get(node).copied().unwrap_or(0);
        u64::try_from(at_ns.saturating_sub(ahead)).unwrap_or(0)
    }
}

/// Passes every selected event to `output` and returns their number. Of events with the same start the longest comes first: it
/// encloses the others.
pub(super) fn each(
    recording: &dyn Recording,
    selected: &Selected,
    output: &mut dyn Output,
    progress: &mut dyn FnMut(u64),
) -> Result<u64, ExportError> {
    let (mut seen, mut passed) = (0_u64, 0_u64);
    let mut ties = Ties { clocks: Clocks::of(recording), recording, events: Vec::new() };
    let mut failure = None;
    let read = recording.events(&selected.filter, &mut |event| {
        seen += 1;
        if seen.is_multiple_of(PROGRESS_STEP) {
            progress(seen);
        }
        if !selected.has(event.process) {
            return ControlFlow::Continue(());
        }
        passed += 1;
        or_break(ties.push(event, output), &mut failure)
    });
    if let Some(error) = failure {
        return Err(error);
    }
    ties.flush(output)?;
    read?;
    progress(seen);
    Ok(passed)
}

/// Events with the same start.
struct Ties<'a> {
    clocks: Clocks,
    recording: &'a dyn Recording,
    events: Vec<Event>,
}

impl Ties<'_> {
    fn push(&mut self, event: &Event, output: &mut dyn Output) -> Result<(), ExportError> {
        let is_next = self.events.first().is_some_and(|first| first.start_ns != event.start_ns);
        if is_next || self.events.len() >= MAX_TIES {
            self.flush(output)?;
        }
        self.events.push(event.clone());
        Ok(())
    }

    fn flush(&mut self, output: &mut dyn Output) -> Result<(), ExportError> {
        // An outer call precedes its inner ones even where a coarse clock gives them equal times.
        let is_inner = |event: &Event| matches!(&event.kind, Kind::Call(call) if !call.outermost);
        self.events.sort_by_key(|event| (Reverse(event.duration_ns), is_inner(event)));
        for event in self.events.drain(..) {
            let aligned = aligned(&event, self.recording, &self.clocks)
                .ok_or(ExportError::UnknownProcess(event.id))?;
            output.event(&aligned)?;
        }
        Ok(())
    }
}

fn aligned<'a>(
    event: &'a Event,
    recording: &dyn Recording,
    clocks: &Clocks,
) -> Option<Aligned<'a>> {
    let node = usize::from(recording.process_at(event.process)?.node.0);
    recording.nodes().get(node)?;
    recording.nodes().get(usize::from(event.id.node.0))?;
    let start = clocks.align(node, event.start_ns);
    let end = clocks.align(node, event.end_ns()).max(start);
    Some(Aligned { event, node, start, end })
}
