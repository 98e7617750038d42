//! The histogram layout: HdrHistogram's log-linear buckets in integer nanoseconds.
//!
//! 32 unit-wide slots, then 16 linear slots for every power of two up to 2^37 ns (137 s): 544 slots, none wider than
//! 6.25 % of its lower edge. It is what `hdrhistogram` uses for one significant digit, so a slot array loads into a
//! `hdrhistogram::Histogram` without loss. The C twin is `bpf/hist.h`; a test compares both over every edge.

mod slots;

use crate::Nanos;
pub use slots::{Arena, ArenaRange, Encoder, Iter, Slots};

/// Slots with a width of one nanosecond.
pub const UNIT_SLOTS: u32 = 32;
/// Linear slots for each power of two above [`UNIT_SLOTS`].
pub const SUB_SLOTS: u32 = 16;
/// Values of 2^this ns and more are counted in the last slot.
pub const MAX_EXPONENT: u32 = 37;
/// log2 of [`UNIT_SLOTS`].
pub const UNIT_SHIFT: u32 = 5;
/// Number of slots.
pub const SLOTS: usize = (UNIT_SLOTS + (MAX_EXPONENT - UNIT_SHIFT) * SUB_SLOTS) as usize;

/// The slot that counts `value`. Values beyond the range are counted in the last slot.
pub const fn slot_of(value: Nanos) -> usize {
    let ns = value.0;
    if ns < UNIT_SLOTS as u64 {
        return ns as usize;
    }
    let exponent = 63 - ns.leading_zeros();
    if exponent >= MAX_EXPONENT {
        return SLOTS - 1;
    }
    let sub = (ns >> (exponent - (UNIT_SHIFT - 1))) as u32 - SUB_SLOTS;
    (UNIT_SLOTS + (exponent - UNIT_SHIFT) * SUB_SLOTS + sub) as usize
}

/// The smallest value that `slot` counts. A slot past the end has the range's upper bound.
pub const fn slot_lower(slot: usize) -> Nanos {
    if slot < UNIT_SLOTS as usize {
        return Nanos(slot as u64);
    }
    let above = slot as u32 - UNIT_SLOTS;
    let octave = above / SUB_SLOTS;
    Nanos(((SUB_SLOTS + above % SUB_SLOTS) as u64) << (octave + 1))
}

/// The largest value that `slot` counts, inclusive: one nanosecond less than the next slot's lower edge.
pub const fn slot_upper(slot: usize) -> Nanos {
    Nanos(slot_lower(slot + 1).0 - 1)
}

/// Counts by slot, with the true count, sum and maximum. Only slots in use are stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Sum of the values; exact, not derived from slots.
    pub sum: Nanos,
    /// The largest value; exact.
    pub max: Nanos,
    /// `(slot, count)` by ascending slot; no zero counts.
    pub slots: Slots,
}

impl Histogram {
    /// From a full slot array, as in the kernel.
    pub fn from_slots(sum: Nanos, max: Nanos, slots: impl IntoIterator<Item = u64>) -> Self {
        let mut encoder = Encoder::default();
        (0u16..).zip(slots).for_each(|(slot, count)| encoder.push(slot, count));
        Self { sum, max, slots: encoder.finish() }
    }

    /// Number of values: the sum over the slots, so that count and buckets never disagree.
    pub const fn count(&self) -> u64 {
        self.slots.count()
    }

    /// The largest value equivalent to the `q`-quantile (0..=1), as HdrHistogram's `value_at_quantile` defines it and
    /// no larger than the true maximum; `None` when empty.
    pub fn quantile(&self, q: f64) -> Option<Nanos> {
        quantile_of(self.slots.iter(), self.count(), self.max, q)
    }

    /// Adds another histogram's values.
    pub fn merge(&mut self, other: &Self) {
        self.sum.0 = self.sum.0.saturating_add(other.sum.0);
        self.max = self.max.max(other.max);
        if self.slots.is_empty() {
            self.slots.clone_from(&other.slots);
        } else if !other.slots.is_empty() {
            self.slots = self.slots.merged(&other.slots);
        }
    }

    /// The values that came after `earlier`, an older copy of this histogram. The maximum of an interval is not known;
    /// it is given as that of the last slot in use, and never more than the maximum of all.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut encoder = Encoder::default();
        let mut last = None;
        self.slots.since(&earlier.slots, |slot, count| {
            encoder.push(slot, count);
            last = Some(slot);
        });
        let max = last.map_or(Nanos(0), |slot| slot_upper(usize::from(slot)).min(self.max));
        let sum = Nanos(self.sum.0.saturating_sub(earlier.sum.0));
        Self { sum, max, slots: encoder.finish() }
    }

    /// Number of values that are at most `bound`. Exact when `bound` is a slot's upper edge.
    pub fn count_at_most(&self, bound: Nanos) -> u64 {
        self.slots
            .iter()
            .take_while(|&(slot, _)| slot_upper(usize::from(slot)) <= bound)
            .map(|(_, count)| count)
            .sum()
    }
}

/// The `q`-quantile of `count` values given by ascending slot, with maximum `max`; see [`Histogram::quantile`].
pub fn quantile_of(
    slots: impl IntoIterator<Item = (u16, u64)>,
    count: u64,
    max: Nanos,
    q: f64,
) -> Option<Nanos> {
    if count == 0 {
        return None;
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "q is clamped, so the rank is within count"
    )]
    let rank = ((q.clamp(0.0, 1.0) * count as f64).ceil() as u64).max(1);
    let mut seen = 0u64;
    for (slot, n) in slots {
        seen = seen.saturating_add(n);
        if seen >= rank {
            return Some(slot_upper(usize::from(slot)).min(max));
        }
    }
    Some(max)
}

#[cfg(test)]
mod tests;
