//! Native histogram buckets, whose bounds are powers of 2^(1/8) s.
//!
//! Slots of our histograms do not align with them, so the whole slot is counted in the bucket of its geometric mean, always the
//! same one: Prometheus takes a bucket that shrinks for a counter reset. Slots are narrower than buckets, so buckets have no
//! gaps above 32 ns, and a quantile is off by at most [`MAX_ERROR`].

use gpucause_abi::hist::{SLOTS, Slots, slot_lower, slot_upper};
use std::sync::LazyLock;

/// Buckets grow by 2^(2^-schema): eight per power of two, the growth nearest to the 10 % that client libraries commonly
/// request. Finer buckets would be finer than the slots.
pub const SCHEMA: i32 = 3;
/// Values up to this many seconds are in the zero bucket: 2^-30 s is the last bound below one nanosecond.
pub const ZERO_THRESHOLD: f64 = 1.0 / (1u64 << 30) as f64;
/// The greatest distance of a value from any point of the bucket that counts it, as a fraction of the value; values beyond the
/// last slot excepted.
pub const MAX_ERROR: f64 = 0.11;

/// A run of buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// For the first run the index of its first bucket, for others the number of empty buckets that precede it.
    pub offset: i32,
    /// Number of buckets.
    pub length: u32,
}

/// The zero bucket and the positive buckets of a histogram, as encoded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Buckets {
    /// Count of the zero bucket.
    pub zero_count: u64,
    /// Runs of buckets in use.
    pub spans: Vec<Span>,
    /// The count of each bucket, less that of the previous one.
    pub deltas: Vec<i64>,
}

/// The bucket index of slot 1; slot 0 is the zero bucket. A bucket ends at 2^(index/8) s.
const FIRST_INDEX: i32 = -239;

/// The bucket of each slot, counted from the first.
static BUCKET_OF_SLOT: LazyLock<[u16; SLOTS]> = LazyLock::new(|| std::array::from_fn(bucket_of));

fn bucket_of(slot: usize) -> u16 {
    let middle = (slot_lower(slot).0 as f64 * slot_upper(slot).0 as f64).sqrt() * 1e-9;
    let index = (middle.log2() * f64::from(1 << SCHEMA)).ceil();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "from 1 ns to 137 s it is 0 to 296, and 0 ns is clamped to 0"
    )]
    let bucket = (index - f64::from(FIRST_INDEX)) as u16;
    bucket
}

impl Buckets {
    /// From counts by slot.
    #[must_use]
    pub fn of(slots: &Slots) -> Self {
        let mut buckets = Self::default();
        buckets.set(slots);
        buckets
    }

    /// Replaces the content.
    pub fn set(&mut self, slots: &Slots) {
        self.spans.clear();
        self.deltas.clear();
        self.zero_count = 0;
        let buckets = &*BUCKET_OF_SLOT;
        // The bucket that the last slot is of, and its count so far.
        let (mut current, mut count) = (0, 0);
        // The index behind the last complete bucket, and the count of that.
        let (mut end, mut previous) = (0, 0);
        for (slot, n) in slots {
            if slot == 0 {
                self.zero_count = n;
                continue;
            }
            let index = FIRST_INDEX + i32::from(buckets[usize::from(slot).min(SLOTS - 1)]);
            if count > 0 && index != current {
                self.push(current - end, count, previous);
                (end, previous, count) = (current + 1, count, 0);
            }
            current = index;
            count += n;
        }
        if count > 0 {
            self.push(current - end, count, previous);
        }
    }

    /// Appends the bucket so many behind the last one.
    fn push(&mut self, offset: i32, count: u64, previous: u64) {
        match self.spans.last_mut() {
            Some(span) if offset == 0 => span.length += 1,
            _ => self.spans.push(Span { offset, length: 1 }),
        }
        self.deltas.push(count.wrapping_sub(previous).cast_signed());
    }
}

#[cfg(test)]
mod tests;
