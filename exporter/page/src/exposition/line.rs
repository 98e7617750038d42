//! Escaping, numbers and label sets, as both text formats write them.

use super::ClassicBuckets;
use super::bucket_bounds::{BOUNDS, cumulate};
use crate::family::{Family, LabelValue, Sample, Value};
use crate::metric::{Kind, Metric};
use gpucause_abi::Nanos;
use gpucause_abi::hist::Histogram;
use std::io::Write as _;

/// Bytes of an average line.
const LINE_BYTES: usize = 160;

/// Writes `text`, and escapes characters that would end it or break the line.
pub(super) fn escape(page: &mut Vec<u8>, text: &str, quotes: bool) {
    let mut plain = 0;
    let bytes = text.as_bytes();
    for (index, &byte) in bytes.iter().enumerate() {
        let escaped: &[u8] = match byte {
            b'\\' => b"\\\\",
            b'\n' => b"\\n",
            b'"' if quotes => b"\\\"",
            _ => continue,
        };
        page.extend_from_slice(&bytes[plain..index]);
        page.extend_from_slice(escaped);
        plain = index + 1;
    }
    page.extend_from_slice(&bytes[plain..]);
}

pub(super) fn integer(page: &mut Vec<u8>, number: u64) {
    page.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Writes a number without loss.
pub(super) fn float(page: &mut Vec<u8>, number: f64) {
    if number.is_nan() {
        page.extend_from_slice(b"NaN");
    } else if number.is_infinite() {
        page.extend_from_slice(if number > 0.0 { b"+Inf" } else { b"-Inf" });
    } else {
        // Writing to a Vec cannot fail.
        let _ = write!(page, "{number}");
    }
}

/// Writes a time in seconds, exact to the nanosecond.
pub(super) fn seconds(page: &mut Vec<u8>, time: Nanos) {
    const PER_SECOND: u64 = 1_000_000_000;
    integer(page, time.0 / PER_SECOND);
    let mut fraction = time.0 % PER_SECOND;
    if fraction == 0 {
        return;
    }
    let mut digits = [b'0'; 9];
    for digit in digits.iter_mut().rev() {
        *digit += (fraction % 10) as u8;
        fraction /= 10;
    }
    let end = digits.iter().rposition(|&digit| digit != b'0').map_or(0, |last| last + 1);
    page.push(b'.');
    page.extend_from_slice(&digits[..end]);
}

/// The label set of the current sample of a family. Consecutive samples mostly share their first labels, which are kept and not
/// encoded again.
#[derive(Default)]
pub(super) struct LabelSet<'a> {
    labels: &'a [LabelValue],
    text: Vec<u8>,
    /// Where each label ends.
    ends: Vec<usize>,
}

impl<'a> LabelSet<'a> {
    /// The label set of a sample, without braces: `a="1",b="2"`.
    pub(super) fn of(&mut self, family: &Family, sample: &'a Sample) -> &[u8] {
        let both = self.labels.iter().zip(&sample.labels);
        let same = both.take_while(|(previous, current)| previous == current).count();
        self.ends.truncate(same);
        self.text.truncate(self.ends.last().copied().unwrap_or(0));
        for (key, value) in family.metric.labels.iter().zip(&sample.labels).skip(same) {
            if !self.text.is_empty() {
                self.text.push(b',');
            }
            self.text.extend_from_slice(key.as_bytes());
            self.text.extend_from_slice(b"=\"");
            escape(&mut self.text, value.as_str(), true);
            self.text.push(b'"');
            self.ends.push(self.text.len());
        }
        self.labels = &sample.labels;
        &self.text
    }
}

/// Writes `name`, `suffix`, the label set if there is one, and a space.
pub(super) fn series(page: &mut Vec<u8>, name: &str, suffix: &str, labels: &[u8]) {
    page.extend_from_slice(name.as_bytes());
    page.extend_from_slice(suffix.as_bytes());
    if !labels.is_empty() {
        page.push(b'{');
        page.extend_from_slice(labels);
        page.push(b'}');
    }
    page.push(b' ');
}

/// Writes all sample lines but `_created`.
pub(super) fn sample(
    page: &mut Vec<u8>,
    family: &Family,
    sample: &Sample,
    labels: &[u8],
    classic: ClassicBuckets,
) {
    let metric = family.metric;
    if let Value::Histogram(histogram) = &sample.value {
        let finite = classic.has(family, sample);
        return if classic.has_any(metric) {
            buckets(page, metric, histogram, labels, finite);
        } else {
            sum_and_count(page, metric.name, histogram, labels);
        };
    }
    let suffix = if metric.kind == Kind::Counter { "_total" } else { "" };
    series(page, metric.name, suffix, labels);
    match sample.value {
        Value::Integer(number) => integer(page, number),
        Value::Float(number) => float(page, number),
        Value::Seconds(time) => seconds(page, time),
        Value::Histogram(_) => {}
    }
    page.push(b'\n');
}

/// Writes a histogram's buckets, or `+Inf` alone, and its sum and count.
fn buckets(
    page: &mut Vec<u8>,
    metric: &Metric,
    histogram: &Histogram,
    labels: &[u8],
    finite: bool,
) {
    let name = metric.name;
    let mut prefix = Vec::with_capacity(LINE_BYTES);
    prefix.extend_from_slice(name.as_bytes());
    prefix.extend_from_slice(b"_bucket{");
    prefix.extend_from_slice(labels);
    prefix.extend_from_slice(if labels.is_empty() { b"le=\"" } else { b",le=\"" });
    let (at_most, total) = cumulate(&histogram.slots);
    let bounds = BOUNDS.iter().zip(at_most).filter(|(bound, _)| finite && bound.is_of(metric));
    for (le, count) in bounds.map(|(bound, count)| (bound.le, count)).chain([("+Inf", total)]) {
        page.extend_from_slice(&prefix);
        page.extend_from_slice(le.as_bytes());
        page.extend_from_slice(b"\"} ");
        integer(page, count);
        page.push(b'\n');
    }
    sum_and_count(page, name, histogram, labels);
}

fn sum_and_count(page: &mut Vec<u8>, name: &str, histogram: &Histogram, labels: &[u8]) {
    series(page, name, "_sum", labels);
    seconds(page, histogram.sum);
    page.push(b'\n');
    series(page, name, "_count", labels);
    integer(page, histogram.count());
    page.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut page = Vec::new();
        write(&mut page);
        String::from_utf8(page).unwrap()
    }

    #[test]
    fn only_what_would_break_a_line_is_escaped() {
        let text = "a\"b\\c\nd\u{fffd}\u{e9}";
        assert_eq!(written(|p| escape(p, text, true)), "a\\\"b\\\\c\\nd\u{fffd}\u{e9}");
        assert_eq!(written(|p| escape(p, text, false)), "a\"b\\\\c\\nd\u{fffd}\u{e9}");
    }

    #[test]
    fn floats_are_what_prometheus_parses() {
        for (number, text) in [
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
            (f64::NAN, "NaN"),
            (0.1, "0.1"),
            (3.0, "3"),
            (1e-9, "0.000000001"),
        ] {
            assert_eq!(written(|p| float(p, number)), text);
        }
    }

    #[test]
    fn seconds_are_exact_beyond_the_precision_of_a_float() {
        for (ns, text) in [
            (0, "0"),
            (1, "0.000000001"),
            (1_000_000_000, "1"),
            (1_500_000_000, "1.5"),
            (10_000_000, "0.01"),
            (u64::MAX, "18446744073.709551615"),
        ] {
            assert_eq!(written(|p| seconds(p, Nanos(ns))), text);
        }
    }
}
