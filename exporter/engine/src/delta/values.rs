//! The delta of two histograms as a plain array: snapshots keep histograms packed, evaluation reads slots many times.

use std::ops::Range;

use gpucause_abi::Nanos;
use gpucause_abi::hist::{Histogram, SLOTS, quantile_of, slot_lower, slot_of, slot_upper};

#[derive(Debug, Default)]
pub(crate) struct Values {
    /// Upper bound of the last slot in use, at most the overall maximum, as in [`Histogram::since`].
    pub(crate) max: Nanos,
    pub(crate) sum: Nanos,
    pub(crate) count: u64,
    /// By slot, zero outside `used`; empty until first set.
    counts: Vec<u64>,
    /// From the first slot with a count to the last.
    used: Range<usize>,
}

impl Values {
    /// The increase from `before` to `now`; all of `now` without a `baseline`.
    pub(crate) fn since(baseline: Option<&Histogram>, now: &Histogram) -> Self {
        let mut values = Self::default();
        values.set_since(baseline, now);
        values
    }

    /// Sets the values to those of [`since`](Self::since), reusing the array.
    pub(crate) fn set_since(&mut self, baseline: Option<&Histogram>, now: &Histogram) {
        if let Some(used) = self.counts.get_mut(self.used.clone()) {
            used.fill(0);
        }
        if self.counts.len() < SLOTS {
            self.counts.resize(SLOTS, 0);
        }
        let unchanged = |baseline: &&Histogram| baseline.slots.is_shared_with(&now.slots);
        if let Some(baseline) = baseline.filter(unchanged) {
            self.used = 0..0;
            self.finish(Nanos(now.sum.0.saturating_sub(baseline.sum.0)), now.max);
            return;
        }
        let counts = self.counts.as_mut_slice();
        let (mut first, mut end) = (usize::MAX, 0);
        now.slots.iter().for_each(|(slot, count)| {
            let slot = usize::from(slot);
            if let Some(now) = counts.get_mut(slot) {
                *now = count;
                (first, end) = (first.min(slot), slot + 1);
            }
        });
        self.used = first.min(end)..end;
        let Some(baseline) = baseline else {
            (self.max, self.sum, self.count) = (now.max, now.sum, now.count());
            return;
        };
        baseline.slots.iter().for_each(|(slot, count)| {
            if let Some(now) = counts.get_mut(usize::from(slot)) {
                *now = now.saturating_sub(count);
            }
        });
        self.finish(Nanos(now.sum.0.saturating_sub(baseline.sum.0)), now.max);
    }

    /// These values without `part` of them.
    pub(crate) fn without(&self, part: &Self) -> Self {
        let mut counts = self.counts.clone();
        for (count, taken) in counts.iter_mut().zip(&part.counts) {
            *count = count.saturating_sub(*taken);
        }
        let mut rest = Self { counts, used: self.used.clone(), ..Self::default() };
        rest.finish(Nanos(self.sum.0.saturating_sub(part.sum.0)), self.max);
        rest
    }

    /// Derives the other fields from the counts within `used`.
    fn finish(&mut self, sum: Nanos, most: Nanos) {
        let Range { start, end } = self.used.clone();
        let counts = self.counts.get(start..end).unwrap_or_default();
        let count = counts.iter().fold(0u64, |all, &count| all.saturating_add(count));
        let first = counts.iter().position(|&count| count > 0);
        let last = counts.iter().rposition(|&count| count > 0);
        self.used = match (first, last) {
            (Some(first), Some(last)) => start + first..start + last + 1,
            _ => 0..0,
        };
        let max = last.map_or(Nanos(0), |last| slot_upper(start + last).min(most));
        (self.max, self.sum, self.count) = (max, sum, count);
    }

    /// From the first slot with a count to the last.
    pub(crate) fn used(&self) -> Range<usize> {
        self.used.clone()
    }

    /// Counts of consecutive slots, clipped to those in use.
    pub(crate) fn counts(&self, slots: Range<usize>) -> &[u64] {
        let (start, end) = (slots.start.max(self.used.start), slots.end.min(self.used.end));
        self.counts.get(start..end).unwrap_or_default()
    }

    /// The sum of values in the slots from that of `least`, estimated from their centres and bounded by that of all.
    pub(crate) fn from(&self, least: Nanos) -> Nanos {
        let first = slot_of(least).max(self.used.start);
        let counts = (first..).zip(self.counts(first..usize::MAX));
        let sum = counts.fold(0u64, |sum, (slot, &count)| {
            let (low, most) = (slot_lower(slot).0, slot_upper(slot).min(self.max).0);
            sum.saturating_add(count.saturating_mul(low.midpoint(most.max(low))))
        });
        Nanos(sum).min(self.sum)
    }

    /// The number of values in the slots from that of `least`.
    pub(crate) fn count_from(&self, least: Nanos) -> u64 {
        self.counts(slot_of(least)..usize::MAX).iter().sum()
    }

    /// See [`Histogram::quantile`].
    pub(crate) fn quantile(&self, q: f64) -> Option<Nanos> {
        let first = u16::try_from(self.used.start).unwrap_or(u16::MAX);
        let counts = self.counts(self.used()).iter().copied();
        quantile_of((first..).zip(counts), self.count, self.max, q)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn histogram() -> impl Strategy<Value = Histogram> {
        let slot = prop_oneof![0u16..544, 200u16..230];
        let count = any::<u64>().prop_map(|n| n >> (n % 64));
        let slots = prop::collection::btree_map(slot, count, 0..40);
        (slots, any::<u64>(), any::<u64>()).prop_map(|(slots, sum, max)| Histogram {
            sum: Nanos(sum),
            max: Nanos(max >> (max % 64)),
            slots: slots.into_iter().filter(|&(_, count)| count > 0).collect(),
        })
    }

    fn has_the_same_values(values: &Values, plain: &Histogram) -> Result<(), TestCaseError> {
        prop_assert_eq!((values.max, values.sum), (plain.max, plain.sum));
        prop_assert_eq!(values.count, plain.count());
        let counts: Vec<_> = (0u16..544)
            .map(|slot| (slot, values.counts(slot.into()..usize::from(slot) + 1).iter().sum()))
            .filter(|&(_, count): &(u16, u64)| count > 0)
            .collect();
        prop_assert_eq!(&counts, &plain.slots.iter().collect::<Vec<_>>());
        let used = counts.first().zip(counts.last());
        let used = used
            .map_or(0..0, |(&(first, _), &(last, _))| usize::from(first)..usize::from(last) + 1);
        prop_assert_eq!(values.used(), used);
        for q in [0.0, 0.01, 0.5, 0.99, 1.0] {
            prop_assert_eq!(values.quantile(q), plain.quantile(q));
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn values_equal_those_of_the_packed_histograms_when_the_array_is_reused(
            copies in prop::collection::vec((prop::option::of(histogram()), histogram()), 1..4),
        ) {
            let mut values = Values::default();
            for (baseline, now) in &copies {
                values.set_since(baseline.as_ref(), now);
                let plain = baseline.as_ref().map_or_else(|| now.clone(), |b| now.since(b));
                has_the_same_values(&values, &plain)?;
            }
        }

        #[test]
        fn all_without_a_part_is_what_came_after_it(all in histogram(), part in histogram()) {
            let rest = Values::since(None, &all).without(&Values::since(None, &part));
            has_the_same_values(&rest, &all.since(&part))?;
        }
    }
}
