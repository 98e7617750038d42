//! The classic `le` bounds.
//!
//! Each is the inclusive upper edge of a histogram slot, 2^k - 1 ns, so that every cumulative count is exact. The last
//! slot also counts what lies beyond the range, so its edge is no bound: 2^36 - 1 ns (68.7 s) is the highest.

use crate::metric::{LAUNCH_DURATION, Metric, OFFCPU_DURATION};
use gpucause_abi::Nanos;
use gpucause_abi::hist::{Slots, slot_of};

/// One bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    /// The largest value that it counts.
    pub upper: Nanos,
    /// The slot whose upper edge it is.
    pub slot: u16,
    /// The bound in seconds, exact.
    pub le: &'static str,
    /// True if every histogram has this bound.
    everywhere: bool,
}

impl Bound {
    /// Returns true if histograms of this metric have this bound. [`LAUNCH_DURATION`] and [`OFFCPU_DURATION`] are exposed by default and of
    /// whole fleets, so they have fewer bounds: a factor of two apart up to 4 ms, where launches usually are, and further apart above.
    #[must_use]
    pub fn is_of(&self, metric: &Metric) -> bool {
        self.everywhere || ![LAUNCH_DURATION.name, OFFCPU_DURATION.name].contains(&metric.name)
    }
}

const fn bound(exponent: u32, le: &'static str) -> Bound {
    let upper = Nanos((1 << exponent) - 1);
    #[expect(clippy::cast_possible_truncation, reason = "there are 544 slots")]
    Bound { upper, slot: slot_of(upper) as u16, le, everywhere: true }
}

/// A bound that those do not have.
const fn finer(exponent: u32, le: &'static str) -> Bound {
    Bound { everywhere: false, ..bound(exponent, le) }
}

/// The bounds below `+Inf`, ascending.
pub static BOUNDS: [Bound; 19] = [
    bound(10, "0.000001023"),
    bound(12, "0.000004095"),
    bound(13, "0.000008191"),
    bound(14, "0.000016383"),
    bound(15, "0.000032767"),
    bound(16, "0.000065535"),
    bound(17, "0.000131071"),
    bound(18, "0.000262143"),
    bound(19, "0.000524287"),
    bound(20, "0.001048575"),
    bound(21, "0.002097151"),
    bound(22, "0.004194303"),
    finer(23, "0.008388607"),
    bound(24, "0.016777215"),
    bound(26, "0.067108863"),
    finer(28, "0.268435455"),
    bound(30, "1.073741823"),
    finer(33, "8.589934591"),
    finer(36, "68.719476735"),
];

/// Counts of values at most each bound of [`BOUNDS`], and the count of all.
#[must_use]
pub fn cumulate(slots: &Slots) -> ([u64; BOUNDS.len()], u64) {
    let mut at_most = [0; BOUNDS.len()];
    let mut seen = 0;
    let mut rest = slots.iter().peekable();
    for (bound, count) in BOUNDS.iter().zip(&mut at_most) {
        while let Some((_, n)) = rest.next_if(|&(slot, _)| slot <= bound.slot) {
            seen += n;
        }
        *count = seen;
    }
    let total = seen + rest.map(|(_, n)| n).sum::<u64>();
    (at_most, total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::LAUNCH_GAP;
    use gpucause_abi::hist::{Histogram, SLOTS, slot_upper};

    #[test]
    fn every_bound_is_the_upper_edge_of_its_slot() {
        for bound in BOUNDS {
            assert_eq!(slot_upper(bound.slot.into()), bound.upper);
            assert!(usize::from(bound.slot) < SLOTS - 1, "the last slot has no upper edge");
        }
        assert!(BOUNDS.is_sorted_by(|a, b| a.upper < b.upper));
    }

    #[test]
    fn the_text_of_a_bound_is_exact() {
        for bound in BOUNDS {
            let Nanos(ns) = bound.upper;
            assert_eq!(bound.le, format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000));
        }
    }

    #[test]
    fn launch_durations_have_fewer_bounds_a_factor_of_two_apart_below_four_milliseconds() {
        let of = |metric| BOUNDS.iter().filter(move |bound| bound.is_of(metric));
        assert_eq!(of(&LAUNCH_GAP).count(), BOUNDS.len());
        let few: Vec<_> = of(&LAUNCH_DURATION).map(|bound| bound.upper.0).collect();
        assert_eq!(few.len(), 15);
        let around = few.iter().filter(|&&upper| (4_000..4_200_000).contains(&upper));
        assert!(around.is_sorted_by(|a, b| **b == **a * 2 + 1));
    }

    #[test]
    fn cumulative_counts_are_those_of_the_histogram() {
        let counts = (0..SLOTS as u64).map(|slot| (slot * 7919) % 13);
        let histogram = Histogram::from_slots(Nanos(0), Nanos(0), counts);
        let (at_most, total) = cumulate(&histogram.slots);
        assert_eq!(total, histogram.count());
        for (bound, count) in BOUNDS.iter().zip(at_most) {
            assert_eq!(count, histogram.count_at_most(bound.upper), "le {}", bound.le);
        }
    }

    #[test]
    fn a_value_beyond_the_range_is_only_in_the_total() {
        let mut counts = vec![0; SLOTS];
        counts[slot_of(Nanos(200_000_000_000))] = 1;
        let histogram = Histogram::from_slots(Nanos(0), Nanos(0), counts);
        assert_eq!(cumulate(&histogram.slots), ([0; BOUNDS.len()], 1));
    }
}
