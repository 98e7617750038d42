//! The futex system call, on words private to the process.

use std::sync::atomic::AtomicU32;

use crate::clock;

/// Waits while `word` holds `expected`, at most `timeout_ns` nanoseconds. May return early.
pub fn wait(word: &AtomicU32, expected: u32, timeout_ns: Option<u64>) {
    let timeout = timeout_ns.map(clock::timespec);
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the word lives as long as the reference, and the timeout is null or a valid time.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            expected,
            timeout,
        )
    };
}

/// Wakes one waiter of `word`.
pub fn wake(word: &AtomicU32) {
    // SAFETY: the word lives as long as the reference.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            1,
        )
    };
}
