//! The host's clocks: the monotonic time, the error bound of the wall clock, and the length of a tick.

use gpucause_abi::Nanos;
use nix::sys::time::TimeValLike as _;
use nix::time::{ClockId, clock_getres, clock_gettime};

/// The slowest tick that a kernel can have.
const SLOWEST_TICK_NS: u32 = 10_000_000;

/// Maximum error of the wall clock according to the kernel and its time service; `None` if the clock is not synchronised or
/// the kernel does not report it.
pub fn clock_error() -> Option<Nanos> {
    // SAFETY: all zeroes are a value of this structure of integers.
    let mut known: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is the caller's own, and without a mode nothing is changed.
    let state = unsafe { libc::adjtimex(&raw mut known) };
    error_of(state, known.status, known.maxerror)
}

/// `maxerror` in microseconds.
fn error_of(state: i32, status: i32, maxerror: i64) -> Option<Nanos> {
    if state < 0 || state == libc::TIME_ERROR || status & libc::STA_UNSYNC != 0 {
        return None;
    }
    Some(Nanos(u64::try_from(maxerror).ok()?.saturating_mul(1000)))
}

/// Nanoseconds between two ticks: the resolution of a clock that each of them moves on.
pub(crate) fn tick_ns() -> u32 {
    let tick = clock_getres(ClockId::CLOCK_MONOTONIC_COARSE).map(|tick| tick.num_nanoseconds());
    let tick = tick.ok().and_then(|ns| u32::try_from(ns).ok());
    tick.filter(|&ns| ns > 0).unwrap_or(SLOWEST_TICK_NS)
}

/// The current monotonic time, as used by the programs.
pub fn monotonic_now() -> Nanos {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Nanos(0), |at| {
        let seconds = u64::try_from(at.tv_sec()).unwrap_or(0);
        let nanos = u64::try_from(at.tv_nsec()).unwrap_or(0);
        Nanos(seconds * 1_000_000_000 + nanos)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_takes_one_to_ten_milliseconds() {
        assert!((1_000_000..=SLOWEST_TICK_NS).contains(&tick_ns()), "{}", tick_ns());
    }

    #[test]
    fn only_a_clock_that_a_service_keeps_has_a_known_error() {
        assert_eq!(error_of(libc::TIME_OK, 0, 1500), Some(Nanos(1_500_000)));
        assert_eq!(error_of(libc::TIME_OK, libc::STA_UNSYNC, 1500), None);
        assert_eq!(error_of(libc::TIME_ERROR, 0, 1500), None);
        assert_eq!(error_of(-1, 0, 1500), None);
    }

    #[test]
    fn the_kernel_is_asked() {
        // 16 s is reported by unsynchronised clocks.
        assert!(clock_error().is_none_or(|error| error < Nanos(16_000_000_000)));
    }
}
