//! The stored form of a snapshot: an [`EngineInput`] without its time, in protobuf, compressed with zlib.
//!
//! Enums and ops are written as their labels, which each snapshot lists, since another version may number them differently. Labels of a
//! newer version are skipped, or become `other` where there is one.

mod axis;
mod cells;
mod columns;
mod value;
mod wire;

use std::cell::Cell;
use std::io::{Read as _, Write as _};
use std::sync::Arc;

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use gpucause_abi::snapshot::Snapshot;
use gpucause_abi::{Nanos, ProcId};
use gpucause_engine::EngineInput;

use axis::Axes;
use value::{Message, Value as _};
use wire::Writer;

/// Bound of an uncompressed snapshot: many times one of thousands of processes.
const MAX_BYTES: u64 = 64 << 20;
/// Bound of the memory that a decoded snapshot may take, in bytes: several times that of thousands of processes with dozens of
/// kinds of calls each.
const MOST: usize = 512 << 20;
/// The tags of what is not in the snapshot; see `columns` for those that are.
const LABELS: u32 = 1;
const THROTTLED_GPUS: u32 = 7;
const THROTTLED_CGROUPS: u32 = 8;

/// Why a stored snapshot cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum SnapshotError {
    #[error("it cannot be decompressed: {0}")]
    Zlib(#[from] std::io::Error),
    #[error("it is larger than {MAX_BYTES} bytes")]
    TooLarge,
    #[error("its contents would take more than {MOST} bytes")]
    TooMuch,
    #[error("{0}")]
    Accounts(&'static str),
}

type Result<T> = std::result::Result<T, SnapshotError>;

/// Encodes a snapshot.
pub(super) fn encode(input: &EngineInput) -> Vec<u8> {
    let plain = plain(input);
    let mut compressed =
        ZlibEncoder::new(Vec::with_capacity(plain.len() / 2), Compression::default());
    // Writing to memory does not fail.
    let _ = compressed.write_all(&plain);
    compressed.finish().unwrap_or_default()
}

/// Decodes a snapshot that was taken at `unix_seconds`.
///
/// # Errors
/// When it is damaged.
pub(super) fn decode(bytes: &[u8], unix_seconds: f64) -> Result<EngineInput> {
    let mut plain = Vec::new();
    ZlibDecoder::new(bytes).take(MAX_BYTES + 1).read_to_end(&mut plain)?;
    if plain.len() as u64 > MAX_BYTES {
        return Err(SnapshotError::TooLarge);
    }
    read_message(&plain, unix_seconds)
}

/// The message.
fn plain(input: &EngineInput) -> Vec<u8> {
    let EngineInput { snapshot, unix_seconds: _, throttled_gpus, throttled_cgroups } = input;
    let mut accounts = Writer::default();
    snapshot.write(&mut accounts);
    let mut gpus: Vec<(String, f64)> =
        throttled_gpus.iter().map(|(uuid, &share)| (uuid.clone(), share)).collect();
    gpus.sort_by(|a, b| a.0.cmp(&b.0));
    gpus.write(THROTTLED_GPUS, &mut accounts);
    let mut cgroups: Vec<(ProcId, Nanos)> =
        throttled_cgroups.iter().map(|(&id, &time)| (id, time)).collect();
    cgroups.sort_unstable();
    cgroups.write(THROTTLED_CGROUPS, &mut accounts);
    let mut message = Writer::default();
    message.message(LABELS, |labels| accounts.ops.write_labels(labels));
    message.bytes.append(&mut accounts.bytes);
    message.bytes
}

fn read_message(plain: &[u8], unix_seconds: f64) -> Result<EngineInput> {
    let left = Cell::new(MOST);
    wire::read([Ok(plain)], &Axes::default(), &left, |unlabelled| {
        let axes = unlabelled.message(LABELS, Axes::read)?;
        let from = unlabelled.with(&axes);
        let gpus: Vec<(String, f64)> = from.messages(THROTTLED_GPUS, Message::read)?;
        let cgroups: Vec<(ProcId, Nanos)> = from.messages(THROTTLED_CGROUPS, Message::read)?;
        Ok(EngineInput {
            snapshot: Arc::new(Snapshot::read(from)?.unwrap_or_default()),
            unix_seconds,
            throttled_gpus: gpus.into_iter().collect(),
            throttled_cgroups: cgroups.into_iter().collect(),
        })
    })
}

#[cfg(test)]
mod tests;
