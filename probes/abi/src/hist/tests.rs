use super::*;
use proptest::prelude::*;

#[test]
fn slots_tile_the_range_without_gap_or_overlap() {
    assert_eq!(SLOTS, 544);
    for slot in 0..SLOTS {
        let (lower, upper) = (slot_lower(slot), slot_upper(slot));
        assert_eq!(slot_of(lower), slot);
        assert_eq!(slot_of(upper), slot);
        assert_eq!(slot_lower(slot + 1).0, upper.0 + 1);
    }
    assert_eq!(slot_lower(SLOTS).0, 1 << MAX_EXPONENT);
}

#[test]
fn no_slot_is_wider_than_a_sixteenth_of_its_lower_edge() {
    for slot in UNIT_SLOTS as usize..SLOTS {
        let width = slot_upper(slot).0 - slot_lower(slot).0 + 1;
        assert!(width * 16 <= slot_lower(slot).0, "slot {slot}");
    }
}

#[test]
fn values_beyond_the_range_are_counted_in_the_last_slot() {
    assert_eq!(slot_of(Nanos(1 << MAX_EXPONENT)), SLOTS - 1);
    assert_eq!(slot_of(Nanos(u64::MAX)), SLOTS - 1);
}

#[test]
fn layout_equals_that_of_the_hdrhistogram_crate() {
    let hdr =
        hdrhistogram::Histogram::<u64>::new_with_bounds(1, (1 << MAX_EXPONENT) - 1, 1).unwrap();
    for slot in 0..SLOTS {
        assert_eq!(hdr.lowest_equivalent(slot_lower(slot).0), slot_lower(slot).0);
        assert_eq!(hdr.highest_equivalent(slot_lower(slot).0), slot_upper(slot).0);
    }
}

fn recorded(values: &[u64]) -> Histogram {
    let mut slots = vec![0; SLOTS];
    for &v in values {
        slots[slot_of(Nanos(v))] += 1;
    }
    let sum = values.iter().sum();
    Histogram::from_slots(Nanos(sum), Nanos(values.iter().copied().max().unwrap_or(0)), slots)
}

proptest! {
    #[test]
    fn every_value_lies_within_its_slot(value in any::<u64>().prop_map(|v| v >> (v % 64))) {
        let slot = slot_of(Nanos(value));
        prop_assert!(slot_lower(slot).0 <= value);
        prop_assert!(value <= slot_upper(slot).0 || slot == SLOTS - 1);
    }

    #[test]
    fn quantiles_are_within_one_slot_of_the_exact_ones(
        mut values in prop::collection::vec(0u64..1 << 36, 1..400), q in 0.0f64..=1.0,
    ) {
        let histogram = recorded(&values);
        values.sort_unstable();
        let rank = ((q * values.len() as f64).ceil() as usize).max(1);
        let exact = values[rank - 1];
        let got = histogram.quantile(q).unwrap().0;
        prop_assert!(got >= exact && got - exact <= exact / 16 + 1, "{got} for {exact}");
    }

    #[test]
    fn merging_is_the_histogram_of_both(
        a in prop::collection::vec(0u64..1 << 36, 0..100), b in prop::collection::vec(0u64..1 << 36, 0..100),
    ) {
        let mut merged = recorded(&a);
        merged.merge(&recorded(&b));
        prop_assert_eq!(merged, recorded(&[a, b].concat()));
    }

    #[test]
    fn what_came_since_is_what_was_added(
        a in prop::collection::vec(0u64..1 << 36, 0..100), b in prop::collection::vec(0u64..1 << 36, 0..100),
    ) {
        let later = recorded(&[a.clone(), b.clone()].concat());
        let since = later.since(&recorded(&a));
        prop_assert_eq!(&since.slots, &recorded(&b).slots);
        prop_assert_eq!(since.sum, recorded(&b).sum);
        prop_assert!(since.max >= recorded(&b).max);
    }
}
