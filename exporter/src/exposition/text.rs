//! Prometheus text format 0.0.4.

use super::page::Page;
use super::{foreign, line};
use crate::family::Exported;
use std::io;

/// Writes the page to `sink`, piece by piece. Families without samples are left out.
///
/// # Errors
/// Those of `sink`.
pub fn write(exported: &Exported, sink: &mut dyn io::Write) -> io::Result<()> {
    let mut pieces = Page::new(sink);
    for family in exported.own.iter().filter(|family| !family.samples.is_empty()) {
        let page = &mut pieces.buffer;
        let metric = family.metric;
        let name = metric.query_name();
        page.extend_from_slice(format!("# HELP {name} ").as_bytes());
        line::escape(page, metric.help, false);
        page.extend_from_slice(format!("\n# TYPE {name} {}\n", metric.kind.type_name()).as_bytes());
        let mut labels = line::LabelSet::default();
        for sample in &family.samples {
            line::sample(&mut pieces.buffer, family, sample, labels.of(family, sample));
            pieces.flush_full()?;
        }
    }
    foreign::text(&exported.foreign, &mut pieces)?;
    pieces.flush()
}
