"""Decodes an export with the field's own packages and prints what it says, as JSON: decode.py FILE."""

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


print(json.dumps(perfetto(sys.argv[1])))
