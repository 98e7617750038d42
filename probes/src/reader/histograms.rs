//! Histograms, put together from their chunks.

use std::collections::BTreeMap;

use gpucause_abi::Nanos;
use gpucause_abi::hist::Histogram;
use gpucause_abi::op::{CopyKind, OpId};
use gpucause_abi::record::{CALL_COLD, CALL_STALLED, CHUNK_SLOTS, HistKey, HistKind, HistRecord};
use gpucause_abi::snapshot::{CallSnapshot, ProcessSnapshot};
use gpucause_abi::state::{Reason, Role};

use super::{ReadError, Reader, decode, for_each};

impl Reader {
    /// Fills in histograms; returns the entries of the map.
    pub(super) fn read_histograms(
        &self,
        processes: &mut BTreeMap<u32, ProcessSnapshot>,
    ) -> Result<u64, ReadError> {
        let mut entries = 0;
        for_each(&self.hists, "hists", |key, value| {
            entries += 1;
            let key: HistKey = decode("hists", key)?;
            if let Some(process) = processes.get_mut(&key.proc_id) {
                let record: HistRecord = decode("hists", value)?;
                if let Some(whole) = histogram_of(process, &key) {
                    add_chunk(whole, key.chunk, &record);
                }
            }
            Ok(())
        })?;
        for process in processes.values_mut() {
            let calls =
                process.calls.iter_mut().flat_map(|call| [&mut call.durations, &mut call.stalled]);
            let offcpu = process.offcpu.iter_mut().map(|(_, _, stretches)| stretches);
            let runqueue = process.runqueue.iter_mut().map(|(_, waits)| waits);
            let copies = process.copies.iter_mut().map(|(_, _, copies)| copies);
            let gaps = std::iter::once(&mut process.launch_gap);
            for whole in calls.chain(offcpu).chain(runqueue).chain(copies).chain(gaps) {
                whole.slots.sort_unstable_by_key(|&(slot, _)| slot);
            }
            for call in &mut process.calls {
                // So far those that never left the CPU.
                call.durations.merge(&call.stalled);
            }
            process.calls.sort_unstable_by_key(|call| (call.op, call.cold));
            process.offcpu.sort_unstable_by_key(|&(role, reason, _)| (role, reason));
            process.runqueue.sort_unstable_by_key(|&(role, _)| role);
        }
        Ok(entries)
    }
}

/// Adds a chunk's values. Chunks come in no order and share no slot: the slots are sorted when all are there.
fn add_chunk(whole: &mut Histogram, chunk: u16, record: &HistRecord) {
    whole.sum.0 = whole.sum.0.saturating_add(record.sum_ns);
    whole.max = whole.max.max(Nanos(record.max_ns));
    let first = chunk.saturating_mul(CHUNK_SLOTS as u16);
    let slots = (first..).zip(record.slots);
    whole.slots.extend(slots.filter(|&(_, count)| count > 0));
}

/// The histogram that a chunk is part of; `None` for a key from a newer source tree.
fn histogram_of<'a>(process: &'a mut ProcessSnapshot, key: &HistKey) -> Option<&'a mut Histogram> {
    let role = || u8::try_from(key.a).ok().and_then(Role::from_raw);
    match u8::try_from(key.kind).ok().and_then(HistKind::from_raw)? {
        HistKind::Call => {
            let (op, cold) = (OpId(key.a), key.b & CALL_COLD != 0);
            let at = process.calls.iter().position(|call| call.op == op && call.cold == cold);
            let at = at.unwrap_or_else(|| {
                let (durations, stalled) = Default::default();
                process.calls.push(CallSnapshot { op, cold, durations, stalled });
                process.calls.len() - 1
            });
            let call = process.calls.get_mut(at)?;
            Some(if key.b & CALL_STALLED == 0 { &mut call.durations } else { &mut call.stalled })
        }
        HistKind::Offcpu => {
            let (role, reason) = (role()?, Reason::from_raw(u8::try_from(key.b).ok()?)?);
            let at = process.offcpu.iter().position(|&(r, why, _)| r == role && why == reason);
            let at = at.unwrap_or_else(|| {
                process.offcpu.push((role, reason, Histogram::default()));
                process.offcpu.len() - 1
            });
            process.offcpu.get_mut(at).map(|(_, _, whole)| whole)
        }
        HistKind::Copy => {
            let kind = u8::try_from(key.a).ok().and_then(CopyKind::from_raw)?;
            let at = process.copies.iter().position(|&(k, class, _)| k == kind && class == key.b);
            let at = at.unwrap_or_else(|| {
                process.copies.push((kind, key.b, Histogram::default()));
                process.copies.len() - 1
            });
            process.copies.get_mut(at).map(|(_, _, whole)| whole)
        }
        HistKind::LaunchGap => Some(&mut process.launch_gap),
        HistKind::Runqueue => {
            let role = role()?;
            let at = process.runqueue.iter().position(|&(r, _)| r == role);
            let at = at.unwrap_or_else(|| {
                process.runqueue.push((role, Histogram::default()));
                process.runqueue.len() - 1
            });
            process.runqueue.get_mut(at).map(|(_, whole)| whole)
        }
    }
}
