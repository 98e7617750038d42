//! The native histogram buckets that Prometheus keeps, by powers of 2^(1/8) s.
//!
//! They do not line up with the slots of our histograms, so each slot goes whole into the bucket that holds its geometric
//! middle. It always goes into the same one: a bucket that shrinks is a counter reset to Prometheus. A slot is narrower than
//! a bucket, so buckets have no gaps above 32 ns, and order is kept: the bucket that a quantile is read from is the one
//! with the slot that the quantile is in, and both reach [`MAX_ERROR`] apart at most.

use super::protobuf::message::BucketSpan;
use gpucause_abi::hist::{SLOTS, slot_lower, slot_upper};
use std::sync::LazyLock;

/// Buckets grow by 2^(2^-schema): eight a power of two, the growth nearest to 10 %, which is what client libraries
/// commonly ask for. Finer buckets than this would be finer than the slots.
pub const SCHEMA: i32 = 3;
/// Values up to this many seconds are in the zero bucket: 2^-30 s is the last bound below one nanosecond.
pub const ZERO_THRESHOLD: f64 = 1.0 / (1u64 << 30) as f64;
/// How far apart, in parts of the true value, any point of a bucket and any value counted in it can be. Values beyond the
/// last slot are known to be that only.
pub const MAX_ERROR: f64 = 0.11;

/// The positive buckets of a histogram as they are sent, and its zero bucket.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Buckets {
    /// Count of the zero bucket.
    pub zero_count: u64,
    /// Runs of buckets in use.
    pub spans: Vec<BucketSpan>,
    /// The count of each of their buckets, less that of the one before.
    pub deltas: Vec<i64>,
}

/// The index of the bucket that a slot goes into: the bucket ends at 2^(index/8) s. `None` is the zero bucket.
#[must_use]
pub fn bucket_of(slot: u16) -> Option<i32> {
    static INDICES: LazyLock<[Option<i32>; SLOTS]> =
        LazyLock::new(|| std::array::from_fn(index_of_slot));
    INDICES.get(usize::from(slot)).copied().flatten()
}

fn index_of_slot(slot: usize) -> Option<i32> {
    if slot == 0 {
        return None;
    }
    let middle = (slot_lower(slot).0 as f64 * slot_upper(slot).0 as f64).sqrt() * 1e-9;
    #[expect(clippy::cast_possible_truncation, reason = "from 1 ns to 137 s it is -239 to 57")]
    let index = (middle.log2() * f64::from(1 << SCHEMA)).ceil() as i32;
    Some(index)
}

impl Buckets {
    /// From `(slot, count)` by ascending slot.
    #[must_use]
    pub fn of(slots: &[(u16, u64)]) -> Self {
        let mut buckets = Self::default();
        // Index and count of the last bucket.
        let mut last: Option<(i32, u64)> = None;
        let mut before = 0;
        for &(slot, count) in slots {
            match (bucket_of(slot), &mut last) {
                (None, _) => buckets.zero_count += count,
                (Some(index), Some((same, total))) if *same == index => *total += count,
                (Some(index), _) => {
                    if let Some((_, total)) = last {
                        buckets.push_delta(&mut before, total);
                    }
                    buckets.open(index, last.map(|(index, _)| index));
                    last = Some((index, count));
                }
            }
        }
        if let Some((_, total)) = last {
            buckets.push_delta(&mut before, total);
        }
        buckets
    }

    fn push_delta(&mut self, before: &mut u64, count: u64) {
        self.deltas.push(count.wrapping_sub(*before).cast_signed());
        *before = count;
    }

    /// Adds a bucket to the last span, or begins another. The first span's offset is the index of its first bucket, that of
    /// the others the number of buckets left out before them.
    fn open(&mut self, index: i32, before: Option<i32>) {
        match (before, self.spans.last_mut()) {
            (Some(before), Some(span)) if before + 1 == index => span.length += 1,
            (Some(before), _) => {
                self.spans.push(BucketSpan { offset: index - before - 1, length: 1 });
            }
            (None, _) => self.spans.push(BucketSpan { offset: index, length: 1 }),
        }
    }
}

#[cfg(test)]
mod tests;
