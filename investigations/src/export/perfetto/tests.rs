use std::collections::BTreeMap;

use gpucause_abi::op::Api;
use gpucause_abi::state::Reason;
use proptest::prelude::*;
use prost::Message;
use serde_json::{Value, json};

use super::*;
use crate::export::Selection;
use crate::export::tests::{
    BEGIN, MS, MadeUp, call, inner, python, read, sized, statistics, waited,
};
use gpucause_trace::recording::Completeness;
use proto::TracePacket;

#[derive(Clone, PartialEq, Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<TracePacket>,
}

fn trace(made_up: &MadeUp) -> Vec<TracePacket> {
    let (written, out) = made_up.exported(&Selection::default());
    assert_eq!(written.unwrap().events, made_up.events.len() as u64);
    Trace::decode(&*out).unwrap().packet
}

/// Checks every track: times never go back, and slices nest. Returns the numbers of slices, instants and counters.
fn checked(packets: &[TracePacket]) -> [usize; 3] {
    let mut open: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
    let (mut begun, mut ended, mut instants, mut counters) = (0, 0, 0, 0);
    for packet in packets {
        let Some(event) = &packet.track_event else { continue };
        let (latest, depth) = open.entry(event.track_uuid.unwrap()).or_default();
        assert!(*latest <= packet.timestamp.unwrap(), "{packet:?}");
        *latest = packet.timestamp.unwrap();
        match event.r#type.unwrap() {
            SLICE_BEGIN => {
                *depth += 1;
                begun += 1;
            }
            SLICE_END => {
                assert!(*depth > 0, "{packet:?}");
                *depth -= 1;
                ended += 1;
            }
            INSTANT => instants += 1,
            COUNTER => counters += 1,
            other => panic!("{other}"),
        }
    }
    assert!(open.values().all(|(_, depth)| *depth == 0));
    assert_eq!(begun, ended);
    [begun, instants, counters]
}

fn decoded(made_up: &MadeUp) -> Value {
    let (_, out) = made_up.exported(&Selection::default());
    python::decoded(&out)
}

/// Name, depth, and milliseconds from the beginning to start and end.
fn slices(row: &Value) -> Vec<(String, u64, u64, u64)> {
    let from = |at: &Value| (at.as_u64().unwrap() - BEGIN.unsigned_abs()) / MS;
    row.as_array()
        .unwrap()
        .iter()
        .filter(|said| said.get("end").is_some())
        .map(|said| {
            let name = said["name"].as_str().unwrap().to_owned();
            (name, said["depth"].as_u64().unwrap(), from(&said["at"]), from(&said["end"]))
        })
        .collect()
}

fn slice(name: &str, depth: u64, start: u64, end: u64) -> (String, u64, u64, u64) {
    (name.into(), depth, start, end)
}

#[test]
fn the_packages_of_perfetto_find_every_event_on_its_track() {
    let said = decoded(&MadeUp::two_nodes());
    let first = "trainer rank 3 on gpu-1 100";
    // The second node's PID is taken, and its clock is an hour ahead.
    let second = "trainer rank 4 on gpu-2 (PID 100) 4194305";
    let (main, loader) =
        (format!("{first} / trainer 100:100"), format!("{first} / loader 100:101"));
    let calls = slices(&said[&main]);
    let expected = [
        slice("cudaLaunchKernel", 1, 10, 19),
        slice("cuLaunchKernel", 2, 11, 18),
        slice("cudaMalloc", 1, 60, 61),
        slice("cudaFree", 1, 70, 71),
    ];
    assert_eq!(calls, expected);
    let off_cpu = &said[format!("{main} / off CPU")];
    assert_eq!(slices(off_cpu), [slice("preempted", 1, 12, 17), slice("futex", 1, 40, 42)]);
    assert_eq!(off_cpu[0]["category"], json!(["preempted"]));
    let notes = json!({"culprit": "fluent-bit", "culprit_pid": 7, "event": "gpu-1:3"});
    assert_eq!(off_cpu[0]["notes"], notes);
    assert_eq!(
        slices(&said[format!("{loader} / block I/O")]),
        [slice("read", 1, 41, 44), slice("read", 1, 42, 46)]
    );
    assert_eq!(said[&main][2]["name"], "page allocation");
    let counter = &said[format!("{first} / device memory allocated since the recording started")];
    assert_eq!((&counter[0]["value"], &counter[1]["value"]), (&json!(1 << 20), &json!(0)));
    let main = format!("{second} / trainer (TID 100) 4194305:4194305");
    let shifted = expected.map(|(name, depth, start, end)| (name, depth, start + 1000, end + 1000));
    assert_eq!(slices(&said[&main]), shifted);
    assert_eq!(slices(&said["node gpu-1"]), [slice("gpucause 0.1.0", 1, 0, 10_000)]);
    let chain = &said[format!("{second} / causal chains")];
    assert_eq!(slices(chain), [slice("cpu_preemption -> launch_tail", 1, 1062, 1125)]);
    let notes = &chain[0]["notes"];
    for (name, value) in [
        ("id", json!("c-1")),
        ("severity", json!("high")),
        ("explained", json!(0.75)),
        ("sentence", json!("fluent-bit preempted trainer")),
        ("evidence.preempted_seconds", json!(0.25)),
        ("path.1", json!("fluent-bit -> trainer: preemption, 0.500000 s")),
    ] {
        assert_eq!(notes[name], value, "{name}");
    }
    // Each rank has the thread, its off-CPU time, its disk and the memory; then there are the nodes and the chain.
    assert_eq!(said.as_object().unwrap().len(), 11, "{said}");
}

#[test]
fn a_call_says_what_is_known_of_it_and_where_it_came_from() {
    let said = decoded(&MadeUp::two_nodes());
    let calls = &said["trainer rank 3 on gpu-1 100 / trainer 100:100"];
    let outer = json!({
        "cold": false, "outermost": true, "code": 0, "off_cpu_ns": 5 * MS, "event": "gpu-1:1",
        "stack": "step (train.py:12)\nmain (train.py)",
    });
    assert_eq!(calls[0]["notes"], outer);
    assert_eq!(calls[0]["category"], json!(["runtime"]));
    assert_eq!(calls[1]["notes"]["kernel"], "gemm");
    assert_eq!(calls[1]["category"], json!(["driver"]));
}

#[test]
fn of_calls_that_begin_together_the_outer_one_is_outside() {
    let mut made_up = MadeUp::new();
    made_up.add((0, 100), 5, 10, inner("cuLaunchKernel"));
    made_up.add((0, 100), 5, 10, call(Api::Runtime, "cudaLaunchKernel"));
    let said = decoded(&made_up);
    let calls = &said["trainer rank 3 100 / trainer 100:100"];
    let names = [0, 1].map(|nth: usize| (calls[nth]["name"].clone(), calls[nth]["depth"].clone()));
    assert_eq!(names, [(json!("cudaLaunchKernel"), json!(1)), (json!("cuLaunchKernel"), json!(2))]);
}

#[test]
fn the_run_of_a_recorder_that_was_killed_ends_with_its_last_event() {
    let mut made_up = MadeUp::new();
    made_up.sessions[0].ended_ns = None;
    made_up.add((0, 100), 5 * MS, 10 * MS, waited(Reason::Futex));
    let said = decoded(&made_up);
    assert_eq!(slices(&said["node gpu-1"]), [slice("gpucause 0.1.0", 1, 0, 15)]);
    assert_eq!(said["node gpu-1"][0]["notes"]["killed"], true);
}

#[test]
fn device_memory_is_counted_only_where_every_event_tells_it() {
    let counters = |made_up: &MadeUp| checked(&trace(made_up))[2];
    let mut made_up = MadeUp::new();
    made_up.add((0, 100), 0, 1, sized("cudaMalloc", 10));
    made_up.add((0, 100), 2, 1, call(Api::Runtime, "cudaFree"));
    made_up.add((0, 100), 4, 1, sized("cudaMalloc", 10));
    made_up.calls.push(statistics("cudaMalloc", Completeness::Exact));
    assert_eq!(counters(&made_up), 1, "a free of an unknown size ends it");
    made_up.calls.push(statistics("cudaFree", Completeness::Sample { stored: 1 }));
    assert_eq!(counters(&made_up), 0, "frees are missing");
}

#[test]
fn a_million_events_are_not_held_in_memory() {
    /// Tells the most that was written at once.
    struct Largest(usize);
    impl io::Write for Largest {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.max(bytes.len());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut made_up = MadeUp::new();
    for number in 0..20_000 {
        made_up.add((0, 100), number * 10, 5, call(Api::Runtime, "cudaLaunchKernel"));
    }
    let mut largest = Largest(0);
    let selection = Selection::default();
    crate::export::perfetto(&made_up, &selection, &mut largest, &mut |_| {}).unwrap();
    assert!(largest.0 < 128 << 10, "{}", largest.0);
}

/// Events of a few threads of two processes, at times so few that many begin or end together.
fn anything() -> impl Strategy<Value = Vec<(u32, u32, u64, u64, u8)>> {
    let event = (0..2_u32, 100..103_u32, 0..60_u64, 0..40_u64, 0..6_u8);
    prop::collection::vec(event, 0..200)
}

proptest! {
    #[test]
    fn whatever_happened_slices_nest_and_nothing_is_lost(events in anything(), in_order: bool) {
        let mut made_up = MadeUp::new();
        made_up.add_process(0, 200, "other", None);
        for &(process, tid, at, length, kind) in &events {
            let kind = match kind {
                0 => call(Api::Runtime, "cudaLaunchKernel"),
                1 => inner("cuLaunchKernel"),
                2 => waited(Reason::Futex),
                3 => read(512),
                4 => Kind::Other("mark".into()),
                _ => Kind::TcpRetransmit,
            };
            made_up.add((process, tid), at, length, kind);
        }
        if in_order {
            made_up.events.sort_by_key(|event| event.start_ns);
        }
        let is_instant = |event: &gpucause_trace::recording::Event| {
            matches!(event.kind, Kind::Other(_) | Kind::TcpRetransmit) && event.duration_ns == 0
        };
        let expected = made_up.events.iter().filter(|event| is_instant(event)).count();
        let packets = trace(&made_up);
        if in_order {
            let [begun, instants, _] = checked(&packets);
            // The run of the recorder is a slice too.
            prop_assert_eq!((begun, instants), (made_up.events.len() - expected + 1, expected));
        } else {
            let of_type = |kind| packets.iter().filter(|packet| {
                packet.track_event.as_ref().is_some_and(|event| event.r#type == Some(kind))
            }).count();
            prop_assert_eq!(of_type(SLICE_BEGIN), of_type(SLICE_END));
            prop_assert_eq!(of_type(INSTANT), expected);
        }
    }

    #[test]
    fn an_end_belongs_to_the_slice_that_began_last(events in anything()) {
        let mut made_up = MadeUp::new();
        for &(_, tid, at, length, _) in &events {
            made_up.add((0, tid), at, length, call(Api::Runtime, &format!("{at}+{length}")));
        }
        made_up.events.sort_by_key(|event| event.start_ns);
        let (mut names, mut open) = (HashMap::new(), HashMap::<u64, Vec<(u64, String)>>::new());
        for packet in trace(&made_up) {
            for name in packet.interned_data.iter().flat_map(|data| &data.event_names) {
                names.insert(name.iid, name.name.clone().unwrap());
            }
            let Some(event) = packet.track_event else { continue };
            let slices = open.entry(event.track_uuid.unwrap()).or_default();
            let at = packet.timestamp.unwrap();
            if event.r#type == Some(SLICE_BEGIN) {
                slices.push((at, names[&event.name_iid].clone()));
            } else if event.r#type == Some(SLICE_END) {
                let (start, name) = slices.pop().unwrap();
                let begin = BEGIN.unsigned_abs();
                if let Some((_, length)) = name.split_once('+') {
                    let length: u64 = length.parse().unwrap();
                    prop_assert_eq!(name, format!("{}+{length}", start - begin));
                    prop_assert_eq!(at - start, length);
                }
            }
        }
    }
}
