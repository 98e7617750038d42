//! The slots of the ring, read while the programs write.
//!
//! A slot's `turn` is odd while it is written, and each lap of the ring has turns of its own, so a copy is whole when the turn was
//! that of its lap both before and after. Where the ring cannot be mapped a slot is read by a system call, as slow as that is.

use std::num::NonZero;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use gpucause_abi::event::{EVENT_WORDS, EventRecord};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use nix::sys::mman::{MapFlags as MmapFlags, ProtFlags, mmap, munmap};

use super::RecorderError;

const SLOT_BYTES: usize = size_of::<EventRecord>();
const SLOT_WORDS: usize = SLOT_BYTES / size_of::<u64>();

/// What is at an index of the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// This.
    Event(EventRecord),
    /// It is being written, or about to be.
    Unfinished,
    /// It was written over, or never written.
    Gone,
}

/// The ring, however it can be read.
#[derive(Debug)]
pub(super) struct Slots {
    source: Source,
    /// A power of two.
    count: u32,
}

#[derive(Debug)]
enum Source {
    Mapped(Mapping),
    Looked(MapHandle),
}

/// `turn` and `given_up` of a slot.
type Heads = (u32, u32);

impl Slots {
    pub(super) fn new(ring: MapHandle, count: u32) -> Self {
        let source = match Mapping::of(&ring, count as usize * SLOT_BYTES) {
            Ok(mapping) => Source::Mapped(mapping),
            Err(error) => {
                tracing::warn!(%error, "the ring of events is read with a system call for each");
                Source::Looked(ring)
            }
        };
        Self { source, count }
    }

    pub(super) fn count(&self) -> u64 {
        self.count.into()
    }

    /// What is at an index below the ring's head.
    pub(super) fn look(&self, index: u64) -> Result<Look, RecorderError> {
        let slot = u32::try_from(index % self.count()).unwrap_or(0);
        let before = self.heads(slot)?;
        if let Some(look) = verdict(before, self.lap(index)) {
            return Ok(look);
        }
        // Acquire, and again behind the copy: it lies between the two looks at the turn.
        fence(Ordering::Acquire);
        let words = self.words(slot)?;
        fence(Ordering::Acquire);
        if self.heads(slot)?.0 != before.0 {
            return Ok(Look::Gone);
        }
        Ok(Look::Event(event(&words)))
    }

    #[expect(clippy::cast_possible_truncation, reason = "laps wrap, in the programs as here")]
    fn lap(&self, index: u64) -> u32 {
        (index >> self.count.trailing_zeros()) as u32
    }

    fn heads(&self, slot: u32) -> Result<Heads, RecorderError> {
        match &self.source {
            Source::Mapped(mapping) => Ok(mapping.heads(slot)),
            Source::Looked(ring) => Ok(split(look_up(ring, slot)?[0])),
        }
    }

    fn words(&self, slot: u32) -> Result<[u64; SLOT_WORDS], RecorderError> {
        match &self.source {
            Source::Mapped(mapping) => Ok(mapping.words(slot)),
            Source::Looked(ring) => look_up(ring, slot),
        }
    }
}

/// What the heads of a slot say of the event of this lap; none when it can be read.
fn verdict((turn, given_up): Heads, lap: u32) -> Option<Look> {
    let writing = lap.wrapping_mul(2).wrapping_add(1);
    let written = writing.wrapping_add(1);
    if turn == written {
        return None;
    }
    if turn.wrapping_sub(written).cast_signed() > 0 {
        return Some(Look::Gone);
    }
    // A writer that is in the slot will publish; one that gave up has said so.
    let gave_up = given_up != 0 && given_up.wrapping_sub(lap.wrapping_add(1)).cast_signed() >= 0;
    Some(if turn != writing && gave_up { Look::Gone } else { Look::Unfinished })
}

/// The two halves of a word, in the order in which they lie in memory.
fn split(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
    (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]))
}

fn look_up(ring: &MapHandle, slot: u32) -> Result<[u64; SLOT_WORDS], RecorderError> {
    let failed = |error| RecorderError::broken("ring", &error);
    let bytes = ring.lookup(&slot.to_ne_bytes(), MapFlags::ANY).map_err(failed)?;
    let bytes = bytes.unwrap_or_default();
    if bytes.len() != SLOT_BYTES {
        return Err(RecorderError::Broken("the ring has slots of an unexpected size".to_owned()));
    }
    let mut words = [0; SLOT_WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(size_of::<u64>())) {
        *word = bytes.try_into().map_or(0, u64::from_ne_bytes);
    }
    Ok(words)
}

fn event(words: &[u64; SLOT_WORDS]) -> EventRecord {
    let &[heads, start_ns, duration_ns, task, what, ref body @ ..] = words;
    let ((turn, given_up), (tgid, tid), (proc_id, kinds)) =
        (split(heads), split(task), split(what));
    let [kind, flags, low, high] = kinds.to_ne_bytes();
    let what = u16::from_ne_bytes([low, high]);
    let body: [u64; EVENT_WORDS] = *body;
    EventRecord {
        turn,
        given_up,
        start_ns,
        duration_ns,
        tgid,
        tid,
        proc_id,
        kind,
        flags,
        what,
        body,
    }
}

/// The ring in this process's memory, read-only.
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
        // Relaxed, as no other load may be made of memory that cannot be written; whoever reads on puts a fence behind it.
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

const _: () = assert!(SLOT_WORDS == 5 + EVENT_WORDS);
const _: () = assert!(std::mem::offset_of!(EventRecord, start_ns) == 8);
const _: () = assert!(std::mem::offset_of!(EventRecord, tgid) == 24);
const _: () = assert!(std::mem::offset_of!(EventRecord, proc_id) == 32);
const _: () = assert!(std::mem::offset_of!(EventRecord, kind) == 36);
const _: () = assert!(std::mem::offset_of!(EventRecord, what) == 38);
const _: () = assert!(std::mem::offset_of!(EventRecord, body) == 40);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Turns of a lap: while it is written, and when it can be read.
    fn turns(lap: u32) -> [u32; 2] {
        [2 * lap + 1, 2 * lap + 2]
    }

    #[test]
    fn a_slot_is_read_in_its_own_lap_only() {
        let [writing, written] = turns(7);
        assert_eq!(verdict((written, 0), 7), None);
        assert_eq!(verdict((writing, 0), 7), Some(Look::Unfinished));
        assert_eq!(
            verdict((turns(6)[1], 0), 7),
            Some(Look::Unfinished),
            "its writer is yet to come"
        );
        assert_eq!(verdict((turns(8)[0], 0), 7), Some(Look::Gone), "it is written over");
        assert_eq!(verdict((0, 0), 0), Some(Look::Unfinished));
    }

    #[test]
    fn an_event_is_lost_when_its_writer_gave_up_and_when_the_next_did() {
        let [stuck, _] = turns(6);
        assert_eq!(verdict((stuck, 8), 7), Some(Look::Gone));
        assert_eq!(verdict((stuck, 9), 7), Some(Look::Gone));
        assert_eq!(verdict((stuck, 7), 7), Some(Look::Unfinished), "that was an earlier lap's");
        assert_eq!(verdict((turns(7)[0], 9), 7), Some(Look::Unfinished), "it is in the slot");
    }

    proptest! {
        #[test]
        fn fields_are_where_the_record_has_them(words in any::<[u64; SLOT_WORDS]>()) {
            let event = event(&words);
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            prop_assert_eq!(event.given_up.to_ne_bytes().to_vec(), bytes[4..8].to_vec());
            prop_assert_eq!(event.tid.to_ne_bytes().to_vec(), bytes[28..32].to_vec());
            prop_assert_eq!(event.flags, bytes[37]);
            prop_assert_eq!(event.what.to_ne_bytes().to_vec(), bytes[38..40].to_vec());
            prop_assert_eq!(event.body[2].to_ne_bytes().to_vec(), bytes[56..64].to_vec());
        }
    }
}
