//! A look at the accounts as it lies in the file: all of a [`Moment`] but its time, in protobuf, compressed with zlib.
//!
//! Enums and ops are told by their labels, of which each look has a list, since another gpucause may count them otherwise.
//! What a newer one knows and this one does not is passed over, or goes under `other` where there is such a thing. Both ways
//! are written so that a field that somebody adds to the accounts does not compile until it is told here.

mod axis;
mod decode;
mod encode;
mod message;
mod weight;

use std::io::{Read as _, Write as _};

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use gpucause_engine::Moment;
use prost::Message as _;

/// What a look may take when it is not compressed: many times what one of thousands of processes takes.
const MAX_BYTES: u64 = 64 << 20;

/// Why a look cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum LookError {
    #[error("it is not compressed as it should be: {0}")]
    Zlib(#[from] std::io::Error),
    #[error("it is larger than {MAX_BYTES} bytes")]
    TooLarge,
    #[error("what is in it would take more than {} bytes", weight::MOST)]
    TooMuch,
    #[error("{0}")]
    Protobuf(#[from] prost::DecodeError),
    #[error("{0}")]
    Accounts(&'static str),
}

/// As it is written.
pub(super) fn encode(moment: &Moment) -> Vec<u8> {
    let plain = encode::look(moment).encode_to_vec();
    let mut compressed =
        ZlibEncoder::new(Vec::with_capacity(plain.len() / 2), Compression::default());
    // Writing to memory does not fail.
    let _ = compressed.write_all(&plain);
    compressed.finish().unwrap_or_default()
}

/// What was written, at that time.
///
/// # Errors
/// When it is damaged.
pub(super) fn decode(bytes: &[u8], unix_seconds: f64) -> Result<Moment, LookError> {
    let mut plain = Vec::new();
    ZlibDecoder::new(bytes).take(MAX_BYTES + 1).read_to_end(&mut plain)?;
    if plain.len() as u64 > MAX_BYTES {
        return Err(LookError::TooLarge);
    }
    weight::check(&plain)?;
    decode::look(message::Look::decode(plain.as_slice())?, unix_seconds)
}

#[cfg(test)]
mod tests;
