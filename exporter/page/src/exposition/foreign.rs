//! DCGM's metrics in each format.

use super::page::Page;
use super::protobuf::Buffers;
use super::{line, protobuf};
use crate::foreign::{ForeignFamily, ForeignSample};
use std::io;
use std::sync::Arc;

fn with_samples(families: &[Arc<ForeignFamily>]) -> impl Iterator<Item = &ForeignFamily> {
    families.iter().map(Arc::as_ref).filter(|family| !family.samples.is_empty())
}

fn labels(sample: &ForeignSample, set: &mut Vec<u8>) {
    set.clear();
    for (key, value) in &sample.labels {
        if !set.is_empty() {
            set.push(b',');
        }
        set.extend_from_slice(key.as_bytes());
        set.extend_from_slice(b"=\"");
        line::escape(set, value, true);
        set.push(b'"');
    }
}

fn samples(family: &ForeignFamily, pieces: &mut Page<'_>) -> io::Result<()> {
    let mut set = Vec::new();
    for sample in &family.samples {
        labels(sample, &mut set);
        line::series(&mut pieces.buffer, &family.name, "", &set);
        line::float(&mut pieces.buffer, sample.value);
        pieces.buffer.push(b'\n');
        pieces.flush_full()?;
    }
    Ok(())
}

fn help(family: &ForeignFamily, pieces: &mut Page<'_>, quotes: bool) {
    if family.help.is_empty() {
        return;
    }
    pieces.buffer.extend_from_slice(format!("# HELP {} ", family.name).as_bytes());
    line::escape(&mut pieces.buffer, &family.help, quotes);
    pieces.buffer.push(b'\n');
}

fn kind(family: &ForeignFamily, word: &str, pieces: &mut Page<'_>) {
    pieces.buffer.extend_from_slice(format!("# TYPE {} {word}\n", family.name).as_bytes());
}

pub(super) fn text(families: &[Arc<ForeignFamily>], pieces: &mut Page<'_>) -> io::Result<()> {
    for family in with_samples(families) {
        help(family, pieces, false);
        kind(family, family.kind.text_name(), pieces);
        samples(family, pieces)?;
    }
    Ok(())
}

pub(super) fn openmetrics(
    families: &[Arc<ForeignFamily>],
    pieces: &mut Page<'_>,
) -> io::Result<()> {
    for family in with_samples(families) {
        kind(family, family.kind.openmetrics_name(), pieces);
        help(family, pieces, true);
        samples(family, pieces)?;
    }
    Ok(())
}

pub(super) fn protobuf(
    families: &[Arc<ForeignFamily>],
    page: &mut Page<'_>,
    buffers: &mut Buffers,
) -> io::Result<()> {
    with_samples(families).try_for_each(|family| protobuf::write_foreign(family, page, buffers))
}
