//! Prometheus' protobuf format: `MetricFamily` messages, each behind its length.
//!
//! Unlike in OpenMetrics, a counter's family has the name that queries use, with `_total`. Histograms have classic and
//! native buckets.

pub mod message;

use super::ladder::{LADDER, cumulate};
use super::native::{Buckets, SCHEMA, ZERO_THRESHOLD};
use super::page::{CHUNK_BYTES, Page};
use crate::family::{self, Family, Sample, Value};
use crate::metric::{Kind, Metric as Row};
use gpucause_abi::Nanos;
use gpucause_abi::hist;
use message::{
    Bucket, Counter, Exemplar, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType,
    Timestamp,
};
use prost::{EncodeError, Message};
use std::io;

/// The key of field 4, `metric`, of a family: its number, and that a length follows.
const METRIC_KEY: u8 = 4 << 3 | 2;

/// Writes the page to `sink`, piece by piece. Families without samples are left out.
///
/// # Errors
/// Those of `sink`.
pub fn write(families: &[Family], sink: &mut dyn io::Write) -> io::Result<()> {
    let mut page = Page::new(sink);
    for family in families.iter().filter(|family| !family.samples.is_empty()) {
        write_family(family, &mut page)?;
    }
    page.flush()
}

/// A family's length stands before it, so its metrics are encoded first: in chunks, since they may be many megabytes.
fn write_family(family: &Family, page: &mut Page<'_>) -> io::Result<()> {
    let mut metrics = vec![Vec::new()];
    for sample in &family.samples {
        if metrics.last().is_none_or(|chunk: &Vec<u8>| chunk.len() >= CHUNK_BYTES) {
            metrics.push(Vec::with_capacity(CHUNK_BYTES + CHUNK_BYTES / 16));
        }
        if let Some(chunk) = metrics.last_mut() {
            chunk.push(METRIC_KEY);
            metric(family.metric, sample).encode_length_delimited(chunk).map_err(full)?;
        }
    }
    let row = family.metric;
    let head = MetricFamily {
        name: row.query_name(),
        help: row.help.to_owned(),
        r#type: metric_type(row.kind).into(),
        ..MetricFamily::default()
    };
    let unit = row.unit.map_or("", |unit| unit.name()).to_owned();
    let tail = MetricFamily { unit, ..MetricFamily::default() };
    let metrics_len: usize = metrics.iter().map(Vec::len).sum();
    let len = head.encoded_len() + metrics_len + tail.encoded_len();
    prost::encode_length_delimiter(len, &mut page.buffer).map_err(full)?;
    head.encode(&mut page.buffer).map_err(full)?;
    for chunk in metrics {
        page.buffer.extend_from_slice(&chunk);
        page.flush_full()?;
    }
    tail.encode(&mut page.buffer).map_err(full)?;
    page.flush_full()
}

/// Does not happen: a `Vec` has room.
fn full(error: EncodeError) -> io::Error {
    io::Error::other(error)
}

const fn metric_type(kind: Kind) -> MetricType {
    match kind {
        Kind::Counter => MetricType::Counter,
        Kind::Gauge | Kind::Info => MetricType::Gauge,
        Kind::Histogram => MetricType::Histogram,
    }
}

fn metric(row: &Row, sample: &Sample) -> Metric {
    let pairs = row.labels.iter().zip(&sample.labels);
    let label = pairs.map(|(key, value)| label_pair(key, value.as_str())).collect();
    let created_timestamp = sample.created.map(timestamp);
    let mut metric = Metric { label, ..Metric::default() };
    let value = match &sample.value {
        Value::Histogram(histogram) => {
            metric.histogram = Some(Box::new(both_kinds(histogram, created_timestamp)));
            return metric;
        }
        Value::Integer(number) => *number as f64,
        Value::Float(number) => *number,
        Value::Seconds(time) => seconds(*time),
    };
    if row.kind == Kind::Counter {
        let short = sample.exemplar.as_ref().filter(|exemplar| exemplar.is_short());
        metric.counter = Some(Counter { value, exemplar: short.map(exemplar), created_timestamp });
    } else {
        metric.gauge = Some(Gauge { value });
    }
    metric
}

/// A histogram with classic and with native buckets. The bound `+Inf` is not among the former: its count is that of all.
fn both_kinds(histogram: &hist::Histogram, created_timestamp: Option<Timestamp>) -> Histogram {
    let (at_most, total) = cumulate(&histogram.slots);
    let classic = LADDER.iter().zip(at_most).map(|(bound, cumulative_count)| Bucket {
        cumulative_count,
        upper_bound: seconds(bound.upper),
    });
    let native = Buckets::of(&histogram.slots);
    Histogram {
        sample_count: total,
        sample_sum: seconds(histogram.sum),
        bucket: classic.collect(),
        schema: SCHEMA,
        zero_threshold: ZERO_THRESHOLD,
        zero_count: native.zero_count,
        positive_span: native.spans,
        positive_delta: native.deltas,
        created_timestamp,
    }
}

fn exemplar(exemplar: &family::Exemplar) -> Exemplar {
    Exemplar {
        label: vec![label_pair(exemplar.key, &exemplar.value)],
        value: exemplar.amount,
        timestamp: Some(timestamp(exemplar.at)),
    }
}

fn label_pair(name: &str, value: &str) -> LabelPair {
    LabelPair { name: name.to_owned(), value: value.to_owned() }
}

/// The nearest number to the exact time, as long as that is less than 104 days: what the text formats read back as.
fn seconds(time: Nanos) -> f64 {
    time.0 as f64 / 1e9
}

#[expect(clippy::cast_possible_truncation, reason = "a float is cut to the range of an integer")]
fn timestamp(unix_seconds: f64) -> Timestamp {
    let whole = unix_seconds.floor();
    let nanos = ((unix_seconds - whole) * 1e9).min(999_999_999.0);
    Timestamp { seconds: whole as i64, nanos: nanos as i32 }
}

#[cfg(test)]
mod tests;
