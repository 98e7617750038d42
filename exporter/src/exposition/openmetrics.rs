//! OpenMetrics text format 1.0.0.
//!
//! Info metrics are exposed as gauges, as in the text format, so that a series has the same type whichever format a
//! scraper asks for.

use super::line;
use super::page::Page;
use crate::family::{Exemplar, Family};
use crate::metric::Kind;
use std::io;

/// What a page ends with.
pub(super) const END: &[u8] = b"# EOF\n";

/// Writes a family that has samples.
pub(super) fn family(
    family: &Family,
    pieces: &mut Page<'_>,
    beginning: &mut Beginning,
) -> io::Result<()> {
    let page = &mut pieces.buffer;
    let metric = family.metric;
    let name = metric.name;
    page.extend_from_slice(format!("# TYPE {name} {}\n", metric.kind.type_name()).as_bytes());
    if let Some(unit) = metric.unit {
        page.extend_from_slice(format!("# UNIT {name} {}\n", unit.name()).as_bytes());
    }
    page.extend_from_slice(format!("# HELP {name} ").as_bytes());
    line::escape(page, metric.help, true);
    page.push(b'\n');
    let has_beginning = matches!(metric.kind, Kind::Counter | Kind::Histogram);
    let mut labels = line::LabelSet::default();
    for sample in &family.samples {
        let page = &mut pieces.buffer;
        let labels = labels.of(family, sample);
        line::sample(page, family, sample, labels);
        let exemplar = sample.exemplar.as_deref().filter(|exemplar| exemplar.is_short());
        if let Some(exemplar) = exemplar {
            add_exemplar(page, exemplar);
        }
        if let Some(created) = sample.created.filter(|_| has_beginning) {
            line::series(page, name, "_created", labels);
            beginning.write(page, created);
        }
        pieces.flush_full()?;
    }
    Ok(())
}

/// When series began: all of a process at the same moment, whose digits are found once.
#[derive(Default)]
pub(super) struct Beginning {
    created: f64,
    line: Vec<u8>,
}

impl Beginning {
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
    // The line is not over yet.
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
