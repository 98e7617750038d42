//! Writes packets, with interned texts.

use std::collections::HashMap;
use std::io;

use prost::Message as _;

use super::proto::{
    BOOTTIME, Clock, ClockSnapshot, DebugAnnotation, INCREMENTAL_STATE_CLEARED, InternedData,
    InternedString, NEEDS_INCREMENTAL_STATE, REALTIME, TRACE_PACKET, TracePacket, TrackDescriptor,
    TrackEvent,
};
use crate::export::detail::{Detail, Details};

/// Size at which the buffer is written.
const BUFFER_BYTES: usize = 64 << 10;
/// Most interned texts. Later ones are written each time, so that memory is bounded.
const MAX_INTERNED: usize = 1 << 16;
/// All packets are of one sequence.
const SEQUENCE: u32 = 1;
/// Interning shorter values does not save space.
const LEAST_INTERNED_VALUE: usize = 24;

/// Interned texts, and those that the next packet must define.
#[derive(Default)]
struct Interned {
    numbers: HashMap<Box<str>, u64>,
    undefined: Vec<InternedString>,
}

impl Interned {
    /// The number of a text; `None` when the table is full.
    fn number(&mut self, text: &str) -> Option<u64> {
        if let Some(&number) = self.numbers.get(text) {
            return Some(number);
        }
        if self.numbers.len() >= MAX_INTERNED {
            return None;
        }
        let number = self.numbers.len() as u64 + 1;
        self.numbers.insert(text.into(), number);
        self.undefined.push(InternedString { iid: Some(number), name: Some(text.to_owned()) });
        Some(number)
    }
}

/// The file.
pub(super) struct Packets<'a> {
    sink: &'a mut dyn io::Write,
    buffer: Vec<u8>,
    categories: Interned,
    names: Interned,
    annotation_names: Interned,
    values: Interned,
}

impl<'a> Packets<'a> {
    /// Begins a file. All times are Unix time; a clock snapshot equates the boot clock, which readers use by default, with it.
    pub(super) fn begin(sink: &'a mut dyn io::Write, start: u64) -> io::Result<Self> {
        let mut packets = Self {
            sink,
            buffer: Vec::with_capacity(2 * BUFFER_BYTES),
            categories: Interned::default(),
            names: Interned::default(),
            annotation_names: Interned::default(),
            values: Interned::default(),
        };
        let clock = |id| Clock { clock_id: Some(id), timestamp: Some(start) };
        packets.write(&TracePacket {
            clock_snapshot: Some(ClockSnapshot { clocks: vec![clock(REALTIME), clock(BOOTTIME)] }),
            timestamp: Some(start),
            trusted_packet_sequence_id: Some(SEQUENCE),
            sequence_flags: Some(INCREMENTAL_STATE_CLEARED),
            ..TracePacket::default()
        })?;
        Ok(packets)
    }

    /// Describes a track.
    pub(super) fn track(&mut self, track: TrackDescriptor) -> io::Result<()> {
        self.write(&TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE),
            track_descriptor: Some(track),
            ..TracePacket::default()
        })
    }

    /// Writes an event, with the texts that it refers to for the first time.
    pub(super) fn event(&mut self, at: u64, event: TrackEvent) -> io::Result<()> {
        let interned_data = self.undefined();
        self.write(&TracePacket {
            timestamp: Some(at),
            trusted_packet_sequence_id: Some(SEQUENCE),
            track_event: Some(event),
            interned_data,
            sequence_flags: Some(NEEDS_INCREMENTAL_STATE),
            ..TracePacket::default()
        })
    }

    /// An event of this name, category and details, without its type and track.
    pub(super) fn named(
        &mut self,
        name: &str,
        category: &str,
        details: &Details<'_>,
    ) -> TrackEvent {
        let name_iid = self.names.number(name);
        TrackEvent {
            category_iids: self.categories.number(category).into_iter().collect(),
            name: name_iid.is_none().then(|| name.to_owned()),
            name_iid,
            debug_annotations: details
                .iter()
                .map(|(name, detail)| self.annotation(name, detail))
                .collect(),
            ..TrackEvent::default()
        }
    }

    fn annotation(&mut self, name: &str, detail: &Detail<'_>) -> DebugAnnotation {
        let name_iid = self.annotation_names.number(name);
        let mut annotation = DebugAnnotation {
            name: name_iid.is_none().then(|| name.to_owned()),
            name_iid,
            ..DebugAnnotation::default()
        };
        match detail {
            Detail::Text(text) => {
                if text.len() >= LEAST_INTERNED_VALUE {
                    annotation.string_value_iid = self.values.number(text);
                }
                if annotation.string_value_iid.is_none() {
                    annotation.string_value = Some(text.to_string());
                }
            }
            Detail::Integer(number) => annotation.int_value = Some(*number),
            Detail::Float(number) => annotation.double_value = Some(*number),
            Detail::Flag(flag) => annotation.bool_value = Some(*flag),
        }
        annotation
    }

    fn undefined(&mut self) -> Option<InternedData> {
        let data = InternedData {
            event_categories: std::mem::take(&mut self.categories.undefined),
            event_names: std::mem::take(&mut self.names.undefined),
            debug_annotation_names: std::mem::take(&mut self.annotation_names.undefined),
            debug_annotation_string_values: std::mem::take(&mut self.values.undefined),
        };
        (data != InternedData::default()).then_some(data)
    }

    fn write(&mut self, packet: &TracePacket) -> io::Result<()> {
        self.buffer.push(TRACE_PACKET);
        packet.encode_length_delimited(&mut self.buffer)?;
        if self.buffer.len() >= BUFFER_BYTES { self.flush() } else { Ok(()) }
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.sink.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }
}
