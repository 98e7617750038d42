//! A sparse histogram in HdrHistogram's compressed V2 encoding. A log has thousands of histograms with few values.

use std::collections::BTreeMap;
use std::io::{self, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::ZlibEncoder;

/// Cookies of the V2 encoding, plain and compressed.
const COOKIE: u32 = 0x1c84_9313;
const COMPRESSED_COOKIE: u32 = 0x1c84_9314;
/// Precision in decimal digits.
const SIGNIFICANT_DIGITS: u32 = 3;
/// Values below this power of two have a slot each: twice the resolution of three digits.
const UNIT_BITS: u32 = 11;
/// Longest duration: 2^53 ns, over a hundred days. Longer ones count as this.
pub(super) const HIGHEST: u64 = 1 << 53;

/// Counts of durations in nanoseconds.
#[derive(Debug, Clone, Default)]
pub(super) struct SparseHistogram {
    counts: BTreeMap<u32, u64>,
    max: u64,
}

impl SparseHistogram {
    pub(super) fn record(&mut self, value: u64) {
        let value = value.min(HIGHEST);
        *self.counts.entry(slot(value)).or_default() += 1;
        self.max = self.max.max(value);
    }

    /// The longest.
    pub(super) const fn max(&self) -> u64 {
        self.max
    }

    /// The last column of the log.
    pub(super) fn encode(&self) -> io::Result<String> {
        let counts = self.encoded_counts();
        let mut plain = Vec::with_capacity(40 + counts.len());
        plain.extend_from_slice(&COOKIE.to_be_bytes());
        plain.extend_from_slice(&length(&counts)?.to_be_bytes());
        // Normalizing index offset.
        plain.extend_from_slice(&0_u32.to_be_bytes());
        plain.extend_from_slice(&SIGNIFICANT_DIGITS.to_be_bytes());
        plain.extend_from_slice(&1_u64.to_be_bytes());
        plain.extend_from_slice(&HIGHEST.to_be_bytes());
        plain.extend_from_slice(&1_f64.to_be_bytes());
        plain.extend_from_slice(&counts);
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
        zlib.write_all(&plain)?;
        let compressed = zlib.finish()?;
        let mut all = COMPRESSED_COOKIE.to_be_bytes().to_vec();
        all.extend_from_slice(&length(&compressed)?.to_be_bytes());
        all.extend_from_slice(&compressed);
        Ok(STANDARD.encode(all))
    }

    /// Counts in the order of slots. A negative number is the length of a run of empty slots.
    fn encoded_counts(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut next = 0;
        for (&slot, &count) in &self.counts {
            match slot - next {
                0 => {}
                1 => zigzag(0, &mut out),
                empty => zigzag(-i64::from(empty), &mut out),
            }
            zigzag(i64::try_from(count).unwrap_or(i64::MAX), &mut out);
            next = slot + 1;
        }
        out
    }
}

fn length(bytes: &[u8]) -> io::Result<u32> {
    u32::try_from(bytes.len()).map_err(io::Error::other)
}

/// The index of a value's slot: a slot for each of the first 2,048 values, then 1,024 for each power of two.
fn slot(value: u64) -> u32 {
    let units = (1_u64 << UNIT_BITS) - 1;
    let power = 64 - UNIT_BITS - (value | units).leading_zeros();
    (power << (UNIT_BITS - 1)) + u32::try_from(value >> power).unwrap_or(u32::MAX)
}

/// ZigZag LEB128: seven bits per byte, but eight in a ninth.
fn zigzag(number: i64, out: &mut Vec<u8>) {
    let mut rest = (number << 1 ^ number >> 63).cast_unsigned();
    for _ in 0..8 {
        let low = (rest & 0x7f) as u8;
        rest >>= 7;
        if rest == 0 {
            out.push(low);
            return;
        }
        out.push(low | 0x80);
    }
    out.push((rest & 0xff) as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::Histogram;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_encoded_as_the_format_says() {
        for (number, bytes) in [
            (0, &[0][..]),
            (1, &[2]),
            (-1, &[1]),
            (64, &[0x80, 1]),
            (i64::MAX, &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        ] {
            let mut out = Vec::new();
            zigzag(number, &mut out);
            assert_eq!(out, bytes, "{number}");
        }
    }

    proptest! {
        #[test]
        fn slots_are_those_of_the_library(
            a in 0..=HIGHEST, b in 0..=HIGHEST, shift in 0_u32..53,
        ) {
            let library = Histogram::<u64>::new_with_bounds(1, HIGHEST, 3).unwrap();
            let (a, b) = (a >> shift, b >> shift);
            prop_assert_eq!(slot(a) == slot(b), library.equivalent(a, b));
            prop_assert_eq!(slot(a) < slot(b), a < b && !library.equivalent(a, b));
            let next = library.next_non_equivalent(a);
            prop_assert_eq!(slot(next), slot(a) + 1);
        }
    }
}
