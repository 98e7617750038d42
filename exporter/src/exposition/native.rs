//! The native histogram buckets that Prometheus keeps, by powers of 2^(1/8) s.
//!
//! They do not line up with the slots of our histograms, so each slot goes whole into the bucket that holds its geometric
//! middle. It always goes into the same one: a bucket that shrinks is a counter reset to Prometheus. A slot is narrower than
//! a bucket, so buckets have no gaps above 32 ns, and order is kept: the bucket that a quantile is read from is the one
//! with the slot that the quantile is in, and both reach [`MAX_ERROR`] apart at most.

use gpucause_abi::hist::{SLOTS, Slots, slot_lower, slot_upper};
use std::sync::LazyLock;

/// Buckets grow by 2^(2^-schema): eight a power of two, the growth nearest to 10 %, which is what client libraries
/// commonly ask for. Finer buckets than this would be finer than the slots.
pub const SCHEMA: i32 = 3;
/// Values up to this many seconds are in the zero bucket: 2^-30 s is the last bound below one nanosecond.
pub const ZERO_THRESHOLD: f64 = 1.0 / (1u64 << 30) as f64;
/// How far apart, in parts of the true value, any point of a bucket and any value counted in it can be. Values beyond the
/// last slot are known to be that only.
pub const MAX_ERROR: f64 = 0.11;

/// A run of buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Of the first run the index of its first bucket, of others the number of buckets left out before it.
    pub offset: i32,
    /// Number of buckets.
    pub length: u32,
}

/// The positive buckets of a histogram as they are sent, and its zero bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Buckets {
    /// Count of the zero bucket.
    pub zero_count: u64,
    /// Runs of buckets in use.
    pub spans: Vec<Span>,
    /// The count of each of their buckets, less that of the one before.
    pub deltas: Vec<i64>,
}

/// The index of slot 1's bucket; that of slot 0 is the zero bucket. A bucket ends at 2^(index/8) s.
const FIRST_INDEX: i32 = -239;
/// Buckets from the first slot's to the last one's.
const BUCKETS: usize = 297;

/// The bucket that each slot goes into, counted from the first.
static PLACES: LazyLock<[u16; SLOTS]> = LazyLock::new(|| std::array::from_fn(place_of));

fn place_of(slot: usize) -> u16 {
    let middle = (slot_lower(slot).0 as f64 * slot_upper(slot).0 as f64).sqrt() * 1e-9;
    let index = (middle.log2() * f64::from(1 << SCHEMA)).ceil();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "from 1 ns to 137 s it is 0 to 296, and 0 ns is cut to 0"
    )]
    let place = (index - f64::from(FIRST_INDEX)) as u16;
    place
}

impl Buckets {
    /// From counts by slot.
    #[must_use]
    pub fn of(slots: &Slots) -> Self {
        let mut buckets = Self::default();
        buckets.set(slots);
        buckets
    }

    /// The same in the place of what was there.
    pub fn set(&mut self, slots: &Slots) {
        self.spans.clear();
        self.deltas.clear();
        self.zero_count = 0;
        let places = &*PLACES;
        let place = |slot: u16| usize::from(places[usize::from(slot).min(SLOTS - 1)]);
        // Counts of values up to the end of each bucket in use: written without reading what was there.
        let (mut up_to, mut seen) = ([0u64; BUCKETS], 0);
        let mut used = 0..0;
        for (slot, count) in slots {
            if slot == 0 {
                self.zero_count = count;
                continue;
            }
            seen += count;
            let place = place(slot);
            up_to[place] = seen;
            used = if used.is_empty() { place..place + 1 } else { used.start..place + 1 };
        }
        // Of the span to come, or of the one that is open.
        let (mut offset, mut length) = (FIRST_INDEX + i32::try_from(used.start).unwrap_or(0), 0);
        let (mut below, mut before) = (0, 0);
        for &seen in &up_to[used] {
            if seen == 0 {
                if length > 0 {
                    self.spans.push(Span { offset, length });
                    (offset, length) = (0, 0);
                }
                offset += 1;
                continue;
            }
            length += 1;
            let count = seen - below;
            self.deltas.push(count.wrapping_sub(before).cast_signed());
            (below, before) = (seen, count);
        }
        if length > 0 {
            self.spans.push(Span { offset, length });
        }
    }
}

#[cfg(test)]
mod tests;
