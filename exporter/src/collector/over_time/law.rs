//! Checks that no counter decreases from page to page.

use std::collections::{BTreeMap, HashMap};

use gpucause_page::family::{Family, Sample, Value};
use gpucause_page::metric::{CALLS_ABANDONED, Kind};

/// A series: its family and labels.
type Series = (&'static str, Vec<String>);

/// The series of earlier pages.
#[derive(Debug, Default)]
pub(super) struct Law {
    last: HashMap<Series, (Option<f64>, BTreeMap<u16, u64>)>,
}

/// Beyond the slots of a histogram.
const SUM: u16 = u16::MAX;

/// The parts of a value that only grow.
fn parts(value: &Value) -> BTreeMap<u16, u64> {
    match value {
        Value::Integer(count) => [(SUM, *count)].into(),
        Value::Seconds(time) => [(SUM, time.0)].into(),
        Value::Float(number) => [(SUM, (number * 1e6) as u64)].into(),
        Value::Histogram(histogram) => {
            histogram.slots.iter().chain([(SUM, histogram.sum.0)]).collect()
        }
    }
}

fn texts(sample: &Sample) -> Vec<String> {
    sample.labels.iter().map(|label| label.as_str().to_owned()).collect()
}

impl Law {
    /// Compares a page with those before it; returns the families that counted anything.
    pub(super) fn hold(&mut self, page: &[Family]) -> Result<Vec<&'static str>, String> {
        // Counters without a creation time have that of their process's other counters.
        let all = page.iter().find(|family| *family.metric == CALLS_ABANDONED);
        let begins: HashMap<_, _> = all
            .iter()
            .flat_map(|family| &family.samples)
            .map(|sample| (texts(sample), sample.created))
            .collect();
        let mut counted = Vec::new();
        for family in page {
            let metric = family.metric;
            if !matches!(metric.kind, Kind::Counter | Kind::Histogram) {
                continue;
            }
            for sample in &family.samples {
                let labels = texts(sample);
                let begin = labels.get(..2).and_then(|process| begins.get(process)).copied();
                let created = sample.created.or(begin.flatten());
                let now = parts(&sample.value);
                if now.values().any(|&part| part > 0) {
                    counted.push(metric.name);
                }
                let series = (metric.name, labels);
                if let Some((before, last)) = self.last.get(&series) {
                    if created < *before {
                        return Err(format!("{series:?} began at {before:?}, now {created:?}"));
                    }
                    let short = |(part, last): (&u16, &u64)| now.get(part).unwrap_or(&0) < last;
                    if created == *before && last.iter().any(short) {
                        return Err(format!("{series:?} decreases from {last:?} to {now:?}"));
                    }
                }
                self.last.insert(series, (created, now));
            }
        }
        Ok(counted)
    }
}
