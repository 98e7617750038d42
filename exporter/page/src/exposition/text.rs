//! Prometheus text format 0.0.4.

use super::ClassicBuckets;
use super::line;
use super::page::Page;
use crate::family::Family;
use std::io;

/// Writes a family that has samples.
pub(super) fn family(
    family: &Family,
    pieces: &mut Page<'_>,
    buckets: ClassicBuckets,
) -> io::Result<()> {
    let page = &mut pieces.buffer;
    let metric = family.metric;
    let name = metric.query_name();
    page.extend_from_slice(format!("# HELP {name} ").as_bytes());
    line::escape(page, metric.help, false);
    page.extend_from_slice(format!("\n# TYPE {name} {}\n", buckets.type_name(metric)).as_bytes());
    let mut labels = line::LabelSet::default();
    for sample in &family.samples {
        line::sample(&mut pieces.buffer, family, sample, labels.of(family, sample), buckets);
        pieces.flush_full()?;
    }
    Ok(())
}
