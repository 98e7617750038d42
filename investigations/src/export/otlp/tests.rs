use gpucause_abi::op::Api;
use serde_json::{Value, json};
use std::collections::HashSet;

use crate::export::tests::{BEGIN, MS, MadeUp, call, python};
use crate::export::{Format, Selection};
use crate::recording::Kind;

const FORMATS: [(&str, Format); 2] =
    [("otlp-json", Format::OtlpJson), ("otlp-protobuf", Format::OtlpProtobuf)];

fn decoded(made_up: &MadeUp, (name, format): (&str, Format)) -> Vec<Value> {
    let (written, out) = made_up.exported(format, &Selection::default());
    written.unwrap();
    match python::decoded(name, &out) {
        Value::Array(spans) => spans,
        other => panic!("{other}"),
    }
}

fn named<'a>(spans: &'a [Value], name: &str, host: &str) -> &'a Value {
    let is_it = |span: &&Value| span["name"] == name && span["resource"]["host.name"] == host;
    spans.iter().find(is_it).unwrap_or_else(|| panic!("no {name} of {host}: {spans:?}"))
}

#[test]
fn the_package_of_opentelemetry_finds_every_event_and_chain_in_both_encodings() {
    let made_up = MadeUp::two_nodes();
    let [of_json, of_protobuf] = FORMATS.map(|format| decoded(&made_up, format));
    assert_eq!(of_json, of_protobuf);
    assert_eq!(of_json.len(), 19);
    let spans: HashSet<_> = of_json.iter().map(|span| span["span"].as_str().unwrap()).collect();
    assert_eq!(spans.len(), 19, "no two spans have one identifier");
}

#[test]
fn what_happened_within_a_call_is_below_it_and_all_else_is_a_trace_of_its_own() {
    let spans = decoded(&MadeUp::two_nodes(), FORMATS[0]);
    for host in ["gpu-1", "gpu-2"] {
        let outer = named(&spans, "cudaLaunchKernel", host);
        let inner = named(&spans, "cuLaunchKernel", host);
        let preempted = named(&spans, "preempted", host);
        assert_eq!(outer["parent"], "");
        assert_eq!(inner["parent"], outer["span"]);
        assert_eq!(preempted["parent"], inner["span"]);
        assert_eq!(preempted["trace"], outer["trace"]);
        let alone = named(&spans, "futex", host);
        assert_eq!(alone["parent"], "");
        assert_ne!(alone["trace"], outer["trace"]);
    }
    let traces = |host| named(&spans, "futex", host)["trace"].clone();
    assert_ne!(traces("gpu-1"), traces("gpu-2"));
}

#[test]
fn a_span_says_whose_it_is_in_the_terms_of_the_semantic_conventions() {
    let spans = decoded(&MadeUp::two_nodes(), FORMATS[0]);
    let call = named(&spans, "cudaLaunchKernel", "gpu-2");
    let resource = json!({
        "host.name": "gpu-2", "service.name": "trainer", "process.pid": 100,
        "process.command": "trainer", "gpucause.rank": 4, "container.id": "0123",
    });
    assert_eq!(call["resource"], resource);
    let begin = BEGIN.unsigned_abs() + 1010 * MS;
    assert_eq!((&call["at"], &call["end"]), (&json!(begin), &json!(begin + 9 * MS)));
    let attributes = json!({
        "thread.id": 100, "gpucause.category": "runtime", "gpucause.event": "gpu-2:10",
        "gpucause.cold": false, "gpucause.outermost": true, "gpucause.code": 0,
        "gpucause.off_cpu_ns": 5 * MS,
    });
    assert_eq!(call["attributes"], attributes);
    let first = named(&spans, "cudaLaunchKernel", "gpu-1");
    let stack = "step (train.py:12)\nmain (train.py)";
    assert_eq!(first["attributes"]["code.stacktrace"], stack);
}

#[test]
fn a_chain_is_a_span_of_its_victim_with_its_arrows_as_events() {
    let spans = decoded(&MadeUp::two_nodes(), FORMATS[1]);
    let chain = named(&spans, "cpu_preemption -> launch_tail", "gpu-2");
    assert_eq!(chain["resource"]["process.pid"], 100);
    assert_eq!(chain["error"], "fluent-bit preempted trainer");
    assert_eq!(chain["attributes"]["gpucause.chain.id"], "c-1");
    assert_eq!(chain["attributes"]["gpucause.chain.evidence.preempted_seconds"], 0.25);
    assert_eq!(chain["events"][0][1]["gpucause.chain.step.mechanism"], "preemption");
}

#[test]
fn a_call_that_failed_is_an_error_and_one_that_was_not_ready_is_none() {
    let mut made_up = MadeUp::new();
    for (at, code) in [(0, 0), (2, 2), (4, 600)] {
        let Kind::Call(query) = call(Api::Runtime, "cudaStreamQuery") else { unreachable!() };
        let kind = Kind::Call(crate::recording::Call { code, ..query });
        made_up.add((0, 100), at, 1, kind);
    }
    let spans = decoded(&made_up, FORMATS[0]);
    let errors: Vec<&Value> = spans.iter().map(|span| &span["error"]).collect();
    assert_eq!(errors, [&Value::Null, &json!("cudaStreamQuery returned 2"), &Value::Null]);
}

#[test]
fn each_request_in_protobuf_is_one_write_that_is_small_however_long_stacks_are() {
    let mut made_up = MadeUp::new();
    for number in 0..2000 {
        let Kind::Call(query) = call(Api::Runtime, "cudaStreamQuery") else { unreachable!() };
        let kind = Kind::Call(crate::recording::Call { op: "x".repeat(10_000).into(), ..query });
        made_up.add((0, 100), number * 10, 5, kind);
    }
    let mut sink = Writes::default();
    let (format, selection) = (Format::OtlpProtobuf, Selection::default());
    crate::export::export(&made_up, format, &selection, &mut sink, &mut |_| {}).unwrap();
    assert!(sink.0.len() >= 8 && sink.0.iter().all(|&bytes| bytes < 3 << 20), "{:?}", sink.0);
}

/// The sizes of what it was handed.
#[derive(Default)]
struct Writes(Vec<usize>);

impl std::io::Write for Writes {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.push(bytes.len());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn requests_are_small_and_the_same_each_time() {
    let mut made_up = MadeUp::new();
    for number in 0..2000 {
        made_up.add((0, 100), number * 10, 5, call(Api::Runtime, "cudaLaunchKernel"));
    }
    let (_, once) = made_up.exported(Format::OtlpJson, &Selection::default());
    let (_, again) = made_up.exported(Format::OtlpJson, &Selection::default());
    assert_eq!(once, again);
    assert_eq!(once.iter().filter(|&&byte| byte == b'\n').count(), 4);
    assert_eq!(decoded(&made_up, FORMATS[1]).len(), 2000);
}
