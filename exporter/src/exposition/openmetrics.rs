//! OpenMetrics text format 1.0.0.
//!
//! Info metrics are exposed as gauges, as in the text format, so that a series has the same type whichever format a
//! scraper asks for.

use super::page::Page;
use super::{foreign, line};
use crate::family::{Exemplar, Exported};
use crate::metric::Kind;
use std::io;

/// Writes the page to `sink`, piece by piece. Families without samples are left out.
///
/// # Errors
/// Those of `sink`.
pub fn write(exported: &Exported, sink: &mut dyn io::Write) -> io::Result<()> {
    let mut pieces = Page::new(sink);
    let mut beginning = Beginning::default();
    for family in exported.own.iter().filter(|family| !family.samples.is_empty()) {
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
            if let Some(exemplar) = sample.exemplar.as_ref().filter(|exemplar| exemplar.is_short())
            {
                add_exemplar(page, exemplar);
            }
            if let Some(created) = sample.created.filter(|_| has_beginning) {
                line::series(page, name, "_created", labels);
                beginning.write(page, created);
            }
            pieces.flush_full()?;
        }
    }
    foreign::openmetrics(&exported.foreign, &mut pieces)?;
    pieces.buffer.extend_from_slice(b"# EOF\n");
    pieces.flush()
}

/// When series began: all of a process at the same moment, whose digits are found once.
#[derive(Default)]
struct Beginning {
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
