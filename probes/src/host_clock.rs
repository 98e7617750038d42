//! Error bound of the host's wall clock, from the kernel.

use gpucause_abi::Nanos;

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

#[cfg(test)]
mod tests {
    use super::*;

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
