//! Traces for ui.perfetto.dev: a track per node, process and thread, with slices, instants and counters.

mod memory;
mod packets;
mod proto;
mod tracks;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io;

use super::detail::{self, Detail, Details};
use super::selection::{Selected, nanos};
use super::stream::{Aligned, Clocks};
use super::{ExportError, Output};
use gpucause_trace::recording::{Kind, NodeChain, ProcessIndex, Recording, StackId};
use memory::Memory;
use packets::Packets;
use proto::{COUNTER, INSTANT, SLICE_BEGIN, SLICE_END, TrackEvent};
use tracks::{Row, Tracks};

/// Most stacks in the cache.
const MAX_STACKS: usize = 4096;

/// The end of a session whose recorder was killed.
const OPEN_END: u64 = u64::MAX;

/// The end of a slice. The earliest is the greatest; of those with the same end the one that began last, which is the innermost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Ending {
    at: Reverse<u64>,
    begun: u64,
    what: End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// The slice on this track.
    Slice(u64),
    /// The device memory of a process changes by so many bytes.
    Memory { track: u64, process: ProcessIndex, change: i64 },
}

/// A slice of a chain or session.
struct Span<'a> {
    start: u64,
    end: u64,
    on: SpanTrack,
    name: Cow<'a, str>,
    category: &'static str,
    details: Details<'a>,
}

enum SpanTrack {
    Node,
    Chains(ProcessIndex),
}

/// The pending slices and ends of a node.
#[derive(Default)]
struct Timeline<'a> {
    /// In reverse order.
    spans: Vec<Span<'a>>,
    endings: BinaryHeap<Ending>,
}

/// Writes a Perfetto trace.
pub(super) struct Perfetto<'a> {
    recording: &'a dyn Recording,
    packets: Packets<'a>,
    tracks: Tracks<'a>,
    nodes: Vec<Timeline<'a>>,
    memory: Memory,
    stacks: HashMap<StackId, String>,
    /// Number of slices begun.
    slices: u64,
    /// The latest end so far.
    latest: u64,
}

impl<'a> Perfetto<'a> {
    pub(super) fn new(
        recording: &'a dyn Recording,
        selected: &Selected,
        chains: &'a [NodeChain],
        sink: &'a mut dyn io::Write,
    ) -> Result<Self, ExportError> {
        let clocks = Clocks::of(recording);
        let sessions = recording.sessions();
        let start = sessions
            .iter()
            .map(|session| clocks.align(usize::from(session.node.0), session.started_ns))
            .min();
        let mut nodes: Vec<Timeline<'a>> =
            recording.nodes().iter().map(|_| Timeline::default()).collect();
        for (node, span) in spans_of_sessions(recording, &clocks)
            .chain(chains.iter().map(|chain| span_of_chain(chain, recording, &clocks)))
        {
            if let Some(timeline) = nodes.get_mut(node) {
                timeline.spans.push(span);
            }
        }
        for timeline in &mut nodes {
            timeline.spans.sort_by_key(|span| (Reverse(span.start), span.end));
        }
        Ok(Self {
            recording,
            packets: Packets::begin(sink, start.unwrap_or(0))?,
            tracks: Tracks::new(recording),
            nodes,
            memory: Memory::of(recording, selected)?,
            stacks: HashMap::new(),
            slices: 0,
            latest: 0,
        })
    }

    /// Writes the pending items of a node up to `now`.
    fn advance(&mut self, node: usize, now: u64) -> io::Result<()> {
        while let Some(timeline) = self.nodes.get_mut(node) {
            let due = timeline.spans.last().map(|span| span.start).filter(|&start| start <= now);
            let until = due.unwrap_or(now);
            if let Some(ending) = timeline.endings.peek().filter(|end| end.at.0 <= until).copied() {
                timeline.endings.pop();
                self.end(ending)?;
            } else if let Some(span) = due.and_then(|_| timeline.spans.pop()) {
                self.span(node, &span)?;
            } else {
                break;
            }
        }
        Ok(())
    }

    fn end(&mut self, ending: Ending) -> io::Result<()> {
        let event = match ending.what {
            End::Slice(track) => TrackEvent {
                r#type: Some(SLICE_END),
                track_uuid: Some(track),
                ..TrackEvent::default()
            },
            End::Memory { track, process, change } => TrackEvent {
                r#type: Some(COUNTER),
                track_uuid: Some(track),
                counter_value: Some(self.memory.after(process, change)),
                ..TrackEvent::default()
            },
        };
        let at = if ending.at.0 == OPEN_END { self.latest } else { ending.at.0 };
        self.packets.event(at, event)
    }

    fn begin(
        &mut self,
        node: usize,
        (start, end): (u64, u64),
        track: u64,
        event: TrackEvent,
    ) -> io::Result<()> {
        self.slices += 1;
        self.latest = self.latest.max(if end == OPEN_END { start } else { end });
        let event = TrackEvent { r#type: Some(SLICE_BEGIN), track_uuid: Some(track), ..event };
        self.packets.event(start, event)?;
        self.later(node, end, End::Slice(track));
        Ok(())
    }

    fn later(&mut self, node: usize, at: u64, what: End) {
        if let Some(timeline) = self.nodes.get_mut(node) {
            timeline.endings.push(Ending { at: Reverse(at), begun: self.slices, what });
        }
    }

    fn span(&mut self, node: usize, span: &Span<'_>) -> io::Result<()> {
        let time = (span.start, span.end);
        let track = match span.on {
            SpanTrack::Node => self.tracks.node(node, time, &mut self.packets)?,
            SpanTrack::Chains(process) => self.tracks.chains(process, time, &mut self.packets)?,
        };
        let event = self.packets.named(&span.name, span.category, &span.details);
        self.begin(node, time, track, event)
    }

    fn stack(&mut self, id: StackId) -> Option<String> {
        if let Some(known) = self.stacks.get(&id) {
            return Some(known.clone());
        }
        // A damaged stack does not suppress its event.
        let text = detail::of_stack(&self.recording.stack(id).ok().flatten()?);
        if self.stacks.len() >= MAX_STACKS {
            self.stacks.clear();
        }
        self.stacks.insert(id, text.clone());
        Some(text)
    }
}

impl Output for Perfetto<'_> {
    fn event(&mut self, aligned: &Aligned<'_>) -> io::Result<()> {
        let Aligned { event, node, start, end } = *aligned;
        self.advance(node, start)?;
        let mut details = detail::of_event(&event.kind);
        details.push(("event".into(), detail::event_id(event, self.recording).into()));
        if let Some(stack) = event.stack.and_then(|id| self.stack(id)) {
            details.push(("stack".into(), stack.into()));
        }
        let kind = &event.kind;
        let named = self.packets.named(detail::name(kind), detail::category(kind), &details);
        let thread = (event.process, event.tid);
        let row = match kind {
            Kind::Call(_) => Row::Calls,
            Kind::OffCpu(_) => Row::OffCpu,
            Kind::BlockIo { .. } => Row::BlockIo,
            _ if event.duration_ns > 0 => Row::Other,
            _ => {
                let track = self.tracks.thread(thread.0, thread.1, &mut self.packets)?;
                let instant =
                    TrackEvent { r#type: Some(INSTANT), track_uuid: Some(track), ..named };
                return self.packets.event(start, instant);
            }
        };
        let track = self.tracks.slice(thread, row, (start, end), &mut self.packets)?;
        self.begin(node, (start, end), track, named)?;
        if let Some(change) = self.memory.change(event) {
            let track = self.tracks.memory(event.process, &mut self.packets)?;
            self.later(node, end, End::Memory { track, process: event.process, change });
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        for node in 0..self.nodes.len() {
            self.advance(node, u64::MAX)?;
        }
        self.packets.flush()
    }
}

fn spans_of_sessions<'a>(
    recording: &'a dyn Recording,
    clocks: &Clocks,
) -> impl Iterator<Item = (usize, Span<'a>)> {
    recording.sessions().iter().map(|session| {
        let node = usize::from(session.node.0);
        let start = clocks.align(node, session.started_ns);
        let ended = session.ended_ns.map(|ended| clocks.align(node, ended));
        let mut details: Details<'a> = vec![("killed".into(), Detail::Flag(ended.is_none()))];
        if let Some(lost) = session.lost_events {
            details.push(("lost_events".into(), lost.into()));
        }
        details.extend(
            session
                .details
                .iter()
                .map(|(name, value)| (name.clone().into(), value.as_str().into())),
        );
        let span = Span {
            start,
            end: ended.unwrap_or(OPEN_END).max(start),
            on: SpanTrack::Node,
            name: Cow::Borrowed(session.recorder.as_str()),
            category: "session",
            details,
        };
        (node, span)
    })
}

fn span_of_chain<'a>(
    found: &'a NodeChain,
    recording: &dyn Recording,
    clocks: &Clocks,
) -> (usize, Span<'a>) {
    let NodeChain { node, chain } = found;
    let index = usize::from(node.0);
    let start = clocks.align(index, nanos(chain.first_seen));
    let mut details = detail::of_chain(chain);
    for (number, step) in (1..).zip(&chain.path) {
        let text =
            format!("{} -> {}: {}, {:.6} s", step.from, step.to, step.mechanism, step.seconds);
        details.push((format!("path.{number}").into(), text.into()));
    }
    let span = Span {
        start,
        end: clocks.align(index, nanos(chain.last_seen)).max(start),
        on: super::victim(found, recording).map_or(SpanTrack::Node, SpanTrack::Chains),
        name: detail::chain_name(chain).into(),
        category: "causal_chain",
        details,
    };
    (index, span)
}

#[cfg(test)]
mod tests;
