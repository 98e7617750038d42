use super::*;
use gpucause_abi::Nanos;
use gpucause_abi::hist::{Histogram, slot_of};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// The bucket of a slot.
fn index_of(slot: usize) -> i32 {
    FIRST_INDEX + i32::from(BUCKET_OF_SLOT[slot])
}

/// Where a bucket begins (exclusive) and ends (inclusive), in nanoseconds, as Prometheus has it.
fn bounds(index: i32) -> (f64, f64) {
    let bound = |index: i32| (f64::from(index) / 8.0).exp2() * 1e9;
    (bound(index - 1), bound(index))
}

/// Decodes spans and deltas as a reader does.
fn counts(buckets: &Buckets) -> BTreeMap<i32, u64> {
    let mut counts = BTreeMap::new();
    let (mut index, mut count) = (0, 0i64);
    let mut deltas = buckets.deltas.iter();
    for span in &buckets.spans {
        index += span.offset;
        for _ in 0..span.length {
            count += deltas.next().unwrap();
            assert_eq!(counts.insert(index, count.try_into().unwrap()), None);
            index += 1;
        }
    }
    assert_eq!(deltas.next(), None);
    counts
}

#[test]
fn no_value_is_further_from_its_bucket_than_is_said() {
    let mut worst: f64 = 0.0;
    for slot in 1..SLOTS {
        let (begin, end) = bounds(index_of(slot));
        let (lower, upper) = (slot_lower(slot).0 as f64, slot_upper(slot).0 as f64);
        worst = worst.max(end / lower - 1.0).max(1.0 - begin / upper);
        let middle = (lower * upper).sqrt();
        assert!(begin < middle && middle <= end, "slot {slot}");
    }
    assert!(worst <= MAX_ERROR, "{worst}");
    assert!(worst > MAX_ERROR - 0.01, "{worst}: less could be said");
}

#[test]
fn no_slot_is_so_near_to_a_bound_that_rounding_could_move_it() {
    for slot in 1..SLOTS {
        let middle = (slot_lower(slot).0 as f64 * slot_upper(slot).0 as f64).sqrt();
        let (begin, end) = bounds(index_of(slot));
        assert!(middle / begin > 1.0 + 1e-6 && end / middle > 1.0 + 1e-6, "slot {slot}");
    }
}

#[test]
fn later_slots_go_into_later_buckets_without_gap() {
    let indices: Vec<i32> = (1..SLOTS).map(index_of).collect();
    assert!(indices.is_sorted());
    assert!(indices[15..].windows(2).all(|two| two[1] - two[0] <= 1));
    let (begin, _) = bounds(indices[0]);
    assert!(begin >= ZERO_THRESHOLD * 1e9, "the zero bucket must not overlap");
}

#[test]
fn zero_is_in_the_zero_bucket() {
    let buckets = Buckets::of(&vec![(0, 5), (1, 2)].into());
    assert_eq!(buckets.zero_count, 5);
    assert_eq!(counts(&buckets), BTreeMap::from([(-239, 2)]));
    assert_eq!(Buckets::of(&Slots::default()), Buckets::default());
}

#[test]
fn a_gap_between_buckets_begins_a_span() {
    let slot = |ns| u16::try_from(slot_of(Nanos(ns))).unwrap();
    // 2^-10 s is 976_562.5 ns.
    let buckets =
        Buckets::of(&vec![(slot(950_000), 1), (slot(1_000_000), 4), (slot(2_000_000), 2)].into());
    let span = |offset, length| Span { offset, length };
    assert_eq!(buckets.spans, [span(-80, 2), span(7, 1)]);
    assert_eq!(buckets.deltas, [1, 3, -2]);
}

proptest! {
    #[test]
    fn buckets_hold_every_value_and_never_shrink(
        earlier in prop::collection::vec(0u64..50, SLOTS), more in prop::collection::vec(0u64..50, SLOTS),
    ) {
        let later: Vec<u64> = earlier.iter().zip(&more).map(|(a, b)| a + b).collect();
        let of = |slots: &[u64]| {
            let histogram = Histogram::from_slots(Nanos(0), Nanos(0), slots.iter().copied());
            let buckets = Buckets::of(&histogram.slots);
            let counts = counts(&buckets);
            assert_eq!(counts.values().sum::<u64>() + buckets.zero_count, histogram.count());
            (buckets.zero_count, counts)
        };
        let ((zero, before), (zero_later, after)) = (of(&earlier), of(&later));
        prop_assert!(zero <= zero_later);
        for (index, count) in before {
            prop_assert!(after.get(&index).is_some_and(|later| *later >= count));
        }
    }

    #[test]
    fn a_quantile_read_from_buckets_is_within_the_error_of_the_exact_one(
        mut values in prop::collection::vec((0u64..37).prop_flat_map(|bits| (1u64 << bits)..(2u64 << bits).min(1 << 37)), 1..300),
        q in 0.001f64..=1.0, within in 0.0f64..=1.0,
    ) {
        let mut slots = vec![0; SLOTS];
        for &value in &values {
            slots[slot_of(Nanos(value))] += 1;
        }
        let histogram = Histogram::from_slots(Nanos(0), Nanos(0), slots);
        values.sort_unstable();
        let rank = ((q * values.len() as f64).ceil() as usize).max(1);
        let exact = values[rank - 1] as f64;
        let mut seen = 0;
        let counts = counts(&Buckets::of(&histogram.slots));
        let index = counts.iter().find(|&(_, count)| {
            seen += *count as usize;
            seen >= rank
        });
        let (begin, end) = bounds(*index.unwrap().0);
        // Wherever in the bucket an interpolation puts it.
        let read = begin + (end - begin) * within;
        prop_assert!((read / exact - 1.0).abs() <= MAX_ERROR, "{read} for {exact}");
    }
}
