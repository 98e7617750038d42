//! Values that came between two copies of a histogram, ready to be judged: what is kept is packed, what is looked at more than
//! once is not.

use gpucause_abi::Nanos;
use gpucause_abi::hist::{Histogram, quantile_of, slot_upper};

/// The values.
#[derive(Debug, Default)]
pub(crate) struct Values {
    /// The largest: as for [`Histogram::since`], that of the last slot in use, and never more than the maximum of all.
    pub(crate) max: Nanos,
    pub(crate) sum: Nanos,
    pub(crate) count: u64,
    /// `(slot, count)` by ascending slot; no zero counts.
    pub(crate) slots: Vec<(u16, u64)>,
}

impl Values {
    /// What `now` has more than `before`; all of it when there is no before.
    pub(crate) fn since(before: Option<&Histogram>, now: &Histogram) -> Self {
        let Some(before) = before else {
            let slots = now.slots.iter().collect();
            return Self { max: now.max, sum: now.sum, count: now.count(), slots };
        };
        // Most counts take two bytes.
        let mut slots = Vec::with_capacity(now.slots.most() / 2);
        now.slots.since(&before.slots, |slot, count| slots.push((slot, count)));
        Self::of(slots, Nanos(now.sum.0.saturating_sub(before.sum.0)), now.max)
    }

    /// What there is beside `part`, which is some of these values.
    pub(crate) fn without(&self, part: &Self) -> Self {
        let mut rest = part.slots.iter().peekable();
        let left = |&(slot, count): &(u16, u64)| {
            while rest.next_if(|&&(taken, _)| taken < slot).is_some() {}
            let taken = rest.next_if(|&&(taken, _)| taken == slot).map_or(0, |&(_, n)| n);
            (count > taken).then(|| (slot, count - taken))
        };
        let slots = self.slots.iter().filter_map(left).collect();
        Self::of(slots, Nanos(self.sum.0.saturating_sub(part.sum.0)), self.max)
    }

    fn of(slots: Vec<(u16, u64)>, sum: Nanos, most: Nanos) -> Self {
        let last = slots.last().map(|&(slot, _)| slot_upper(usize::from(slot)));
        let max = last.map_or(Nanos(0), |last| last.min(most));
        let count = slots.iter().fold(0u64, |all, &(_, n)| all.saturating_add(n));
        Self { max, sum, count, slots }
    }

    /// See [`Histogram::quantile`].
    pub(crate) fn quantile(&self, q: f64) -> Option<Nanos> {
        quantile_of(self.slots.iter().copied(), self.count, self.max, q)
    }
}
