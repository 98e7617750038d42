//! Counts by slot, packed: a daemon keeps many thousands of histograms, of which each has few slots in use, side by side, with
//! small counts.

/// Bits of an entry's first byte: how many slots lie between this one and the one before, the lowest bits of the count, and
/// whether more of the count follows, seven bits a byte, the lowest first.
const GAP: u8 = 0b11;
const COUNT: u8 = 0b1_1111;
const COUNT_SHIFT: u32 = 2;
const COUNT_BITS: u32 = 5;
const MORE: u8 = 0x80;

/// `(slot, count)` by ascending slot; no zero counts. Takes one to three bytes for most of them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Slots {
    packed: Box<[u8]>,
    count: u64,
}

impl Slots {
    /// The sum of all counts; the largest number when it is more than that.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Whether no slot is in use.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.packed.is_empty()
    }

    /// How many entries there can be at most.
    #[must_use]
    pub const fn most(&self) -> usize {
        self.packed.len()
    }

    /// The entries.
    #[must_use]
    pub const fn iter(&self) -> Iter<'_> {
        Iter { packed: &self.packed, next: 0 }
    }

    /// The counts of both.
    #[must_use]
    pub fn merged(&self, other: &Self) -> Self {
        let mut packer = Packer::with_room(self.packed.len() + other.packed.len());
        let (mut left, mut right) = (self.iter().peekable(), other.iter().peekable());
        loop {
            let (slot, count) = match (left.peek().copied(), right.peek().copied()) {
                (Some((a, n)), Some((b, m))) if a == b => {
                    left.next();
                    right.next();
                    (a, n.saturating_add(m))
                }
                (Some((a, _)), Some((b, m))) if b < a => {
                    right.next();
                    (b, m)
                }
                (Some(entry), _) => {
                    left.next();
                    entry
                }
                (None, Some(entry)) => {
                    right.next();
                    entry
                }
                (None, None) => break,
            };
            packer.push(slot, count);
        }
        packer.finish()
    }

    /// Calls `each` with what these have more than `earlier`, entry by entry.
    #[inline]
    pub fn since(&self, earlier: &Self, mut each: impl FnMut(u16, u64)) {
        const NO_SLOT: u16 = u16::MAX;
        let mut rest = earlier.iter();
        let mut before = rest.next().unwrap_or((NO_SLOT, 0));
        for (slot, count) in self {
            while before.0 < slot {
                before = rest.next().unwrap_or((NO_SLOT, 0));
            }
            if before.0 != slot {
                each(slot, count);
            } else if count > before.1 {
                each(slot, count - before.1);
            }
        }
    }
}

impl std::fmt::Debug for Slots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

/// Packs entries; they must come by ascending slot.
#[derive(Debug, Default)]
pub struct Packer {
    packed: Vec<u8>,
    count: u64,
    next: u16,
}

impl Packer {
    /// With nothing packed yet, and room for this many bytes.
    #[must_use]
    pub fn with_room(bytes: usize) -> Self {
        Self { packed: Vec::with_capacity(bytes), ..Self::default() }
    }

    /// Adds an entry; a count of zero is none.
    #[inline]
    pub fn push(&mut self, slot: u16, count: u64) {
        debug_assert!(slot >= self.next, "slot {slot} after {}", self.next);
        if count == 0 {
            return;
        }
        self.count = self.count.saturating_add(count);
        let gap = slot.saturating_sub(self.next);
        self.next = slot.saturating_add(1);
        let short = u8::try_from(gap).unwrap_or(GAP).min(GAP);
        let low = (count as u8 & COUNT) << COUNT_SHIFT;
        let mut rest = count >> COUNT_BITS;
        self.packed.push(short | low | if rest > 0 { MORE } else { 0 });
        while rest > 0 {
            let byte = rest as u8 & !MORE;
            rest >>= 7;
            self.packed.push(byte | if rest > 0 { MORE } else { 0 });
        }
        if short == GAP {
            let rest = gap - u16::from(GAP);
            self.packed.extend_from_slice(&rest.to_le_bytes());
        }
    }

    /// What was packed.
    #[must_use]
    pub fn finish(self) -> Slots {
        Slots { packed: self.packed.into_boxed_slice(), count: self.count }
    }

    /// The same as a copy of the right size, and begins anew in the room that there is.
    #[must_use]
    pub fn take(&mut self) -> Slots {
        let slots = Slots { packed: self.packed.as_slice().into(), count: self.count };
        self.packed.clear();
        (self.count, self.next) = (0, 0);
        slots
    }
}

/// Entries of [`Slots`].
#[derive(Debug, Clone)]
pub struct Iter<'a> {
    packed: &'a [u8],
    next: u16,
}

impl Iter<'_> {
    #[inline]
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.packed.split_first() else { return 0 };
        self.packed = rest;
        first
    }
}

impl Iterator for Iter<'_> {
    type Item = (u16, u64);

    #[inline]
    fn next(&mut self) -> Option<(u16, u64)> {
        let (&head, rest) = self.packed.split_first()?;
        self.packed = rest;
        let mut count = u64::from(head >> COUNT_SHIFT & COUNT);
        let (mut more, mut shift) = (head & MORE != 0, COUNT_BITS);
        while more {
            let byte = self.byte();
            count |= u64::from(byte & !MORE) << shift;
            (more, shift) = (byte & MORE != 0, shift + 7);
        }
        let mut gap = u16::from(head & GAP);
        if gap == u16::from(GAP) {
            gap += u16::from_le_bytes([self.byte(), self.byte()]);
        }
        let slot = self.next + gap;
        self.next = slot + 1;
        Some((slot, count))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.packed.len()))
    }
}

impl<'a> IntoIterator for &'a Slots {
    type Item = (u16, u64);
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl FromIterator<(u16, u64)> for Slots {
    /// Entries may come in any order; those of one slot add up.
    fn from_iter<I: IntoIterator<Item = (u16, u64)>>(entries: I) -> Self {
        let mut entries: Vec<(u16, u64)> = entries.into_iter().collect();
        entries.sort_by_key(|&(slot, _)| slot);
        let mut packer = Packer::default();
        for of_slot in entries.chunk_by(|a, b| a.0 == b.0) {
            let count = of_slot.iter().fold(0u64, |all, &(_, count)| all.saturating_add(count));
            packer.push(of_slot[0].0, count);
        }
        packer.finish()
    }
}

impl From<Vec<(u16, u64)>> for Slots {
    fn from(entries: Vec<(u16, u64)>) -> Self {
        entries.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn entries() -> impl Strategy<Value = BTreeMap<u16, u64>> {
        let count = any::<u64>().prop_map(|n| (n >> (n % 64)).max(1));
        prop::collection::btree_map(0u16..544, count, 0..80)
    }

    proptest! {
        #[test]
        fn what_is_packed_comes_out_as_it_went_in(entries in entries()) {
            let slots: Slots = entries.iter().map(|(&slot, &count)| (slot, count)).collect();
            prop_assert_eq!(slots.iter().collect::<BTreeMap<_, _>>(), entries.clone());
            prop_assert!(slots.iter().is_sorted());
            let count = entries.values().fold(0u64, |all, &n| all.saturating_add(n));
            prop_assert_eq!(slots.count(), count);
            let mut packer = Packer::default();
            entries.iter().for_each(|(&slot, &count)| packer.push(slot, count));
            prop_assert_eq!(&packer.take(), &slots);
            packer.push(0, 1);
            prop_assert_eq!(packer.take().iter().collect::<Vec<_>>(), [(0, 1)]);
        }

        #[test]
        fn merging_adds_every_entry_and_what_came_since_takes_it_off_again(
            a in entries(), b in entries(),
        ) {
            let pack = |entries: &BTreeMap<u16, u64>| -> Slots {
                // Sums must not overflow: what was cut off could not come out again.
                entries.iter().map(|(&slot, &count)| (slot, count >> 1 | 1)).collect()
            };
            let (a, b) = (pack(&a), pack(&b));
            let both = a.merged(&b);
            let mut expected: BTreeMap<u16, u64> = a.iter().collect();
            b.iter().for_each(|(slot, count)| *expected.entry(slot).or_default() += count);
            prop_assert_eq!(both.iter().collect::<BTreeMap<_, _>>(), expected);
            let since = |later: &Slots, earlier: &Slots| {
                let mut packer = Packer::default();
                later.since(earlier, |slot, count| packer.push(slot, count));
                packer.finish()
            };
            prop_assert_eq!(since(&both, &a), b);
            prop_assert!(since(&a, &both).is_empty());
        }
    }
}
