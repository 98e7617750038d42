//! Sparse histogram counts in a compact encoding: a daemon has many thousands of histograms with few slots in use and small
//! counts.

use std::sync::Arc;

/// First byte of an entry: gap to the previous slot, lowest bits of the count, and whether more of the count follows, seven
/// bits per byte, lowest first.
const GAP: u8 = 0b11;
const COUNT: u8 = 0b1_1111;
const COUNT_SHIFT: u32 = 2;
const COUNT_BITS: u32 = 5;
const MORE: u8 = 0x80;
/// The `MORE` bit of each of eight bytes, or of four.
const MORE_OF_EIGHT: u64 = u64::from_le_bytes([MORE; 8]);
const MORE_OF_FOUR: u64 = MORE_OF_EIGHT >> 32;

/// `(slot, count)` by ascending slot; no zero counts. Most entries take one to three bytes, shared between copies.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Slots {
    packed: Arc<[u8]>,
    count: u64,
}

impl Slots {
    /// Sum of all counts, saturating.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Returns true if no slot is in use.
    pub fn is_empty(&self) -> bool {
        self.packed.is_empty()
    }

    /// Upper bound of the number of entries.
    pub fn most(&self) -> usize {
        self.packed.len()
    }

    /// The entries.
    pub fn iter(&self) -> Iter<'_> {
        Iter { packed: &self.packed, next: 0 }
    }

    /// Returns true if both share the same entries in memory.
    pub fn is_shared_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.packed, &other.packed)
    }

    /// The sum of both.
    #[must_use]
    pub fn merged(&self, other: &Self) -> Self {
        let mut encoder = Encoder::with_capacity(self.packed.len() + other.packed.len());
        encoder.push_both(self, other);
        encoder.finish()
    }

    /// Calls `each` with every increase over `earlier`.
    #[inline]
    pub fn since(&self, earlier: &Self, mut each: impl FnMut(u16, u64)) {
        const NO_SLOT: u16 = u16::MAX;
        if self.is_shared_with(earlier) {
            return;
        }
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

/// Encodes entries, in ascending slot order.
#[derive(Debug, Default)]
pub struct Encoder {
    packed: Vec<u8>,
    count: u64,
    next: u16,
}

impl Encoder {
    /// Creates an encoder with capacity for this many bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { packed: Vec::with_capacity(bytes), ..Self::default() }
    }

    /// Adds an entry; zero counts are skipped.
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

    /// Adds the sum of both.
    pub fn push_both(&mut self, one: &Slots, other: &Slots) {
        let (mut left, mut right) = (one.iter().peekable(), other.iter().peekable());
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
            self.push(slot, count);
        }
    }

    /// The encoded entries.
    #[must_use]
    pub fn finish(self) -> Slots {
        Slots { packed: self.packed.into(), count: self.count }
    }

    /// Returns a copy of exact size, and restarts with the same buffer.
    #[must_use]
    pub fn take(&mut self) -> Slots {
        self.take_like(None)
    }

    /// Moves the entries to an arena, and restarts.
    pub fn move_to(&mut self, arena: &mut Arena) -> ArenaRange {
        let start = arena.0.len();
        arena.0.append(&mut self.packed);
        let range = ArenaRange { start, end: arena.0.len(), count: self.count };
        (self.count, self.next) = (0, 0);
        range
    }

    /// Returns a copy and restarts, as [`take`](Self::take) does, but shares the entries of `known` if equal.
    #[must_use]
    pub fn take_like(&mut self, known: Option<&Slots>) -> Slots {
        let slots = Slots { packed: like(&self.packed, known), count: self.count };
        self.packed.clear();
        (self.count, self.next) = (0, 0);
        slots
    }
}

/// A buffer for the entries of many histograms. Most turn out to be unchanged and are never copied out.
#[derive(Debug, Default)]
pub struct Arena(Vec<u8>);

/// The entries of one histogram in an [`Arena`], and the sum of their counts.
#[derive(Debug, Clone, Copy)]
pub struct ArenaRange {
    start: usize,
    end: usize,
    count: u64,
}

impl Arena {
    /// The entries.
    pub fn entries(&self, range: ArenaRange) -> Iter<'_> {
        Iter { packed: self.packed(range), next: 0 }
    }

    /// A copy of them that shares the entries of `known` if equal.
    #[must_use]
    pub fn slots_like(&self, range: ArenaRange, known: Option<&Slots>) -> Slots {
        Slots { packed: like(self.packed(range), known), count: range.count }
    }

    fn packed(&self, range: ArenaRange) -> &[u8] {
        self.0.get(range.start..range.end).unwrap_or_default()
    }
}

fn like(packed: &[u8], known: Option<&Slots>) -> Arc<[u8]> {
    known
        .filter(|known| *known.packed == *packed)
        .map_or_else(|| Arc::from(packed), |known| Arc::clone(&known.packed))
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

    /// Decodes eight bytes at a time, with few unpredictable branches.
    #[inline]
    fn fold<B, F: FnMut(B, Self::Item) -> B>(self, init: B, mut each: F) -> B {
        let mut all = init;
        let Self { mut packed, mut next } = self;
        while let Some(window) = packed.first_chunk() {
            let window = u64::from_le_bytes(*window);
            // Unrolled, as the compiler knows the run length.
            if let Some(counts) = run_of_one(window) {
                all = (next..).zip(counts).fold(all, &mut each);
                (packed, next) = (&packed[4..], next + 4);
                continue;
            }
            if let Some(counts) = run_of_two(window) {
                all = (next..).zip(counts).fold(all, &mut each);
                (packed, next) = (&packed[8..], next + 4);
                continue;
            }
            if let Some(counts) = run_of_three(window) {
                all = (next..).zip(counts).fold(all, &mut each);
                (packed, next) = (&packed[6..], next + 2);
                continue;
            }
            let Some((count, bytes)) = count(window) else { break };
            let mut rest = &packed[bytes..];
            let mut gap = u16::from(window as u8 & GAP);
            if gap == u16::from(GAP) {
                let Some((beyond, after)) = rest.split_first_chunk() else { break };
                gap += u16::from_le_bytes(*beyond);
                rest = after;
            }
            let slot = next + gap;
            all = each(all, (slot, count));
            (packed, next) = (rest, slot + 1);
        }
        for entry in (Self { packed, next }) {
            all = each(all, entry);
        }
        all
    }
}

/// The counts of four one-byte entries without gaps, if the window starts with such.
#[inline]
fn run_of_one(window: u64) -> Option<[u64; 4]> {
    let counts = window >> 2;
    let count = |index: u32| counts >> (8 * index) & 0x1f;
    (window & 0x8383_8383 == 0).then(|| [count(0), count(1), count(2), count(3)])
}

/// The counts of four two-byte entries without gaps, if the window starts with such.
#[inline]
fn run_of_two(window: u64) -> Option<[u64; 4]> {
    let counts = (window >> 2 & 0x001f_001f_001f_001f) | (window >> 3 & 0x0fe0_0fe0_0fe0_0fe0);
    let count = |index: u32| counts >> (16 * index) & 0xffff;
    (window & 0x8083_8083_8083_8083 == 0x0080_0080_0080_0080)
        .then(|| [count(0), count(1), count(2), count(3)])
}

/// The counts of two three-byte entries without gaps, if the window starts with such.
#[inline]
fn run_of_three(window: u64) -> Option<[u64; 2]> {
    let low = (window >> 2 & 0x1f00_001f) | (window >> 3 & 0x000f_e000_0fe0);
    let counts = low | (window >> 4 & 0x07f0_0007_f000);
    (window & 0x8080_8380_8083 == 0x0080_8000_8080).then_some([counts & 0x00ff_ffff, counts >> 24])
}

/// The first entry's count and length in bytes; `None` if it is longer than the window.
#[inline]
fn count(window: u64) -> Option<(u64, usize)> {
    let ends = !window & MORE_OF_FOUR;
    if ends == 0 {
        return long_count(window);
    }
    // Groups of seven bits are merged without branches.
    let before_end = (ends & ends.wrapping_neg()) - 1;
    let ones = window & before_end & !MORE_OF_EIGHT;
    let twos = (ones & 0x007f_007f) | (ones >> 1 & 0x3f80_3f80);
    let all = (twos & 0x0000_3fff) | (twos >> 2 & 0x0fff_c000);
    Some((all >> COUNT_SHIFT, (ends.trailing_zeros() / 8 + 1) as usize))
}

#[cold]
fn long_count(window: u64) -> Option<(u64, usize)> {
    let ends = !window & MORE_OF_EIGHT;
    if ends == 0 {
        return None;
    }
    let bytes = ends.trailing_zeros() / 8 + 1;
    let seven = |byte: u32| (window >> (8 * byte) & u64::from(!MORE)) << (7 * byte);
    let all = (0..bytes).fold(0, |all, byte| all | seven(byte));
    Some((all >> COUNT_SHIFT, bytes as usize))
}

impl<'a> IntoIterator for &'a Slots {
    type Item = (u16, u64);
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl FromIterator<(u16, u64)> for Slots {
    /// Accepts any order; entries of one slot add up.
    fn from_iter<I: IntoIterator<Item = (u16, u64)>>(entries: I) -> Self {
        let mut entries: Vec<(u16, u64)> = entries.into_iter().collect();
        entries.sort_by_key(|&(slot, _)| slot);
        let mut encoder = Encoder::default();
        for of_slot in entries.chunk_by(|a, b| a.0 == b.0) {
            let count = of_slot.iter().fold(0u64, |all, &(_, count)| all.saturating_add(count));
            encoder.push(of_slot[0].0, count);
        }
        encoder.finish()
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

    /// Neighbours with counts of alike size, as most are, and others.
    fn runs() -> impl Strategy<Value = Vec<(u16, u64)>> {
        let run = (0u16..6, 1usize..12, 0u32..64, any::<u64>());
        prop::collection::vec(run, 0..12).prop_map(|runs| {
            let mut entries = Vec::new();
            let mut next = 0;
            for (gap, length, bits, seed) in runs {
                next += gap;
                for turn in 0..length {
                    let count = seed.rotate_left(turn as u32 * 7) >> (63 - bits) | 1 << bits;
                    entries.push((next, count));
                    next += 1;
                }
            }
            entries
        })
    }

    proptest! {
        #[test]
        fn entries_are_the_same_one_by_one_and_all_at_once(entries in runs(), skip in 0usize..5) {
            let slots: Slots = entries.iter().copied().collect();
            let mut one_by_one = Vec::new();
            let mut rest = slots.iter();
            one_by_one.extend(std::iter::from_fn(|| rest.next()));
            prop_assert_eq!(&one_by_one, &entries);
            let mut rest = slots.iter();
            let skipped = rest.by_ref().take(skip).count();
            let mut at_once = Vec::new();
            rest.for_each(|entry| at_once.push(entry));
            prop_assert_eq!(&at_once, &entries[skipped..]);
        }

        #[test]
        fn what_is_packed_comes_out_as_it_went_in(entries in entries()) {
            let slots: Slots = entries.iter().map(|(&slot, &count)| (slot, count)).collect();
            prop_assert_eq!(slots.iter().collect::<BTreeMap<_, _>>(), entries.clone());
            prop_assert!(slots.iter().is_sorted());
            let count = entries.values().fold(0u64, |all, &n| all.saturating_add(n));
            prop_assert_eq!(slots.count(), count);
            let mut encoder = Encoder::default();
            entries.iter().for_each(|(&slot, &count)| encoder.push(slot, count));
            prop_assert_eq!(&encoder.take(), &slots);
            encoder.push(0, 1);
            prop_assert_eq!(encoder.take().iter().collect::<Vec<_>>(), [(0, 1)]);
            entries.iter().for_each(|(&slot, &count)| encoder.push(slot, count));
            let again = encoder.take_like(Some(&slots));
            prop_assert!(again == slots && again.is_shared_with(&slots));
            entries.iter().for_each(|(&slot, &count)| encoder.push(slot, count));
            encoder.push(544, 1);
            let more = encoder.take_like(Some(&slots));
            prop_assert!(!more.is_shared_with(&slots));
            prop_assert_eq!(more.count(), slots.count().saturating_add(1));
            let mut arena = Arena::default();
            encoder.push(3, 9);
            let other = encoder.move_to(&mut arena);
            entries.iter().for_each(|(&slot, &count)| encoder.push(slot, count));
            let range = encoder.move_to(&mut arena);
            prop_assert_eq!(arena.entries(other).collect::<Vec<_>>(), [(3, 9)]);
            prop_assert_eq!(arena.entries(range).collect::<BTreeMap<_, _>>(), entries);
            let again = arena.slots_like(range, Some(&slots));
            prop_assert!(again == slots && again.is_shared_with(&slots));
            prop_assert!(arena.slots_like(range, None) == slots);
            prop_assert!(!arena.slots_like(other, Some(&slots)).is_shared_with(&slots));
        }

        #[test]
        fn merging_adds_every_entry_and_what_came_since_takes_it_off_again(
            a in entries(), b in entries(),
        ) {
            let pack = |entries: &BTreeMap<u16, u64>| -> Slots {
                // Sums must not overflow: saturated counts could not be subtracted again.
                entries.iter().map(|(&slot, &count)| (slot, count >> 1 | 1)).collect()
            };
            let (a, b) = (pack(&a), pack(&b));
            let both = a.merged(&b);
            let mut expected: BTreeMap<u16, u64> = a.iter().collect();
            b.iter().for_each(|(slot, count)| *expected.entry(slot).or_default() += count);
            prop_assert_eq!(both.iter().collect::<BTreeMap<_, _>>(), expected);
            let since = |later: &Slots, earlier: &Slots| {
                let mut encoder = Encoder::default();
                later.since(earlier, |slot, count| encoder.push(slot, count));
                encoder.finish()
            };
            prop_assert_eq!(since(&both, &a), b);
            prop_assert!(since(&a, &both).is_empty());
        }
    }
}
