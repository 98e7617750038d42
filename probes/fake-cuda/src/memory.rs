//! Simulated device memory: unique addresses with a size.
//!
//! A fixed table of atomics, so that allocating takes no lock: a pointer sits in one of `WINDOW` slots from its hash on.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::types::Out;

const SLOT_BITS: u32 = 17;
const SLOTS: usize = 1 << SLOT_BITS;
const WINDOW: usize = 64;
/// CUDA aligns allocations to this, in bytes.
const ALIGN: usize = 512;

/// Allocates page-aligned host memory; `None` when out of memory.
pub fn host_memory(bytes: usize, out: Out<usize>) -> Option<()> {
    let mut memory = std::ptr::null_mut();
    // SAFETY: `memory` is valid for writes and the alignment is a power of two.
    let code = unsafe { libc::posix_memalign(&raw mut memory, 4096, bytes.max(1)) };
    (code == 0).then(|| out.give(memory as usize))
}

struct Slot {
    address: AtomicUsize,
    bytes: AtomicU64,
}

/// The device memory of one library. Holds about a hundred thousand allocations at a time.
pub struct Heap {
    base: usize,
    next: AtomicUsize,
    slots: [Slot; SLOTS],
}

impl Heap {
    /// An empty heap that hands out addresses from `base` on.
    pub const fn new(base: usize) -> Self {
        Self {
            base,
            next: AtomicUsize::new(base),
            slots: [const { Slot { address: AtomicUsize::new(0), bytes: AtomicU64::new(0) } };
                SLOTS],
        }
    }

    fn window(&self, address: usize) -> impl Iterator<Item = &Slot> {
        let hash =
            (address / ALIGN).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - SLOT_BITS);
        (hash..hash + WINDOW).filter_map(|index| self.slots.get(index % SLOTS))
    }

    /// Allocates `bytes` and returns the address; `None` when the table is full.
    pub fn allocate(&self, bytes: u64) -> Option<usize> {
        let size = usize::try_from(bytes).ok()?.max(1).checked_next_multiple_of(ALIGN)?;
        let address = self.next.fetch_add(size, Ordering::Relaxed);
        self.adopt(address, bytes).then_some(address)
    }

    /// Records the size of memory from another library; false when the table is full.
    pub fn adopt(&self, address: usize, bytes: u64) -> bool {
        for slot in self.window(address) {
            let free =
                slot.address.compare_exchange(0, address, Ordering::Relaxed, Ordering::Relaxed);
            if free.is_ok() {
                slot.bytes.store(bytes, Ordering::Relaxed);
                return true;
            }
        }
        false
    }

    /// Frees memory and returns its size; `None` for an address that is not allocated.
    pub fn release(&self, address: usize) -> Option<u64> {
        for slot in self.window(address) {
            if slot.address.load(Ordering::Relaxed) != address {
                continue;
            }
            let bytes = slot.bytes.load(Ordering::Relaxed);
            let mine =
                slot.address.compare_exchange(address, 0, Ordering::Relaxed, Ordering::Relaxed);
            if mine.is_ok() {
                return Some(bytes);
            }
        }
        None
    }

    /// Frees everything and reuses addresses. Not for concurrent use.
    pub fn reset(&self) {
        for slot in &self.slots {
            slot.address.store(0, Ordering::Relaxed);
        }
        self.next.store(self.base, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_unique_and_comes_back_once() {
        static HEAP: Heap = Heap::new(0x1000);
        let taken: Vec<usize> = (1..=20_000).filter_map(|bytes| HEAP.allocate(bytes)).collect();
        assert_eq!(taken.len(), 20_000);
        assert!(taken.is_sorted_by(|a, b| a < b));
        for (bytes, &address) in (1..).zip(&taken) {
            assert_eq!(HEAP.release(address), Some(bytes));
            assert_eq!(HEAP.release(address), None);
        }
    }

    #[test]
    fn a_reset_heap_is_as_new() {
        static HEAP: Heap = Heap::new(0x1000);
        assert_eq!((HEAP.allocate(5), HEAP.allocate(5)), (Some(0x1000), Some(0x1200)));
        HEAP.reset();
        assert_eq!(HEAP.release(0x1000), None);
        assert_eq!(HEAP.allocate(7), Some(0x1000));
    }

    #[test]
    fn adopted_memory_keeps_its_size() {
        static HEAP: Heap = Heap::new(0x1000);
        assert!(HEAP.adopt(0xdead_0000, 77));
        assert_eq!(HEAP.release(0xdead_0000), Some(77));
    }
}
