//! Assembles histograms from their chunks. Unchanged ones share their slots with the previous snapshot, as several
//! snapshots are retained.

use std::collections::BTreeMap;

use gpucause_abi::Nanos;
use gpucause_abi::hist::{Arena, ArenaRange, Encoder, Histogram, Slots};
use gpucause_abi::op::{CopyKind, OpId};
use gpucause_abi::record::{
    CALL_COLD, CALL_NESTED, CALL_STALLED, CHUNK_SLOTS, HistKey, HistKind, HistRecord,
};
use gpucause_abi::snapshot::{CallSnapshot, ProcessSnapshot};
use gpucause_abi::state::{Reason, Role};
use parking_lot::Mutex;

use super::{ReadError, Reader};

/// The identity of a histogram: a [`HistKey`] without chunk number.
type Whole = (u32, u16, u16, u16);

/// The previous slots, ordered by histogram.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<Vec<(Whole, Slots)>>);

impl Known {
    /// Takes the slots and leaves none.
    fn take(&self) -> Vec<(Whole, Slots)> {
        std::mem::take(&mut self.0.lock())
    }

    fn put(&self, known: Vec<(Whole, Slots)>) {
        *self.0.lock() = known;
    }
}

fn position(known: &[(Whole, Slots)], whole: Whole) -> Option<usize> {
    known.binary_search_by_key(&whole, |&(whole, _)| whole).ok()
}

fn find(known: &[(Whole, Slots)], whole: Whole) -> Option<&Slots> {
    position(known, whole).and_then(|at| known.get(at)).map(|(_, slots)| slots)
}

/// Finds histograms one after the other in their order: `known` loses what comes before.
fn next<'a>(known: &mut &'a [(Whole, Slots)], whole: Whole) -> Option<&'a Slots> {
    while let [(first, slots), rest @ ..] = *known {
        if *first >= whole {
            return (*first == whole).then_some(slots);
        }
        *known = rest;
    }
    None
}

/// A decoded chunk.
struct Chunk {
    key: HistKey,
    sum: Nanos,
    max: Nanos,
    /// Slot numbers of the whole histogram.
    slots: ArenaRange,
}

impl Chunk {
    fn of(key: HistKey, record: &HistRecord, encoder: &mut Encoder, arena: &mut Arena) -> Self {
        let first = key.chunk.saturating_mul(CHUNK_SLOTS as u16);
        (first..).zip(record.slots).for_each(|(slot, count)| encoder.push(slot, count));
        let slots = encoder.move_to(arena);
        Self { key, sum: Nanos(record.sum_ns), max: Nanos(record.max_ns), slots }
    }

    /// Equal for chunks of one histogram.
    const fn whole(&self) -> Whole {
        whole(&self.key)
    }

    /// Orders chunks by histogram, and within one by chunk number.
    fn order(&self) -> u128 {
        let HistKey { proc_id, kind, a, b, chunk } = self.key;
        let of_process = [kind, a, b, chunk];
        of_process.into_iter().fold(proc_id.into(), |order, part| order << 16 | u128::from(part))
    }
}

const fn whole(key: &HistKey) -> Whole {
    (key.proc_id, key.kind, key.a, key.b)
}

impl Reader {
    /// Fills in histograms; returns the entries of the map.
    pub(super) fn read_histograms(
        &self,
        processes: &mut BTreeMap<u32, ProcessSnapshot>,
    ) -> Result<u64, ReadError> {
        let known = self.known_slots.take();
        let mut chunks = Vec::with_capacity(known.len());
        let (mut encoder, mut arena) = (Encoder::default(), Arena::default());
        let entries = self.hists.each(|key: HistKey, record: HistRecord| {
            chunks.push(Chunk::of(key, &record, &mut encoder, &mut arena));
        })?;
        // Maps are unordered.
        chunks.sort_unstable_by_key(Chunk::order);
        chunks.dedup_by_key(|chunk| chunk.order());
        let (mut read, mut beside) = (Vec::with_capacity(known.len()), Vec::new());
        let mut rest = known.as_slice();
        for of_process in chunks.chunk_by(|a, b| a.key.proc_id == b.key.proc_id) {
            let id = of_process.first().map(|chunk| chunk.key.proc_id);
            let Some(process) = id.and_then(|id| processes.get_mut(&id)) else { continue };
            let wholes = of_process.chunk_by(|a, b| a.whole() == b.whole());
            let keys = wholes.clone().filter_map(<[Chunk]>::first).map(|chunk| chunk.key);
            process.calls.reserve_exact(keys.filter(is_of_calls).count());
            for of_whole in wholes {
                let Some(key) = of_whole.first().map(|chunk| chunk.key) else { continue };
                let known = next(&mut rest, whole(&key));
                let histogram = joined(of_whole, &arena, &mut encoder, known);
                read.push((whole(&key), histogram.slots.clone()));
                put(process, &key, histogram);
            }
            // So far these are the calls that never left the CPU.
            for call in process.calls.iter_mut().filter(|call| !call.stalled.slots.is_empty()) {
                let key = (process.id.0, HistKind::Call as u16, call.op.0, flags(call));
                add_stalled(call, &mut encoder, find(&known, key));
                let slots = call.durations.slots.clone();
                match position(&read, key).and_then(|at| read.get_mut(at)) {
                    Some((_, own)) => *own = slots,
                    // Every call of the op left the CPU.
                    None => beside.push((key, slots)),
                }
            }
            process.calls.sort_unstable_by_key(CallSnapshot::kind);
        }
        read.append(&mut beside);
        read.sort_by_key(|&(whole, _)| whole);
        self.known_slots.put(read);
        Ok(entries)
    }
}

/// Joins the chunks of a histogram.
fn joined(
    chunks: &[Chunk],
    arena: &Arena,
    encoder: &mut Encoder,
    known: Option<&Slots>,
) -> Histogram {
    let sum = chunks.iter().fold(0u64, |all, chunk| all.saturating_add(chunk.sum.0));
    let max = chunks.iter().map(|chunk| chunk.max).max().unwrap_or_default();
    let slots = match chunks {
        [only] => arena.slots_like(only.slots, known),
        several => {
            let entries = several.iter().flat_map(|chunk| arena.entries(chunk.slots));
            entries.for_each(|(slot, count)| encoder.push(slot, count));
            encoder.take_like(known)
        }
    };
    Histogram { sum: Nanos(sum), max, slots }
}

/// Adds the stalled calls.
fn add_stalled(call: &mut CallSnapshot, encoder: &mut Encoder, known: Option<&Slots>) {
    let CallSnapshot { durations, stalled, .. } = call;
    encoder.push_both(&durations.slots, &stalled.slots);
    durations.slots = encoder.take_like(known);
    durations.sum.0 = durations.sum.0.saturating_add(stalled.sum.0);
    durations.max = durations.max.max(stalled.max);
}

/// Returns true if a histogram is of calls that never left the CPU. Nearly all calls have one.
const fn is_of_calls(key: &HistKey) -> bool {
    key.kind == HistKind::Call as u16 && key.b & CALL_STALLED == 0
}

/// The flags of calls that never left the CPU.
const fn flags(call: &CallSnapshot) -> u16 {
    (if call.cold { CALL_COLD } else { 0 }) | (if call.nested { CALL_NESTED } else { 0 })
}

/// Stores a histogram by kind and key. Unknown kinds come from a newer source tree.
fn put(process: &mut ProcessSnapshot, key: &HistKey, whole: Histogram) {
    let role = || u8::try_from(key.a).ok().and_then(Role::from_raw);
    match u8::try_from(key.kind).ok().and_then(HistKind::from_raw) {
        Some(HistKind::Call) => {
            let op = OpId(key.a);
            let (cold, nested) = (key.b & CALL_COLD != 0, key.b & CALL_NESTED != 0);
            let same = |call: &CallSnapshot| call.kind() == (op, cold, nested);
            let at = process.calls.iter().rposition(same).unwrap_or_else(|| {
                let (durations, stalled) = Default::default();
                process.calls.push(CallSnapshot { op, cold, nested, durations, stalled });
                process.calls.len() - 1
            });
            if let Some(call) = process.calls.get_mut(at) {
                let stalled = key.b & CALL_STALLED != 0;
                *(if stalled { &mut call.stalled } else { &mut call.durations }) = whole;
            }
        }
        Some(HistKind::Offcpu) => {
            let reason = u8::try_from(key.b).ok().and_then(Reason::from_raw);
            if let (Some(role), Some(reason)) = (role(), reason) {
                process.offcpu.push((role, reason, whole));
            }
        }
        Some(HistKind::Copy) => {
            if let Some(kind) = u8::try_from(key.a).ok().and_then(CopyKind::from_raw) {
                process.copies.push((kind, key.b, whole));
            }
        }
        Some(HistKind::LaunchGap) => process.launch_gap = whole,
        Some(HistKind::Runqueue) => process.runqueue.extend(role().map(|role| (role, whole))),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::btree_set;
    use proptest::prelude::*;
    use proptest::sample::select;

    fn chunk(&(whole, chunk): &(Whole, u16)) -> Chunk {
        let (proc_id, kind, a, b) = whole;
        let key = HistKey { proc_id, kind, a, b, chunk };
        let record = HistRecord { sum_ns: 0, max_ns: 0, slots: [0; CHUNK_SLOTS] };
        Chunk::of(key, &record, &mut Encoder::default(), &mut Arena::default())
    }

    /// Identity of a chunk: most pairs have parts in common.
    fn identity() -> impl Strategy<Value = (Whole, u16)> {
        let part = || select(vec![0, 1, 255, 256, u16::MAX]);
        ((select(vec![0, 1, 256, u32::MAX]), part(), part(), part()), 0..8u16)
    }

    proptest! {
        #[test]
        fn chunks_are_in_the_order_of_their_histograms(
            one in identity(),
            other in identity(),
        ) {
            prop_assert_eq!(chunk(&one).order().cmp(&chunk(&other).order()), one.cmp(&other));
        }

        #[test]
        fn one_after_the_other_histograms_are_found_as_by_search(
            known in btree_set((0..4u32, 0..4u16), 0..16),
            sought in btree_set((0..4u32, 0..4u16), 0..16),
        ) {
            let whole = |&(id, kind): &(u32, u16)| (id, kind, 0, 0);
            let known: Vec<_> = known.iter().map(|key| (whole(key), Slots::default())).collect();
            let mut rest = known.as_slice();
            for key in sought.iter().map(whole) {
                prop_assert_eq!(next(&mut rest, key).is_some(), find(&known, key).is_some());
            }
        }
    }
}
