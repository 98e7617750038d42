//! Prometheus' protobuf format: `io.prometheus.client.MetricFamily` messages of `metrics.proto`, each behind its length.
//!
//! Unlike in OpenMetrics, a counter's family has the name that queries use, with `_total`. Histograms have native
//! buckets, and classic ones where they are asked for. The field for a sample timestamp is never sent.

mod field;
mod wire;

use super::ClassicBuckets;
use super::bucket_bounds::{BOUNDS, cumulate};
use super::native::{Buckets, SCHEMA, ZERO_THRESHOLD};
use super::page::{CHUNK_BYTES, Page, SLACK_BYTES};
use crate::family::{Exemplar, Family, Sample, Value};
use crate::foreign::{ForeignFamily, ForeignKind};
use crate::metric::{Kind, Metric};
use gpucause_abi::hist::Histogram;
use std::io;

/// Buffers that all families share.
#[derive(Default)]
pub(super) struct Buffers {
    chunks: Chunks,
    native: Buckets,
}

/// A family's encoded metrics, whose total length precedes them: in chunks, since they may be many megabytes.
#[derive(Default)]
struct Chunks {
    full: Vec<Vec<u8>>,
    current: Vec<u8>,
    free: Vec<Vec<u8>>,
}

/// Allocates a chunk of full size at once: growing would take twice the memory.
fn chunk() -> Vec<u8> {
    Vec::with_capacity(CHUNK_BYTES + SLACK_BYTES)
}

impl Chunks {
    /// The buffer for the next metric.
    fn next(&mut self) -> &mut Vec<u8> {
        if self.current.len() >= CHUNK_BYTES {
            let next = self.free.pop().unwrap_or_else(chunk);
            self.full.push(std::mem::replace(&mut self.current, next));
        }
        &mut self.current
    }

    fn len(&self) -> usize {
        self.full.iter().map(Vec::len).sum::<usize>() + self.current.len()
    }

    fn write(&mut self, page: &mut Page<'_>) -> io::Result<()> {
        for mut chunk in self.full.drain(..) {
            page.buffer.extend_from_slice(&chunk);
            page.flush_full()?;
            chunk.clear();
            self.free.push(chunk);
        }
        page.buffer.extend_from_slice(&self.current);
        self.current.clear();
        page.flush_full()
    }
}

/// Writes a family that has samples.
pub(super) fn family(
    family: &Family,
    page: &mut Page<'_>,
    classic: ClassicBuckets,
    buffers: &mut Buffers,
) -> io::Result<()> {
    let Buffers { chunks, native } = buffers;
    let row = family.metric;
    for sample in &family.samples {
        let has_buckets = classic.has(family, sample);
        wire::message(chunks.next(), field::family::METRIC, |out| {
            metric(out, row, sample, has_buckets, native);
        });
    }
    let mut head = Vec::with_capacity(256);
    wire::string(&mut head, field::family::NAME, &row.query_name());
    wire::string(&mut head, field::family::HELP, row.help);
    wire::integer(&mut head, field::family::TYPE, metric_type(row.kind));
    let mut tail = Vec::new();
    wire::string(&mut tail, field::family::UNIT, row.unit.map_or("", |unit| unit.name()));
    wire::varint(&mut page.buffer, (head.len() + chunks.len() + tail.len()) as u64);
    page.buffer.extend_from_slice(&head);
    chunks.write(page)?;
    page.buffer.extend_from_slice(&tail);
    page.flush_full()
}

/// Writes a family of DCGM.
pub(super) fn write_foreign(
    family: &ForeignFamily,
    page: &mut Page<'_>,
    Buffers { chunks, .. }: &mut Buffers,
) -> io::Result<()> {
    let (field, kind) = match family.kind {
        ForeignKind::Counter => (field::metric::COUNTER, 0),
        ForeignKind::Gauge => (field::metric::GAUGE, 1),
        ForeignKind::Untyped => (field::metric::UNTYPED, 3),
    };
    for sample in &family.samples {
        wire::message(chunks.next(), field::family::METRIC, |out| {
            for (key, value) in &sample.labels {
                wire::message(out, field::metric::LABEL, |out| label_pair(out, key, value));
            }
            // The one field of each of the three messages has the same number.
            wire::message(out, field, |out| wire::double(out, field::gauge::VALUE, sample.value));
        });
    }
    let mut head = Vec::with_capacity(256);
    wire::string(&mut head, field::family::NAME, &family.name);
    wire::string(&mut head, field::family::HELP, &family.help);
    wire::integer(&mut head, field::family::TYPE, kind);
    wire::varint(&mut page.buffer, (head.len() + chunks.len()) as u64);
    page.buffer.extend_from_slice(&head);
    chunks.write(page)
}

/// A value of the enum `MetricType`.
const fn metric_type(kind: Kind) -> u64 {
    match kind {
        Kind::Counter => 0,
        Kind::Gauge | Kind::Info => 1,
        Kind::Histogram => 4,
    }
}

/// `native` is a buffer for the native buckets.
fn metric(
    out: &mut Vec<u8>,
    row: &Metric,
    sample: &Sample,
    has_buckets: bool,
    native: &mut Buckets,
) {
    for (key, value) in row.labels.iter().zip(&sample.labels) {
        wire::message(out, field::metric::LABEL, |out| label_pair(out, key, value.as_str()));
    }
    if let Value::Histogram(values) = &sample.value {
        wire::message(out, field::metric::HISTOGRAM, |out| {
            histogram(out, row, values, has_buckets, native);
            timestamp(out, field::histogram::CREATED_TIMESTAMP, sample.created);
        });
    } else if row.kind == Kind::Counter {
        wire::message(out, field::metric::COUNTER, |out| {
            number(out, field::counter::VALUE, &sample.value);
            if let Some(from) = sample.exemplar.as_ref().filter(|exemplar| exemplar.is_short()) {
                wire::message(out, field::counter::EXEMPLAR, |out| exemplar(out, from));
            }
            timestamp(out, field::counter::CREATED_TIMESTAMP, sample.created);
        });
    } else {
        wire::message(out, field::metric::GAUGE, |out| {
            number(out, field::gauge::VALUE, &sample.value);
        });
    }
}

fn number(out: &mut Vec<u8>, field: u8, value: &Value) {
    match *value {
        Value::Integer(number) => wire::double(out, field, number as f64),
        Value::Float(number) => wire::double(out, field, number),
        Value::Seconds(time) => wire::seconds(out, field, time),
        Value::Histogram(_) => {}
    }
}

/// There is no classic bucket for `+Inf`: its count is the sample count.
fn histogram(
    out: &mut Vec<u8>,
    row: &Metric,
    values: &Histogram,
    has_buckets: bool,
    native: &mut Buckets,
) {
    use field::{bucket, bucket_span, histogram};
    wire::integer(out, histogram::SAMPLE_COUNT, values.count());
    wire::seconds(out, histogram::SAMPLE_SUM, values.sum);
    if has_buckets {
        let (at_most, _) = cumulate(&values.slots);
        for (bound, count) in BOUNDS.iter().zip(at_most).filter(|(bound, _)| bound.is_of(row)) {
            wire::message(out, histogram::BUCKET, |out| {
                wire::integer(out, bucket::CUMULATIVE_COUNT, count);
                wire::seconds(out, bucket::UPPER_BOUND, bound.upper);
            });
        }
    }
    native.set(&values.slots);
    wire::signed(out, histogram::SCHEMA, SCHEMA.into());
    wire::double(out, histogram::ZERO_THRESHOLD, ZERO_THRESHOLD);
    wire::integer(out, histogram::ZERO_COUNT, native.zero_count);
    for span in &native.spans {
        wire::message(out, histogram::POSITIVE_SPAN, |out| {
            wire::signed(out, bucket_span::OFFSET, span.offset.into());
            wire::integer(out, bucket_span::LENGTH, span.length.into());
        });
    }
    if !native.deltas.is_empty() {
        wire::message(out, histogram::POSITIVE_DELTA, |out| {
            for &delta in &native.deltas {
                wire::varint(out, wire::zigzag(delta));
            }
        });
    }
}

fn exemplar(out: &mut Vec<u8>, exemplar: &Exemplar) {
    wire::message(out, field::exemplar::LABEL, |out| {
        label_pair(out, exemplar.key, &exemplar.value);
    });
    wire::double(out, field::exemplar::VALUE, exemplar.amount);
    timestamp(out, field::exemplar::TIMESTAMP, Some(exemplar.at));
}

fn label_pair(out: &mut Vec<u8>, name: &str, value: &str) {
    wire::string(out, field::label_pair::NAME, name);
    wire::string(out, field::label_pair::VALUE, value);
}

/// A `google.protobuf.Timestamp`.
fn timestamp(out: &mut Vec<u8>, field: u8, unix_seconds: Option<f64>) {
    let Some(unix_seconds) = unix_seconds else { return };
    let whole = unix_seconds.floor();
    let nanos = ((unix_seconds - whole) * 1e9).min(999_999_999.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "casts saturate")]
    wire::message(out, field, |out| {
        wire::integer(out, field::timestamp::SECONDS, whole as u64);
        wire::integer(out, field::timestamp::NANOS, nanos as u64);
    });
}

#[cfg(test)]
mod tests;
