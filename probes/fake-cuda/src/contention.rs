//! Locks of the kernel that another thread of the process holds for milliseconds, and system calls and page faults that wait for them.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use crate::clock;
use crate::waker::Waker;

/// The other thread fills `BYTES` each time, or moves `MOVED_BYTES`, which have no memory of their own: each takes some ten milliseconds.
const BYTES: usize = 48 << 20;
const MOVED_BYTES: usize = 1 << 30;
/// The largest page of any kernel, and what the smallest page table holds.
const PAGE: usize = 64 << 10;
const TABLE_BYTES: usize = 2 << 20;
/// Until the other thread has the lock.
const AHEAD_NS: u64 = 200_000;
const NAME: &str = "kernel-holder";

/// Waits for a lock that a helper thread takes, by what this thread does then.
pub(crate) struct Contention<T> {
    holder: Waker,
    own: T,
    contend: fn(&T, &dyn Fn()) -> io::Result<()>,
}

impl<T> Contention<T> {
    /// Waits for the lock again and again, for at least `ns` nanoseconds in all.
    ///
    /// # Errors
    ///
    /// When the system refuses what is done under the lock.
    pub(crate) fn wait(&self, ns: u64) -> io::Result<()> {
        let end = clock::monotonic_ns().saturating_add(ns);
        let hold = || {
            self.holder.wake_after(0);
            clock::sleep(AHEAD_NS);
        };
        while clock::monotonic_ns() < end {
            (self.contend)(&self.own, &hold)?;
        }
        Ok(())
    }
}

impl Contention<()> {
    /// For the address space, in `mmap` and `munmap`, while the other thread populates a mapping.
    pub(crate) fn of_mappings() -> io::Result<Self> {
        let holder = Waker::start(NAME, || {
            let populated = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
            if let Ok(memory) = Mapping::new(BYTES, populated, -1) {
                drop(memory);
            }
        })?;
        let contend = |(): &(), hold: &dyn Fn()| {
            hold();
            Mapping::new(PAGE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1).map(drop)
        };
        Ok(Self { holder, own: (), contend })
    }
}

impl Contention<OwnedFd> {
    /// For the address space, in the first page fault of a mapping, while the other thread moves the pages of another one.
    pub(crate) fn of_faults() -> io::Result<Self> {
        let mut memory = Mapping::of_zeros()?;
        let holder = Waker::start(NAME, move || drop(memory.move_pages()))?;
        let contend = |file: &OwnedFd, hold: &dyn Fn()| {
            let page = Mapping::new(PAGE, libc::MAP_PRIVATE, file.as_raw_fd())?;
            hold();
            page.touch();
            Ok(())
        };
        Ok(Self { holder, own: memory_file(PAGE)?, contend })
    }

    /// For a file that the other thread fills, on the CPU of this thread: on another one it would be waited for on the CPU.
    pub(crate) fn of_files() -> io::Result<Self> {
        let file = memory_file(PAGE)?;
        let (filled, cpu) = (file.try_clone()?, current_cpu());
        stay_on(cpu);
        let holder = Waker::start(NAME, move || {
            stay_on(cpu);
            let bytes = libc::off_t::try_from(BYTES).unwrap_or(libc::off_t::MAX);
            // SAFETY: the descriptor is open, and no memory is passed.
            unsafe { libc::fallocate(filled.as_raw_fd(), 0, 0, bytes) };
            // SAFETY: as above.
            unsafe { libc::ftruncate(filled.as_raw_fd(), 0) };
        })?;
        let contend = |file: &OwnedFd, hold: &dyn Fn()| {
            hold();
            // SAFETY: the descriptor is open and the byte readable.
            match unsafe { libc::pwrite(file.as_raw_fd(), c"x".as_ptr().cast(), 1, 0) } {
                1 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        Ok(Self { holder, own: file, contend })
    }
}

/// A file in memory.
fn memory_file(bytes: usize) -> io::Result<OwnedFd> {
    // SAFETY: the name is a C string.
    let descriptor = unsafe { libc::memfd_create(c"gpucause-contended".as_ptr(), 0) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open and nobody else owns it.
    let file = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let bytes = libc::off_t::try_from(bytes).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open, and no memory is passed.
    match unsafe { libc::ftruncate(file.as_raw_fd(), bytes) } {
        0 => Ok(file),
        _ => Err(io::Error::last_os_error()),
    }
}

fn current_cpu() -> usize {
    // SAFETY: nothing is passed.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

/// Keeps this thread on a CPU.
fn stay_on(cpu: usize) {
    // SAFETY: all zeros are an empty set.
    let mut cpus: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the macro checks the bound.
    unsafe { libc::CPU_SET(cpu, &mut cpus) };
    // SAFETY: the set is valid for reads of its size.
    unsafe { libc::sched_setaffinity(0, size_of_val(&cpus), &raw const cpus) };
}

struct Mapping {
    start: *mut c_void,
    bytes: usize,
}

// SAFETY: the memory belongs to the object, and no thread's stack or data is in it.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(bytes: usize, flags: i32, file: i32) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, file, 0) };
        match start {
            libc::MAP_FAILED => Err(io::Error::last_os_error()),
            start => Ok(Self { start, bytes }),
        }
    }

    /// Pages that are all the one of zeros.
    fn of_zeros() -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let memory = Self::new(MOVED_BYTES, flags, -1)?;
        for advice in [libc::MADV_NOHUGEPAGE, libc::MADV_POPULATE_READ] {
            // SAFETY: the advice is for the mapping just made, and changes nothing in it.
            if unsafe { libc::madvise(memory.start, memory.bytes, advice) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(memory)
    }

    /// Moves all pages to another address, one by one: not by a multiple of what a page table holds.
    fn move_pages(&mut self) -> io::Result<()> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let mut target = Self::new(self.bytes + PAGE, flags, -1)?;
        let is_whole = target.start.addr().abs_diff(self.start.addr()).is_multiple_of(TABLE_BYTES);
        let (shift, left) = if is_whole { (PAGE, 0) } else { (0, self.bytes) };
        let (old, moved) = (self.start, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
        // SAFETY: the target is a mapping of that many bytes, to which no reference exists.
        let to = unsafe { target.start.byte_add(shift) };
        // SAFETY: as above.
        let left = unsafe { target.start.byte_add(left) };
        // SAFETY: both are this object's, and what is moved over is nobody's.
        let start = unsafe { libc::mremap(old, self.bytes, self.bytes, moved, to) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // One page of the target is left.
        (target.start, target.bytes) = (left, PAGE);
        self.start = start;
        Ok(())
    }

    fn touch(&self) {
        // SAFETY: the mapping is writable, and no reference to it exists.
        unsafe { self.start.cast::<u8>().write_volatile(1) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping, to which no reference exists.
        unsafe { libc::munmap(self.start, self.bytes) };
    }
}
