//! The chosen events of a recording, one by one, in an order in which slices can be nested.

use std::cmp::Reverse;
use std::ops::ControlFlow;

use super::selection::Selected;
use super::{ExportError, Output};
use crate::recording::{Event, Kind, Recording};

/// Progress is told after so many events.
const PROGRESS_STEP: u64 = 4096;
/// Events that begin together are put into order by length, unless they are more than this, which no thread does.
const MAX_TIES: usize = 4096;

/// An event, and where it is on the clock of the first node.
pub(super) struct Placed<'a> {
    /// The event.
    pub(super) event: &'a Event,
    /// Index of its node.
    pub(super) node: usize,
    /// When it began, in nanoseconds since the Unix epoch.
    pub(super) start: u64,
    /// When it was over.
    pub(super) end: u64,
}

/// What takes a node's clock to that of the first.
pub(super) struct Clocks(Vec<i64>);

impl Clocks {
    pub(super) fn of(recording: &dyn Recording) -> Self {
        Self(recording.nodes().iter().map(|node| node.clock_ahead_ns.unwrap_or(0)).collect())
    }

    /// A moment of a node by the first node's clock. Nothing is before the epoch.
    pub(super) fn place(&self, node: usize, at_ns: i64) -> u64 {
        let ahead = self.0.get(node).copied().unwrap_or(0);
        u64::try_from(at_ns.saturating_sub(ahead)).unwrap_or(0)
    }

    /// By how much the clock that is most ahead is so.
    pub(super) fn furthest_ahead(&self) -> i64 {
        self.0.iter().copied().max().unwrap_or(0)
    }
}

/// Shows `output` every event that was chosen, and tells how many those were.
///
/// Of events that begin together the longest comes first: it is the one around the others.
pub(super) fn each(
    recording: &dyn Recording,
    selected: &Selected,
    output: &mut dyn Output,
    progress: &mut dyn FnMut(u64),
) -> Result<u64, ExportError> {
    let (mut seen, mut chosen) = (0_u64, 0_u64);
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
        chosen += 1;
        match ties.push(event, output) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failure = Some(error);
                ControlFlow::Break(())
            }
        }
    });
    if let Some(error) = failure {
        return Err(error);
    }
    ties.flush(output)?;
    read?;
    progress(seen);
    Ok(chosen)
}

/// Events that begin together.
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
        // A call that another is nested in comes before that, however coarse the clock.
        let is_inner = |event: &Event| matches!(&event.kind, Kind::Call(call) if !call.outermost);
        self.events.sort_by_key(|event| (Reverse(event.duration_ns), is_inner(event)));
        for event in self.events.drain(..) {
            let placed = placed(&event, self.recording, &self.clocks)
                .ok_or(ExportError::UnknownProcess(event.id))?;
            output.event(&placed)?;
        }
        Ok(())
    }
}

fn placed<'a>(event: &'a Event, recording: &dyn Recording, clocks: &Clocks) -> Option<Placed<'a>> {
    let process = recording.processes().get(event.process.0 as usize)?;
    let node = usize::from(process.node.0);
    recording.nodes().get(node)?;
    recording.nodes().get(usize::from(event.id.node.0))?;
    let start = clocks.place(node, event.start_ns);
    let end = clocks.place(node, event.end_ns()).max(start);
    Some(Placed { event, node, start, end })
}
