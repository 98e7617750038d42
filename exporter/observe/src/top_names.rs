//! Tracks the names with the most time individually, and aggregates the rest into `other`.
//!
//! Which names those are changes, and a counter must never decrease: a name that is tracked later starts with all its time, while
//! the time that was added to `other` stays there. Rates are always right; sums since the start may count such time twice.

use gpucause_abi::Nanos;
use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// Names of one process and metric.
#[derive(Debug)]
pub(crate) struct TopNames<K> {
    /// Time of each name at the last update.
    last: HashMap<K, Nanos>,
    other: Nanos,
    /// Times that a name was added to `other`.
    aggregated: u64,
}

impl<K> Default for TopNames<K> {
    fn default() -> Self {
        Self { last: HashMap::new(), other: Nanos(0), aggregated: 0 }
    }
}

impl<K: Clone + Eq + Hash + Ord> TopNames<K> {
    /// The tracked names, at most `limit`, most time first, and the time of all others; `totals` are the cumulative times of all.
    pub(crate) fn update(
        &mut self,
        totals: &HashMap<K, Nanos>,
        limit: usize,
    ) -> (Vec<(K, Nanos)>, Nanos) {
        let mut ranked: Vec<_> = totals.iter().map(|(name, &time)| (name.clone(), time)).collect();
        ranked.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        let top: Vec<(K, Nanos)> = ranked.iter().take(limit).cloned().collect();
        for (name, time) in ranked.iter().skip(limit) {
            let last = self.last.get(name).copied().unwrap_or_default();
            let added = time.0.saturating_sub(last.0);
            self.other.0 += added;
            self.aggregated += u64::from(added > 0);
        }
        self.last.clone_from(totals);
        (top, self.other)
    }

    /// The name as of the last update, to be shared.
    pub(crate) fn known<Q: Hash + Eq + ?Sized>(&self, name: &Q) -> Option<K>
    where
        K: Borrow<Q>,
    {
        self.last.get_key_value(name).map(|(name, _)| name.clone())
    }

    /// Times that a name was added to `other`.
    #[must_use]
    pub(crate) const fn aggregated(&self) -> u64 {
        self.aggregated
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn totals(times: &[(&'static str, u64)]) -> HashMap<&'static str, Nanos> {
        times.iter().map(|&(name, time)| (name, Nanos(time))).collect()
    }

    #[test]
    fn the_names_with_the_most_time_are_tracked_individually() {
        let mut names = TopNames::default();
        let (top, other) = names.update(&totals(&[("a", 5), ("b", 9), ("c", 1), ("d", 2)]), 2);
        assert_eq!(top, [("b", Nanos(9)), ("a", Nanos(5))]);
        assert_eq!(other, Nanos(3));
        assert_eq!(names.aggregated(), 2);
    }

    #[test]
    fn a_name_that_rises_leaves_what_it_gave_to_the_others() {
        let mut names = TopNames::default();
        names.update(&totals(&[("a", 5), ("b", 1)]), 1);
        let (top, other) = names.update(&totals(&[("a", 5), ("b", 9)]), 1);
        assert_eq!(top, [("b", Nanos(9))]);
        assert_eq!(other, Nanos(1));
        let (_, other) = names.update(&totals(&[("a", 7), ("b", 9)]), 1);
        assert_eq!(other, Nanos(3), "only what came since it fell");
    }

    proptest! {
        #[test]
        fn the_others_never_decrease(steps in prop::collection::vec((0usize..8, 1u64..1000), 1..60)) {
            let mut names = TopNames::default();
            let mut times: HashMap<usize, Nanos> = HashMap::new();
            let mut last = Nanos(0);
            for (name, time) in steps {
                times.entry(name).or_default().0 += time;
                let (top, other) = names.update(&times, 3);
                prop_assert!(top.len() <= 3);
                prop_assert!(other >= last);
                last = other;
            }
        }
    }
}
