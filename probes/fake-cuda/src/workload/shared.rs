//! Memory that forked processes share, and meeting in it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use anyhow::{Result, bail};
use gpucause_fake_cuda::clock;

/// Interval at which waiters check for the end.
const CHECK_NS: u64 = 100_000_000;

/// Memory that all processes of a program see. Zero bytes are its first state.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Shared {
    /// Set when the work begins.
    pub(crate) begun: AtomicU32,
    /// Set when the fault is there.
    pub(crate) faulty: AtomicU32,
    /// Set when all is over.
    pub(crate) over: AtomicU32,
    /// Processes that are prepared.
    pub(crate) prepared: AtomicU32,
    /// Nanoseconds whose meaning the fault knows.
    pub(crate) times_ns: [AtomicU64; 8],
    arrived: AtomicU32,
    round: AtomicU32,
}

impl Shared {
    /// Maps one; it stays as long as the process and those forked from it.
    pub(crate) fn map() -> Result<&'static Self> {
        let (length, access) = (size_of::<Self>(), libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), length, access, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            bail!("cannot map shared memory: {}", std::io::Error::last_os_error());
        }
        // SAFETY: the mapping is zeroed, large enough, aligned to a page, and never unmapped.
        Ok(unsafe { &*at.cast::<Self>() })
    }

    /// Waits until `processes` processes are here; returns at once when all is over.
    pub(crate) fn meet(&self, processes: u32) {
        let round = self.round.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 >= processes {
            self.arrived.store(0, Ordering::Release);
            self.round.fetch_add(1, Ordering::AcqRel);
            wake_all(&self.round);
            return;
        }
        while self.round.load(Ordering::Acquire) == round && self.over.load(Ordering::Relaxed) == 0
        {
            wait(&self.round, round);
        }
    }
}

/// Waits until another process wakes the word, for a while, unless it has another value by now.
pub(crate) fn wait(word: &AtomicU32, expected: u32) {
    let timeout = clock::timespec(CHECK_NS);
    // SAFETY: the word is mapped for good and the timeout is a valid time.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            expected,
            std::ptr::from_ref(&timeout),
        )
    };
}

/// Wakes all that wait for the word.
pub(crate) fn wake_all(word: &AtomicU32) {
    // SAFETY: the word is mapped for good.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
