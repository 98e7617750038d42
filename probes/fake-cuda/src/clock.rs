//! Clocks, and the two ways of letting a time pass that need no other object.

use libc::clockid_t;

fn now(clock: clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes; a refused clock leaves it zero.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    to_ns(&time)
}

fn to_ns(time: &libc::timespec) -> u64 {
    u64::try_from(time.tv_sec)
        .unwrap_or(0)
        .saturating_mul(1_000_000_000)
        .saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// A duration or an instant in the kernel's form.
pub fn timespec(ns: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(ns / 1_000_000_000).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::try_from(ns % 1_000_000_000).unwrap_or(0),
    }
}

/// `CLOCK_MONOTONIC`, in nanoseconds.
pub fn monotonic_ns() -> u64 {
    now(libc::CLOCK_MONOTONIC)
}

/// The time that this thread has been on a CPU, in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    now(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Stays on the CPU for `ns` nanoseconds of wall time.
pub fn spin(ns: u64) {
    let end = monotonic_ns().saturating_add(ns);
    while monotonic_ns() < end {
        std::hint::spin_loop();
    }
}

/// Sleeps until the monotonic clock shows `end` nanoseconds, through signals.
pub fn sleep_until(end: u64) {
    let end = timespec(end);
    loop {
        // SAFETY: `end` is a valid time and no remainder is asked for.
        let result = unsafe {
            libc::clock_nanosleep(
                libc::CLOCK_MONOTONIC,
                libc::TIMER_ABSTIME,
                &raw const end,
                std::ptr::null_mut(),
            )
        };
        if result != libc::EINTR {
            return;
        }
    }
}

/// Sleeps for `ns` nanoseconds.
pub fn sleep(ns: u64) {
    sleep_until(monotonic_ns().saturating_add(ns));
}
