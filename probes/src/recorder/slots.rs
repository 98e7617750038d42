//! Lock-free reads of the ring's slots.
//!
//! A slot's `turn` is odd while it is written and differs between laps, so a copy is consistent when the turn was that of
//! its lap before and after. Where the ring cannot be mapped, each slot is read by a system call.

use std::num::NonZero;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use gpucause_abi::event::EventRecord;
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use nix::sys::mman::{MapFlags as MmapFlags, ProtFlags, mmap, munmap};
use zerocopy::FromBytes as _;

use super::RecorderError;

const SLOT_BYTES: usize = size_of::<EventRecord>();
const SLOT_WORDS: usize = SLOT_BYTES / size_of::<u64>();

/// The state of a ring index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotRead {
    /// A complete event.
    Event(EventRecord),
    /// Being written, or about to be.
    Unfinished,
    /// Overwritten, or never written.
    Gone,
}

/// The ring.
#[derive(Debug)]
pub(super) struct Slots {
    source: Source,
    /// A power of two.
    count: u32,
}

#[derive(Debug)]
enum Source {
    Mapped(Mapping),
    Syscall(MapHandle),
}

/// `turn` and `given_up` of a slot.
type Heads = (u32, u32);

impl Slots {
    pub(super) fn new(ring: MapHandle, count: u32) -> Self {
        let source = match Mapping::of(&ring, count as usize * SLOT_BYTES) {
            Ok(mapping) => Source::Mapped(mapping),
            Err(error) => {
                tracing::warn!(%error, "cannot map the event ring; each event is read with a system call");
                Source::Syscall(ring)
            }
        };
        Self { source, count }
    }

    pub(super) fn count(&self) -> u64 {
        self.count.into()
    }

    /// Reads an index below the ring's head.
    pub(super) fn read(&self, index: u64) -> Result<SlotRead, RecorderError> {
        let slot = u32::try_from(index % self.count()).unwrap_or(0);
        let before = self.heads(slot)?;
        if let Some(read) = verdict(before, self.lap(index)) {
            return Ok(read);
        }
        // Acquire, here and after the copy, keeps the copy between the two reads of the turn.
        fence(Ordering::Acquire);
        let words = self.words(slot)?;
        fence(Ordering::Acquire);
        if self.heads(slot)?.0 != before.0 {
            return Ok(SlotRead::Gone);
        }
        Ok(SlotRead::Event(zerocopy::transmute!(words)))
    }

    #[expect(clippy::cast_possible_truncation, reason = "laps wrap, in the programs as here")]
    fn lap(&self, index: u64) -> u32 {
        (index >> self.count.trailing_zeros()) as u32
    }

    fn heads(&self, slot: u32) -> Result<Heads, RecorderError> {
        match &self.source {
            Source::Mapped(mapping) => Ok(mapping.heads(slot)),
            Source::Syscall(ring) => Ok(split(lookup(ring, slot)?[0])),
        }
    }

    fn words(&self, slot: u32) -> Result<[u64; SLOT_WORDS], RecorderError> {
        match &self.source {
            Source::Mapped(mapping) => Ok(mapping.words(slot)),
            Source::Syscall(ring) => lookup(ring, slot),
        }
    }
}

/// The state of a slot in this lap; `None` when it can be read.
fn verdict((turn, given_up): Heads, lap: u32) -> Option<SlotRead> {
    let writing = lap.wrapping_mul(2).wrapping_add(1);
    let written = writing.wrapping_add(1);
    if turn == written {
        return None;
    }
    if turn.wrapping_sub(written).cast_signed() > 0 {
        return Some(SlotRead::Gone);
    }
    // A writer in the slot will publish; one that gave up has marked it.
    let gave_up = given_up != 0 && given_up.wrapping_sub(lap.wrapping_add(1)).cast_signed() >= 0;
    Some(if turn != writing && gave_up { SlotRead::Gone } else { SlotRead::Unfinished })
}

/// The two halves of a word, in memory order.
fn split(word: u64) -> (u32, u32) {
    zerocopy::transmute!(word)
}

fn lookup(ring: &MapHandle, slot: u32) -> Result<[u64; SLOT_WORDS], RecorderError> {
    let failed = |error| RecorderError::broken("ring", &error);
    let bytes = ring.lookup(&slot.to_ne_bytes(), MapFlags::ANY).map_err(failed)?;
    let bytes = bytes.unwrap_or_default();
    let whole = <[u64; SLOT_WORDS]>::read_from_bytes(&bytes);
    whole.map_err(|_| RecorderError::Broken("the ring has slots of an unexpected size".to_owned()))
}

/// A read-only mapping of the ring.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone, and is only read, in whole words.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn of(ring: &MapHandle, bytes: usize) -> nix::Result<Self> {
        let length = NonZero::new(bytes).ok_or(nix::errno::Errno::EINVAL)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let base =
            unsafe { mmap(None, length, ProtFlags::PROT_READ, MmapFlags::MAP_SHARED, ring, 0) }?;
        Ok(Self { base: base.cast(), bytes })
    }

    fn at(&self, slot: u32, offset: usize) -> NonNull<u8> {
        let at = slot as usize * SLOT_BYTES + offset;
        debug_assert!(at < self.bytes);
        // SAFETY: slots are below the number that the mapping was made for, and offsets below their size.
        unsafe { self.base.add(at) }
    }

    fn heads(&self, slot: u32) -> Heads {
        // Relaxed, as a read-only mapping allows no other load; callers add fences.
        let load = |offset| {
            // SAFETY: the word lies within the mapping, is aligned, and is written by the kernel programs only, whole.
            unsafe { AtomicU32::from_ptr(self.at(slot, offset).cast().as_ptr()) }
                .load(Ordering::Relaxed)
        };
        (
            load(std::mem::offset_of!(EventRecord, turn)),
            load(std::mem::offset_of!(EventRecord, given_up)),
        )
    }

    fn words(&self, slot: u32) -> [u64; SLOT_WORDS] {
        std::array::from_fn(|word| {
            let at = self.at(slot, word * size_of::<u64>());
            // SAFETY: as above. What a program writes meanwhile in parts of the word is found out by the turn.
            unsafe { AtomicU64::from_ptr(at.cast().as_ptr()) }.load(Ordering::Relaxed)
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and nothing refers to it any more.
        let unmapped = unsafe { munmap(self.base.cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns of a lap: while it is written, and when it can be read.
    fn turns(lap: u32) -> [u32; 2] {
        [2 * lap + 1, 2 * lap + 2]
    }

    #[test]
    fn a_slot_is_read_in_its_own_lap_only() {
        let [writing, written] = turns(7);
        assert_eq!(verdict((written, 0), 7), None);
        assert_eq!(verdict((writing, 0), 7), Some(SlotRead::Unfinished));
        assert_eq!(
            verdict((turns(6)[1], 0), 7),
            Some(SlotRead::Unfinished),
            "its writer is yet to come"
        );
        assert_eq!(verdict((turns(8)[0], 0), 7), Some(SlotRead::Gone), "it is written over");
        assert_eq!(verdict((0, 0), 0), Some(SlotRead::Unfinished));
    }

    #[test]
    fn an_event_is_lost_when_its_writer_gave_up_and_when_the_next_did() {
        let [stuck, _] = turns(6);
        assert_eq!(verdict((stuck, 8), 7), Some(SlotRead::Gone));
        assert_eq!(verdict((stuck, 9), 7), Some(SlotRead::Gone));
        assert_eq!(verdict((stuck, 7), 7), Some(SlotRead::Unfinished), "that was an earlier lap's");
        assert_eq!(verdict((turns(7)[0], 9), 7), Some(SlotRead::Unfinished), "it is in the slot");
    }
}
