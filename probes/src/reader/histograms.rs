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
        chunks.sort_unstable_by_key(|chunk| (chunk.whole(), chunk.key.chunk));
        chunks.dedup_by_key(|chunk| (chunk.whole(), chunk.key.chunk));
        let (mut read, mut beside) = (Vec::with_capacity(known.len()), Vec::new());
        for of_process in chunks.chunk_by(|a, b| a.key.proc_id == b.key.proc_id) {
            let id = of_process.first().map(|chunk| chunk.key.proc_id);
            let Some(process) = id.and_then(|id| processes.get_mut(&id)) else { continue };
            for of_whole in of_process.chunk_by(|a, b| a.whole() == b.whole()) {
                let Some(key) = of_whole.first().map(|chunk| chunk.key) else { continue };
                let known = find(&known, whole(&key));
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
