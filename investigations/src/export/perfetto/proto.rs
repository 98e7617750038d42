//! The messages of `perfetto_trace.proto`, as far as they are written.

use prost::Message;

/// Number of the only field of `Trace`, and how it is encoded.
pub(super) const TRACE_PACKET: u8 = 1 << 3 | 2;

/// Values of `TrackEvent.Type`.
pub(super) const SLICE_BEGIN: i32 = 1;
pub(super) const SLICE_END: i32 = 2;
pub(super) const INSTANT: i32 = 3;
pub(super) const COUNTER: i32 = 4;

/// Values of `TracePacket.SequenceFlags`.
pub(super) const INCREMENTAL_STATE_CLEARED: u32 = 1;
pub(super) const NEEDS_INCREMENTAL_STATE: u32 = 2;

/// Values of `BuiltinClock`.
pub(super) const REALTIME: u32 = 1;
pub(super) const BOOTTIME: u32 = 6;

/// `CounterDescriptor.Unit.UNIT_SIZE_BYTES`.
pub(super) const SIZE_BYTES: i32 = 3;

/// Declares messages as the schema does; a field of one value may be missing.
macro_rules! messages {
    (@type optional $type:ty) => { Option<$type> };
    (@type repeated $type:ty) => { Vec<$type> };
    ($($(#[$meta:meta])* $name:ident {
        $($tag:tt $field:ident: $label:ident $kind:ident $type:ty $(, packed = $packed:tt)?;)+
    })+) => {$(
        $(#[$meta])*
        #[derive(Clone, PartialEq, Message)]
        pub(super) struct $name {
            $(
                #[prost($kind, $label, tag = $tag $(, packed = $packed)?)]
                pub(super) $field: messages!(@type $label $type),
            )+
        }
    )+};
}

messages! {
    TracePacket {
        "6" clock_snapshot: optional message ClockSnapshot;
        "8" timestamp: optional uint64 u64;
        "10" trusted_packet_sequence_id: optional uint32 u32;
        "11" track_event: optional message TrackEvent;
        "12" interned_data: optional message InternedData;
        "13" sequence_flags: optional uint32 u32;
        "60" track_descriptor: optional message TrackDescriptor;
    }

    ClockSnapshot {
        "1" clocks: repeated message Clock;
    }

    Clock {
        "1" clock_id: optional uint32 u32;
        "2" timestamp: optional uint64 u64;
    }

    TrackDescriptor {
        "1" uuid: optional uint64 u64;
        "2" name: optional string String;
        "3" process: optional message ProcessDescriptor;
        "4" thread: optional message ThreadDescriptor;
        "5" parent_uuid: optional uint64 u64;
        "8" counter: optional message CounterDescriptor;
    }

    ProcessDescriptor {
        "1" pid: optional int32 i32;
        "6" process_name: optional string String;
        "8" process_labels: repeated string String;
    }

    ThreadDescriptor {
        "1" pid: optional int32 i32;
        "2" tid: optional int64 i64;
        "5" thread_name: optional string String;
    }

    CounterDescriptor {
        "3" unit: optional int32 i32;
    }

    TrackEvent {
        "3" category_iids: repeated uint64 u64, packed = "false";
        "4" debug_annotations: repeated message DebugAnnotation;
        "9" r#type: optional int32 i32;
        "10" name_iid: optional uint64 u64;
        "11" track_uuid: optional uint64 u64;
        "23" name: optional string String;
        "30" counter_value: optional int64 i64;
    }

    DebugAnnotation {
        "1" name_iid: optional uint64 u64;
        "2" bool_value: optional bool bool;
        "4" int_value: optional int64 i64;
        "5" double_value: optional double f64;
        "6" string_value: optional string String;
        "10" name: optional string String;
        "17" string_value_iid: optional uint64 u64;
    }

    InternedData {
        "1" event_categories: repeated message InternedString;
        "2" event_names: repeated message InternedString;
        "3" debug_annotation_names: repeated message InternedString;
        "29" debug_annotation_string_values: repeated message InternedString;
    }

    /// `EventCategory`, `EventName`, `DebugAnnotationName` and `InternedString`, which are encoded alike.
    InternedString {
        "1" iid: optional uint64 u64;
        "2" name: optional string String;
    }
}
