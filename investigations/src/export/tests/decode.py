"""Decodes an export with the field's own packages and prints what it says, as JSON: decode.py FORMAT FILE."""

import base64
import collections
import json
import sys


def perfetto(path):
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

    trace = proto.Trace()
    with open(path, "rb") as file:
        trace.ParseFromString(file.read())
    tracks, rows, interned = {}, collections.OrderedDict(), None
    open_slices, order = collections.defaultdict(list), collections.defaultdict(int)
    kinds = proto.TrackEvent.Type
    for packet in trace.packet:
        if packet.sequence_flags & proto.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
            interned = collections.defaultdict(dict)
        for field, entries in packet.interned_data.ListFields():
            for entry in entries:
                interned[field.name][entry.iid] = entry.str.decode() if hasattr(entry, "str") else entry.name
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.uuid not in tracks, "a track is described twice"
            tracks[track.uuid] = track
        if not packet.HasField("track_event"):
            continue
        assert packet.sequence_flags & proto.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        event, at = packet.track_event, packet.timestamp
        assert event.track_uuid in tracks, "an event comes before its track"
        uuid = event.track_uuid
        assert order[uuid] <= at, "a track goes back in time"
        order[uuid] = at
        row = rows.setdefault(name_of(tracks, uuid), [])
        if event.type == kinds.TYPE_SLICE_END:
            open_slices[uuid].pop()["end"] = at
            continue
        if event.type == kinds.TYPE_COUNTER:
            row.append({"at": at, "value": event.counter_value})
            continue
        said = {
            "name": interned["event_names"][event.name_iid] if event.HasField("name_iid") else event.name,
            "category": [interned["event_categories"][iid] for iid in event.category_iids],
            "at": at,
            "notes": dict(annotation(note, interned) for note in event.debug_annotations),
        }
        row.append(said)
        if event.type == kinds.TYPE_SLICE_BEGIN:
            open_slices[uuid].append(said)
            said["depth"] = len(open_slices[uuid])
        else:
            assert event.type == kinds.TYPE_INSTANT
    assert not any(open_slices.values()), "a slice does not end"
    return rows


def name_of(tracks, uuid):
    track = tracks[uuid]
    if track.HasField("process"):
        return f"{track.process.process_name} {track.process.pid}"
    if track.HasField("thread"):
        of = name_of(tracks, track.parent_uuid)
        return f"{of} / {track.thread.thread_name} {track.thread.pid}:{track.thread.tid}"
    return f"{name_of(tracks, track.parent_uuid)} / {track.name}" if track.parent_uuid else track.name


def annotation(note, interned):
    name = interned["debug_annotation_names"][note.name_iid] if note.name_iid else note.name
    if note.HasField("string_value_iid"):
        return name, interned["debug_annotation_string_values"][note.string_value_iid]
    return name, getattr(note, note.WhichOneof("value"))


def hlog(path):
    from hdrh.histogram import HdrHistogram
    from hdrh.log import HistogramLogReader

    reader, said = HistogramLogReader(path, HdrHistogram(1, 2**53, 3)), []
    while histogram := reader.get_next_interval_histogram(absolute=True):
        said.append(
            {
                "tag": histogram.get_tag(),
                "begin_ms": histogram.get_start_time_stamp(),
                "end_ms": histogram.get_end_time_stamp(),
                "count": histogram.get_total_count(),
                "max": histogram.get_max_value(),
                "p50": histogram.get_value_at_percentile(50),
            }
        )
    return said


def otlp_json(path):
    """Identifiers are in hexadecimal there, for which the package's reader of JSON takes base64."""
    from google.protobuf import json_format
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    request = ExportTraceServiceRequest()
    with open(path, encoding="utf-8") as file:
        for line in file:
            json_format.Parse(json.dumps(with_base64(json.loads(line))), request)
    return spans(request)


def with_base64(value):
    if isinstance(value, list):
        return [with_base64(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    return {
        key: base64.b64encode(bytes.fromhex(entry)).decode() if key in ("traceId", "spanId", "parentSpanId") else with_base64(entry)
        for key, entry in value.items()
    }


def otlp_protobuf(path):
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    with open(path, "rb") as file:
        return spans(ExportTraceServiceRequest.FromString(file.read()))


def spans(request):
    said = []
    for of in request.resource_spans:
        for scope in of.scope_spans:
            for span in scope.spans:
                assert len(span.trace_id) == 16 and len(span.span_id) == 8
                said.append(
                    {
                        "resource": values(of.resource.attributes),
                        "trace": span.trace_id.hex(),
                        "span": span.span_id.hex(),
                        "parent": span.parent_span_id.hex(),
                        "name": span.name,
                        "at": span.start_time_unix_nano,
                        "end": span.end_time_unix_nano,
                        "attributes": values(span.attributes),
                        "events": [[event.name, values(event.attributes)] for event in span.events],
                        "error": span.status.message if span.status.code == 2 else None,
                    }
                )
    return said


def values(attributes):
    return {entry.key: getattr(entry.value, entry.value.WhichOneof("value")) for entry in attributes}


print(json.dumps({"perfetto": perfetto, "hlog": hlog, "otlp-json": otlp_json, "otlp-protobuf": otlp_protobuf}[sys.argv[1]](sys.argv[2])))
