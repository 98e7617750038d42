//! OpenTelemetry spans of events and causal chains.
//!
//! Each outermost call is a trace, and events within it are its children: thousands of small traces instead of one that no
//! viewer could show.

mod identity;
mod proto;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::io;

use prost::Message as _;

use super::Output;
use super::detail::{self, Detail, Details};
use super::selection::nanos;
use super::stream::{Aligned, Clocks};
use crate::recording::{Event, Kind, NodeChain, NodeIndex, ProcessIndex, Recording};
use gpucause_engine::chain::{Chain, Severity};
use identity::{Identity, SpanId, TraceId};
use proto::{
    AnyValue, ExportTraceServiceRequest, InstrumentationScope, KeyValue, Resource, ResourceSpans,
    SPAN_KIND_INTERNAL, STATUS_CODE_ERROR, ScopeSpans, Span, SpanEvent, Status, Value,
};

/// Most spans of a request, and most bytes of them: stacks and attributes may be long.
const BATCH: usize = 512;
const BATCH_BYTES: usize = 2 * 1024 * 1024;
/// Most open calls of a thread.
const MAX_DEPTH: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    /// A line of JSON per request.
    JsonLines,
    /// Protobuf, in one write per request. Concatenated, they are one request.
    Protobuf,
}

/// The resource of a span: a process, else a node.
type Owner = (NodeIndex, Option<ProcessIndex>);

/// An open call of a thread.
struct Open {
    end: u64,
    trace: TraceId,
    span: SpanId,
}

/// Writes OTLP.
pub(super) struct Otlp<'a> {
    recording: &'a dyn Recording,
    encoding: Encoding,
    sink: &'a mut dyn io::Write,
    clocks: Clocks,
    chains: &'a [NodeChain],
    open: HashMap<(ProcessIndex, u32), Vec<Open>>,
    batch: BTreeMap<Owner, Vec<Span>>,
    batched: usize,
    batched_bytes: usize,
}

impl<'a> Otlp<'a> {
    pub(super) fn new(
        recording: &'a dyn Recording,
        chains: &'a [NodeChain],
        encoding: Encoding,
        sink: &'a mut dyn io::Write,
    ) -> Self {
        Self {
            recording,
            encoding,
            sink,
            clocks: Clocks::of(recording),
            chains,
            open: HashMap::new(),
            batch: BTreeMap::new(),
            batched: 0,
            batched_bytes: 0,
        }
    }

    /// The trace of an event, and its parent.
    fn parent(&mut self, aligned: &Aligned<'_>, own: Identity) -> (TraceId, Option<SpanId>) {
        let Aligned { event, start, end, .. } = *aligned;
        let open = self.open.entry((event.process, event.tid)).or_default();
        open.retain(|call| call.end > start);
        let around = open.iter().rev().find(|call| call.end >= end);
        let (trace, parent) =
            around.map_or_else(|| (own.trace(), None), |around| (around.trace, Some(around.span)));
        if matches!(event.kind, Kind::Call(_)) {
            if open.len() >= MAX_DEPTH {
                open.remove(0);
            }
            open.push(Open { end, trace, span: own.span() });
        }
        (trace, parent)
    }

    fn attributes(&self, event: &Event) -> Vec<KeyValue> {
        let mut attributes = vec![
            attribute("thread.id", u64::from(event.tid).into()),
            attribute("gpucause.category", detail::category(&event.kind).into()),
            attribute("gpucause.event", detail::event_id(event, self.recording).into()),
        ];
        if let Some(name) = self.recording.thread_name(event.process, event.tid) {
            attributes.push(attribute("thread.name", name.into()));
        }
        attributes.extend(own(detail::of_event(&event.kind)));
        // A damaged stack does not suppress its event.
        let stack = event.stack.and_then(|id| self.recording.stack(id).ok().flatten());
        if let Some(stack) = stack {
            attributes.push(attribute("code.stacktrace", detail::of_stack(&stack).into()));
        }
        attributes
    }

    fn push(&mut self, owner: Owner, span: Span) -> io::Result<()> {
        self.batched += 1;
        self.batched_bytes += span.encoded_len();
        self.batch.entry(owner).or_default().push(span);
        let is_full = self.batched >= BATCH || self.batched_bytes >= BATCH_BYTES;
        if is_full { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.batched == 0 {
            return Ok(());
        }
        (self.batched, self.batched_bytes) = (0, 0);
        let resource_spans = std::mem::take(&mut self.batch)
            .into_iter()
            .map(|(owner, spans)| ResourceSpans {
                resource: Some(resource(self.recording, owner)),
                scope_spans: vec![ScopeSpans { scope: Some(scope()), spans }],
            })
            .collect();
        let request = ExportTraceServiceRequest { resource_spans };
        match self.encoding {
            Encoding::Protobuf => self.sink.write_all(&request.encode_to_vec()),
            Encoding::JsonLines => {
                serde_json::to_writer(&mut *self.sink, &request)?;
                self.sink.write_all(b"\n")
            }
        }
    }

    fn chain(&mut self, found: &NodeChain) -> io::Result<()> {
        let NodeChain { node, chain } = found;
        let index = usize::from(node.0);
        let start = self.clocks.align(index, nanos(chain.first_seen));
        let end = self.clocks.align(index, nanos(chain.last_seen)).max(start);
        let id = Identity::of_chain(self.recording.node_name(*node), &chain.id, start);
        let attributes = detail::of_chain(chain)
            .into_iter()
            .map(|(name, value)| attribute(&format!("gpucause.chain.{name}"), value))
            .collect();
        let is_grave = chain.severity >= Severity::High;
        let span = Span {
            trace_id: id.trace().to_vec(),
            span_id: id.span().to_vec(),
            name: detail::chain_name(chain),
            kind: SPAN_KIND_INTERNAL,
            start_time_unix_nano: start,
            end_time_unix_nano: end,
            attributes,
            events: steps(chain, end),
            status: is_grave
                .then(|| Status { message: chain.sentence.clone(), code: STATUS_CODE_ERROR }),
            ..Span::default()
        };
        self.push((*node, super::victim(found, self.recording)), span)
    }
}

impl Output for Otlp<'_> {
    fn event(&mut self, aligned: &Aligned<'_>) -> io::Result<()> {
        let Aligned { event, node, start, end } = *aligned;
        let id_node = self.recording.node_name(event.id.node);
        let id = Identity::of_event(id_node, event.id.sequence, start);
        let (trace, parent) = self.parent(aligned, id);
        let status = match &event.kind {
            Kind::Call(call) if detail::failed(call) => {
                let message = format!("{} returned {}", call.op, call.code);
                Some(Status { message, code: STATUS_CODE_ERROR })
            }
            _ => None,
        };
        let span = Span {
            trace_id: trace.to_vec(),
            span_id: id.span().to_vec(),
            parent_span_id: parent.map(Vec::from).unwrap_or_default(),
            name: detail::name(&event.kind).to_owned(),
            kind: SPAN_KIND_INTERNAL,
            start_time_unix_nano: start,
            end_time_unix_nano: end,
            attributes: self.attributes(event),
            events: Vec::new(),
            status,
        };
        let node = NodeIndex(u16::try_from(node).unwrap_or_default());
        self.push((node, Some(event.process)), span)
    }

    fn finish(&mut self) -> io::Result<()> {
        for chain in self.chains {
            self.chain(chain)?;
        }
        self.flush()
    }
}

/// The steps of a chain, from the culprit to the effect.
fn steps(chain: &Chain, at: u64) -> Vec<SpanEvent> {
    let step = |step: &gpucause_engine::chain::Step| SpanEvent {
        time_unix_nano: at,
        name: "gpucause.chain.step".into(),
        attributes: vec![
            attribute("gpucause.chain.step.from", step.from.as_str().into()),
            attribute("gpucause.chain.step.to", step.to.as_str().into()),
            attribute("gpucause.chain.step.mechanism", step.mechanism.as_str().into()),
            attribute("gpucause.chain.step.seconds", Detail::Float(step.seconds)),
        ],
    };
    chain.path.iter().map(step).collect()
}

fn scope() -> InstrumentationScope {
    InstrumentationScope { name: "gpucause".into(), version: env!("CARGO_PKG_VERSION").into() }
}

/// Resource attributes, by the semantic conventions where they define them.
fn resource(recording: &dyn Recording, (node, process): Owner) -> Resource {
    let mut attributes = Vec::new();
    if let Some(node) = recording.nodes().get(usize::from(node.0)) {
        attributes.push(attribute("host.name", node.name.as_str().into()));
    }
    let Some(process) = process.and_then(|index| recording.process_at(index)) else {
        attributes.push(attribute("service.name", "gpucause".into()));
        return Resource { attributes };
    };
    attributes.push(attribute("service.name", process.comm.as_str().into()));
    attributes.push(attribute("process.pid", u64::from(process.pid).into()));
    attributes.push(attribute("process.command", process.comm.as_str().into()));
    if let Some(rank) = process.rank {
        attributes.push(attribute("gpucause.rank", u64::from(rank).into()));
    }
    for (name, value) in &process.details {
        attributes.push(attribute(&process_attribute(name), value.as_str().into()));
    }
    Resource { attributes }
}

/// The resource attribute of a detail of a process, by the semantic conventions where they define it.
pub fn process_attribute(detail: &str) -> Cow<'static, str> {
    match detail {
        "exe" => "process.executable.path".into(),
        "container_id" => "container.id".into(),
        "pod" => "k8s.pod.name".into(),
        "pod_uid" => "k8s.pod.uid".into(),
        "namespace" => "k8s.namespace.name".into(),
        "user" => "process.owner".into(),
        other => format!("gpucause.process.{other}").into(),
    }
}

fn own(details: Details<'_>) -> impl Iterator<Item = KeyValue> {
    details.into_iter().map(|(name, value)| attribute(&format!("gpucause.{name}"), value))
}

fn attribute(key: &str, detail: Detail<'_>) -> KeyValue {
    let value = match detail {
        Detail::Text(text) => Value::Text(text.into_owned()),
        Detail::Integer(number) => Value::Integer(number),
        Detail::Float(number) => Value::Double(number),
        Detail::Flag(flag) => Value::Flag(flag),
    };
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

#[cfg(test)]
mod tests;
