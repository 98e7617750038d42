//! The event of one CPU and its ring buffer.

use std::io;
use std::num::NonZero;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::libc;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::unistd::{SysconfVar, sysconf};

use super::MmapEventsError;
use crate::perf_event::{EventAttr, open_on_cpu};

/// Ring size per CPU: about a thousand mappings between two reads.
const RING_BYTES: usize = 128 << 10;
/// Bytes of a record's header: type, flags, size.
const HEADER: usize = 8;

const PERF_COUNT_SW_DUMMY: u64 = 9;
const PERF_SAMPLE_TIME: u64 = 1 << 2;
// Bits of `flags`, in the order of the C bit field.
const MMAP: u64 = 1 << 8;
const WATERMARK: u64 = 1 << 14;
const SAMPLE_ID_ALL: u64 = 1 << 18;
const MMAP2: u64 = 1 << 23;
const USE_CLOCKID: u64 = 1 << 25;

/// Offsets in `struct perf_event_mmap_page`.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;

#[derive(Debug)]
pub(super) struct Ring {
    event: OwnedFd,
    /// A control page, then the records.
    base: NonNull<u8>,
    page: usize,
    record: Vec<u8>,
}

// SAFETY: the mapping belongs to this value alone and may be used from any one thread at a time.
unsafe impl Send for Ring {}

impl Ring {
    /// Starts watching a CPU; `None` when it went offline.
    pub(super) fn open(cpu: u32) -> Result<Option<Self>, MmapEventsError> {
        let event = match open_event(cpu) {
            Ok(event) => event,
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(None),
            Err(source) => return Err(MmapEventsError::Open(cpu, source)),
        };
        let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
        let page = page.and_then(|page| usize::try_from(page).ok()).unwrap_or(4096);
        let bytes = page + RING_BYTES;
        let failed = |source: io::Error| MmapEventsError::Map { cpu, bytes, source };
        let length =
            NonZero::new(bytes).ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, &event, 0) }
            .map_err(|error| failed(error.into()))?;
        Ok(Some(Self { event, base: base.cast(), page, record: Vec::new() }))
    }

    /// Takes each record; true when the kernel's position was invalid and records were dropped.
    pub(super) fn drain(&mut self, each: impl FnMut(u32, &[u8])) -> bool {
        // Acquire: the records were written before the head.
        let head = self.position(DATA_HEAD).load(Ordering::Acquire);
        let tail = self.position(DATA_TAIL).load(Ordering::Relaxed);
        if head == tail {
            return false;
        }
        let mut record = std::mem::take(&mut self.record);
        let copy = |at: u64, into: &mut [u8]| self.copy(at, into);
        let whole = each_record(tail..head, copy, &mut record, each);
        self.record = record;
        // Release: the records are read before the kernel overwrites them.
        self.position(DATA_TAIL).store(head, Ordering::Release);
        !whole
    }

    fn position(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the offset lies within the first page of the mapping.
        let position = unsafe { self.base.add(offset) };
        // SAFETY: the mapping is page-aligned and lives as long as `self`; the kernel and this thread access the
        // positions only as whole 64-bit words.
        unsafe { AtomicU64::from_ptr(position.cast().as_ptr()) }
    }

    /// Copies bytes between tail and head, which the kernel does not change.
    fn copy(&self, at: u64, into: &mut [u8]) {
        let mut copied = 0;
        for part in parts(at, into.len(), RING_BYTES) {
            let target = &mut into[copied..copied + part.len()];
            copied += part.len();
            // SAFETY: `parts` stays below RING_BYTES, and so many bytes follow the first page.
            let source = unsafe { self.base.add(self.page + part.start) };
            let target = NonNull::from(target).cast();
            // SAFETY: the source is valid for the part's length as above, the target is a slice of that length, and
            // memory of the kernel's ring never overlaps one of ours.
            unsafe { source.copy_to_nonoverlapping(target, part.len()) };
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and nothing refers to it any more.
        let unmapped = unsafe { munmap(self.base.cast(), self.page + RING_BYTES) };
        debug_assert!(unmapped.is_ok());
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

fn open_event(cpu: u32) -> io::Result<OwnedFd> {
    let attr = EventAttr {
        config: PERF_COUNT_SW_DUMMY,
        sample_type: PERF_SAMPLE_TIME,
        flags: MMAP | MMAP2 | SAMPLE_ID_ALL | WATERMARK | USE_CLOCKID,
        wakeup_watermark: 1,
        clockid: libc::CLOCK_MONOTONIC,
        ..EventAttr::software()
    };
    open_on_cpu(&attr, cpu)
}

/// The position of `len` bytes in a ring of `size` bytes: one part, or two around the end.
fn parts(at: u64, len: usize, size: usize) -> [Range<usize>; 2] {
    // The remainder is below the ring's size, so the cast is exact.
    let start = (at % size as u64) as usize;
    let len = len.min(size);
    let first = len.min(size - start);
    [start..start + first, 0..len - first]
}

/// Passes on type and body of each record; false when one has an invalid size.
fn each_record(
    positions: Range<u64>,
    copy: impl Fn(u64, &mut [u8]),
    record: &mut Vec<u8>,
    mut each: impl FnMut(u32, &[u8]),
) -> bool {
    let mut at = positions.start;
    while at != positions.end {
        let mut header = [0; HEADER];
        copy(at, &mut header);
        let [k0, k1, k2, k3, _, _, s0, s1] = header;
        let size = u64::from(u16::from_ne_bytes([s0, s1]));
        if size < HEADER as u64 || size > positions.end.wrapping_sub(at) {
            return false;
        }
        record.clear();
        record.resize(size as usize - HEADER, 0);
        copy(at.wrapping_add(HEADER as u64), record);
        each(u32::from_ne_bytes([k0, k1, k2, k3]), record);
        at = at.wrapping_add(size);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 64;

    fn put(ring: &mut [u8], at: u64, bytes: &[u8]) {
        for (index, byte) in bytes.iter().enumerate() {
            ring[(at as usize + index) % SIZE] = *byte;
        }
    }

    fn record(kind: u32, size: u16, body: &[u8]) -> Vec<u8> {
        [&kind.to_ne_bytes()[..], &[0, 0], &size.to_ne_bytes(), body].concat()
    }

    fn drain(ring: &[u8], positions: Range<u64>) -> (bool, Vec<(u32, Vec<u8>)>) {
        let mut records = Vec::new();
        let copy = |at: u64, into: &mut [u8]| {
            let bytes: Vec<u8> =
                parts(at, into.len(), SIZE).into_iter().flat_map(|p| ring[p].to_vec()).collect();
            into.copy_from_slice(&bytes);
        };
        let whole = each_record(positions, copy, &mut Vec::new(), |kind, body| {
            records.push((kind, body.to_vec()));
        });
        (whole, records)
    }

    #[test]
    fn records_are_whole_wherever_the_ring_wraps() {
        for start in 0..2 * SIZE as u64 {
            let mut ring = vec![0xee; SIZE];
            put(&mut ring, start, &record(10, 24, b"sixteen bytes ok"));
            put(&mut ring, start + 24, &record(2, 16, b"and then"));
            let (whole, records) = drain(&ring, start..start + 40);
            assert!(whole);
            let expected = [(10, b"sixteen bytes ok".to_vec()), (2, b"and then".to_vec())];
            assert_eq!(records, expected, "{start}");
        }
    }

    #[test]
    fn positions_may_wrap_too() {
        let mut ring = vec![0; SIZE];
        put(&mut ring, u64::MAX - 7, &record(1, 8, b""));
        put(&mut ring, 0, &record(3, 8, b""));
        let (start, end) = (u64::MAX - 7, 8);
        let (whole, records) = drain(&ring, start..end);
        assert!(whole);
        assert_eq!(records, [(1, vec![]), (3, vec![])]);
    }

    #[test]
    fn an_impossible_size_ends_the_reading() {
        for size in [0, 7, 48] {
            let mut ring = vec![0; SIZE];
            put(&mut ring, 0, &record(1, 8, b""));
            put(&mut ring, 8, &record(1, size, b""));
            let (whole, records) = drain(&ring, 0..40);
            assert!(!whole, "{size}");
            assert_eq!(records.len(), 1, "{size}");
        }
    }
}
