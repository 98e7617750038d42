//! Bytes written out by hand from `metrics.proto`: they do not share the errors of our field numbers.

use super::*;
use crate::exposition::Format;
use crate::metric::{CAUSAL_CHAINS, PROCESSES_OBSERVED, RUNQUEUE_LATENCY};
use gpucause_abi::Nanos;
use gpucause_abi::hist::slot_of;
use metrics_proto::MetricFamily;
use prost::Message as _;

mod metrics_proto;

/// A field with a length.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    prost::encode_length_delimiter(content.len(), &mut bytes).unwrap();
    bytes.extend_from_slice(content);
    bytes
}

/// A field with a whole number below 128.
fn number(field: u8, value: u8) -> Vec<u8> {
    vec![field << 3, value]
}

fn double(field: u8, value: f64) -> Vec<u8> {
    [&[field << 3 | 1][..], &value.to_le_bytes()].concat()
}

fn label(name: &str, value: &str) -> Vec<u8> {
    [field(1, name.as_bytes()), field(2, value.as_bytes())].concat()
}

fn delimited(message: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encode_length_delimiter(message.len(), &mut bytes).unwrap();
    bytes.extend_from_slice(message);
    bytes
}

#[test]
fn a_counter_has_its_whole_name_a_beginning_and_an_exemplar() {
    let mut family = Family::new(&CAUSAL_CHAINS);
    let labels = ["1", "a\"b", "c", "e", "low"].map(Into::into);
    family.push_created(labels, Value::Integer(3), Some(5.25));
    let id = Exemplar { key: "chain_id", value: "x".into(), amount: 1.0, at: 7.5 };
    family.set_exemplar(Some(id));
    let exemplar = [
        field(1, &label("chain_id", "x")),
        double(2, 1.0),
        field(3, &[number(1, 7), vec![2 << 3, 0x80, 0xca, 0xb5, 0xee, 0x01]].concat()),
    ];
    let created = [number(1, 5), vec![2 << 3, 0x80, 0xe5, 0x9a, 0x77]].concat();
    let counter = [double(1, 3.0), field(2, &exemplar.concat()), field(3, &created)];
    let metric = [
        field(1, &label("pid", "1")),
        field(1, &label("comm", "a\"b")),
        field(1, &label("cause", "c")),
        field(1, &label("effect", "e")),
        field(1, &label("severity", "low")),
        field(3, &counter.concat()),
    ];
    let expected = [
        field(1, b"gpucause_causal_chains_total"),
        field(2, CAUSAL_CHAINS.help.as_bytes()),
        field(4, &metric.concat()),
    ];
    assert_eq!(Format::Protobuf.encode(&vec![family].into()), delimited(&expected.concat()));
}

#[test]
fn a_gauge_of_zero_is_still_a_gauge() {
    let family = Family::single(&PROCESSES_OBSERVED, Value::Integer(0), None);
    let expected = [
        field(1, b"gpucause_processes_observed"),
        field(2, PROCESSES_OBSERVED.help.as_bytes()),
        number(3, 1),
        field(4, &field(2, b"")),
    ];
    assert_eq!(Format::Protobuf.encode(&vec![family].into()), delimited(&expected.concat()));
}

#[test]
fn a_histogram_has_classic_and_native_buckets() {
    let slot = |ns| u16::try_from(slot_of(Nanos(ns))).unwrap();
    let slots = vec![(0, 2), (slot(1_000_000), 4), (slot(2_000_000), 1)].into();
    let values = Histogram { sum: Nanos(6_000_000), max: Nanos(2_000_000), slots };
    let mut family = Family::new(&RUNQUEUE_LATENCY);
    family.push_created(["1", "p", "r"].map(Into::into), Value::Histogram(values), Some(9.0));
    let classic = BOUNDS.iter().flat_map(|bound| {
        let count =
            [2, 6, 7][[1_000_000, 2_000_000].iter().filter(|&&v| v <= bound.upper.0).count()];
        field(3, &[number(1, count), double(2, bound.le.parse().unwrap())].concat())
    });
    // Zigzag: 2n for n, 2n - 1 for -n. 1 ms is in the bucket that ends at 2^(-79/8) s, 2 ms in that at 2^(-71/8) s.
    // 157 takes two bytes.
    let first_span = field(12, &[&[1 << 3, 0x9d, 0x01][..], &number(2, 1)].concat());
    let histogram = [
        number(1, 7),
        double(2, 0.006),
        classic.collect(),
        number(5, 3 * 2),
        double(6, (-30f64).exp2()),
        number(7, 2),
        first_span,
        field(12, &[number(1, 7 * 2), number(2, 1)].concat()),
        field(13, &[4 * 2, 3 * 2 - 1]),
        field(15, &number(1, 9)),
    ];
    let metric = [
        field(1, &label("pid", "1")),
        field(1, &label("comm", "p")),
        field(1, &label("role", "r")),
        field(7, &histogram.concat()),
    ];
    let expected = [
        field(1, b"gpucause_runqueue_latency_seconds"),
        field(2, RUNQUEUE_LATENCY.help.as_bytes()),
        number(3, 4),
        field(4, &metric.concat()),
        field(5, b"seconds"),
    ];
    assert_eq!(Format::Protobuf.encode(&vec![family].into()), delimited(&expected.concat()));
}

#[test]
fn a_family_of_many_chunks_reads_back_whole() {
    let mut family = Family::new(&RUNQUEUE_LATENCY);
    for pid in 0..2_000 {
        let values = Histogram::from_slots(Nanos(pid), Nanos(pid), (0..300).map(|n| n % 5));
        family.push([pid.to_string().into(), "p".into(), "r".into()], Value::Histogram(values));
    }
    let mut writes = Vec::new();
    struct Writes<'a>(&'a mut Vec<Vec<u8>>);
    impl io::Write for Writes<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.push(bytes.to_vec());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    Format::Protobuf.write(&vec![family].into(), &mut Writes(&mut writes)).unwrap();
    assert!(writes.len() > 5 && writes.iter().all(|piece| piece.len() < 3 * CHUNK_BYTES));
    let page = writes.concat();
    let read = MetricFamily::decode_length_delimited(page.as_slice()).unwrap();
    assert_eq!((read.metric.len(), read.unit.as_str()), (2_000, "seconds"));
    assert_eq!(read.metric[1_999].label[0].value, "1999");
}
