//! Parses a node's metrics: the part of Prometheus's text format that gpucause writes.

use std::collections::HashMap;

/// One sample.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sample {
    pub(crate) name: String,
    labels: Vec<(String, String)>,
    pub(crate) value: f64,
}

impl Sample {
    pub(crate) fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.labels.iter().map(|(name, value)| (&**name, &**value))
    }

    pub(crate) fn label(&self, name: &str) -> &str {
        self.labels.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }
}

/// The samples whose line begins with `prefix`. Malformed lines are skipped.
pub(crate) fn samples<'a>(page: &'a str, prefix: &'a str) -> impl Iterator<Item = Sample> + 'a {
    page.lines().filter(move |line| line.starts_with(prefix)).filter_map(sample)
}

fn sample(line: &str) -> Option<Sample> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            rest = rest.trim_start_matches([',', ' ']);
            if let Some(after) = rest.strip_prefix('}') {
                rest = after;
                break;
            }
            let (key, value) = rest.split_once("=\"")?;
            let (value, after) = quoted(value)?;
            labels.push((key.to_owned(), value));
            rest = after;
        }
    }
    let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
    Some(Sample { name: name.to_owned(), labels, value })
}

/// The unescaped text up to the closing quote, and the rest.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, c)) = characters.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match characters.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            plain => value.push(plain),
        }
    }
    None
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Histogram {
    pub(crate) count: f64,
    pub(crate) sum: f64,
    /// Upper edges in seconds with cumulative counts.
    buckets: Vec<(f64, f64)>,
}

impl Histogram {
    /// The edges of the bucket of the nearest rank; the upper one of the last bucket is infinite. `None` for an empty histogram.
    pub(crate) fn quantile(&self, share: f64) -> Option<(f64, f64)> {
        let rank = (self.count * share).ceil().max(1.0);
        let at = self.buckets.iter().position(|(_, below)| *below >= rank)?;
        let lower = at.checked_sub(1).map_or(0.0, |before| self.buckets[before].0);
        Some((lower, self.buckets[at].0))
    }
}

/// The histograms of this name, by the values of these labels.
pub(crate) fn histograms<const N: usize>(
    page: &str,
    name: &str,
    labels: [&str; N],
) -> Vec<([String; N], Histogram)> {
    let mut indexes: HashMap<[String; N], usize> = HashMap::new();
    let mut all: Vec<([String; N], Histogram)> = Vec::new();
    for sample in samples(page, name) {
        let key = labels.map(|label| sample.label(label).to_owned());
        let at = *indexes.entry(key.clone()).or_insert_with(|| {
            all.push((key, Histogram::default()));
            all.len() - 1
        });
        let histogram = &mut all[at].1;
        match &sample.name[name.len()..] {
            "_count" => histogram.count = sample.value,
            "_sum" => histogram.sum = sample.value,
            "_bucket" => {
                let edge = sample.label("le").parse().unwrap_or(f64::INFINITY);
                histogram.buckets.push((edge, sample.value));
            }
            _ => {}
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# TYPE x_seconds histogram\n\
        x_seconds_bucket{pid=\"1\",comm=\"a\\\"b\\\\\\n\",le=\"0.001\"} 98\n\
        x_seconds_bucket{pid=\"1\",comm=\"a\\\"b\\\\\\n\",le=\"0.5\"} 99\n\
        x_seconds_bucket{pid=\"1\",comm=\"a\\\"b\\\\\\n\",le=\"+Inf\"} 100\n\
        x_seconds_sum{pid=\"1\",comm=\"a\\\"b\\\\\\n\"} 7.5\n\
        x_seconds_count{pid=\"1\",comm=\"a\\\"b\\\\\\n\"} 100\n\
        y_total 3\n\
        x_seconds{broken\n";

    #[test]
    fn a_histogram_is_read_with_escaped_labels_and_its_quantiles_are_edges() {
        let all = histograms(PAGE, "x_seconds", ["pid", "comm"]);
        let [(key, histogram)] = &all[..] else { panic!("{all:?}") };
        assert_eq!(key, &["1".to_owned(), "a\"b\\\n".to_owned()]);
        assert_eq!((histogram.count, histogram.sum), (100.0, 7.5));
        assert_eq!(histogram.quantile(0.5), Some((0.0, 0.001)));
        assert_eq!(histogram.quantile(0.99), Some((0.001, 0.5)));
        assert_eq!(histogram.quantile(1.0), Some((0.5, f64::INFINITY)));
        assert_eq!(Histogram::default().quantile(0.5), None);
        assert_eq!(samples(PAGE, "y_").next().map(|sample| sample.value), Some(3.0));
    }
}
