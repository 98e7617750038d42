//! OpenMetrics text format 1.0.0.
//!
//! Info metrics are exposed as gauges, as in the text format, so that a series has the same type in every format.

use super::ClassicBuckets;
use super::line;
use super::page::Page;
use crate::family::{Exemplar, Family};
use std::io;

/// The end of a page.
pub(super) const END: &[u8] = b"# EOF\n";

/// Writes a family that has samples.
pub(super) fn family(
    family: &Family,
    pieces: &mut Page<'_>,
    buckets: ClassicBuckets,
    mut created_line: Option<&mut CreatedLine>,
) -> io::Result<()> {
    let page = &mut pieces.buffer;
    let metric = family.metric;
    let name = metric.name;
    page.extend_from_slice(format!("# TYPE {name} {}\n", buckets.type_name(metric)).as_bytes());
    if let Some(unit) = metric.unit {
        page.extend_from_slice(format!("# UNIT {name} {}\n", unit.name()).as_bytes());
    }
    page.extend_from_slice(format!("# HELP {name} ").as_bytes());
    line::escape(page, metric.help, true);
    page.push(b'\n');
    let mut labels = line::LabelSet::default();
    for sample in &family.samples {
        let page = &mut pieces.buffer;
        let labels = labels.of(family, sample);
        line::sample(page, family, sample, labels, buckets);
        let exemplar = sample.exemplar.as_deref().filter(|exemplar| exemplar.is_short());
        if let Some(exemplar) = exemplar {
            add_exemplar(page, exemplar);
        }
        let created = sample.created.filter(|_| sample.is_created(family));
        if let Some((created, text)) = created.zip(created_line.as_deref_mut()) {
            line::series(page, name, "_created", labels);
            text.write(page, created);
        }
        pieces.flush_full()?;
    }
    Ok(())
}

/// The last `_created` value as text: all series of a process share it.
#[derive(Default)]
pub(super) struct CreatedLine {
    created: f64,
    line: Vec<u8>,
}

impl CreatedLine {
    fn write(&mut self, page: &mut Vec<u8>, created: f64) {
        if self.line.is_empty() || self.created.to_bits() != created.to_bits() {
            self.created = created;
            self.line.clear();
            line::float(&mut self.line, created);
            self.line.push(b'\n');
        }
        page.extend_from_slice(&self.line);
    }
}

/// Adds an exemplar to the line that was just written.
fn add_exemplar(page: &mut Vec<u8>, exemplar: &Exemplar) {
    let Exemplar { key, value, amount, at } = exemplar;
    // The newline.
    page.pop();
    page.extend_from_slice(b" # {");
    page.extend_from_slice(key.as_bytes());
    page.extend_from_slice(b"=\"");
    line::escape(page, value, true);
    page.extend_from_slice(b"\"} ");
    line::float(page, *amount);
    page.push(b' ');
    line::float(page, *at);
    page.push(b'\n');
}
