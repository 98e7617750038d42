//! Identifiers of traces and spans, which are stable across exports of the same file.

use crate::trace::fnv1a;

pub(super) type TraceId = [u8; 16];
pub(super) type SpanId = [u8; 8];

/// The source of identifiers: hashes of the node's name, of a number, and the start.
#[derive(Debug, Clone, Copy)]
pub(super) struct Identity {
    node: u64,
    number: u64,
    start: u64,
}

impl Identity {
    /// Returns the identity of an event, by its sequence on its node. The event's start distinguishes recordings of one node.
    pub(super) fn of_event(node: &str, sequence: u64, start: u64) -> Self {
        Self { node: hash(node), number: sequence, start }
    }

    /// Returns the identity of a chain, by its id.
    pub(super) fn of_chain(node: &str, id: &str, start: u64) -> Self {
        Self { node: !hash(node), number: hash(id), start }
    }

    pub(super) fn trace(self) -> TraceId {
        let high = not_zero(mix(self.node ^ mix(self.start)));
        let low = mix(self.number);
        (u128::from(high) << 64 | u128::from(low)).to_be_bytes()
    }

    pub(super) fn span(self) -> SpanId {
        not_zero(mix(self.number.wrapping_add(self.node))).to_be_bytes()
    }
}

/// An identifier of zeros is invalid.
const fn not_zero(id: u64) -> u64 {
    if id == 0 { 1 } else { id }
}

fn hash(text: &str) -> u64 {
    fnv1a(text.as_bytes())
}

/// The finaliser of SplitMix64: different numbers stay different.
const fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn no_two_events_of_a_node_have_one_identity() {
        let spans: HashSet<SpanId> =
            (0..100_000).map(|number| Identity::of_event("a", number, 7).span()).collect();
        assert_eq!(spans.len(), 100_000);
    }

    proptest! {
        #[test]
        fn an_identity_depends_on_nothing_but_what_it_names(
            node in ".{0,20}", number: u64, start: u64,
        ) {
            let (one, two) =
                (Identity::of_event(&node, number, start), Identity::of_event(&node, number, start));
            prop_assert_eq!(one.trace(), two.trace());
            prop_assert_eq!(one.span(), two.span());
            prop_assert_ne!(one.trace(), [0; 16]);
            prop_assert_ne!(one.span(), [0; 8]);
            let later = Identity::of_event(&node, number, start.wrapping_add(1));
            prop_assert_ne!(one.trace(), later.trace());
        }
    }
}
