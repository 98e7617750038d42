//! The daemon's clocks: the monotonic one that kernel accounts use, and its conversion to wall time.

use gpucause_abi::Nanos;
use nix::time::{ClockId, clock_gettime};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A difference from the last offset that is a step of the wall clock rather than measurement noise.
const STEP: Duration = Duration::from_secs(1);

/// The monotonic clock.
#[must_use]
pub fn monotonic_now() -> Nanos {
    reading(ClockId::CLOCK_MONOTONIC)
}

/// CPU time that this daemon has used, user and system.
#[must_use]
pub fn cpu_time() -> Nanos {
    reading(ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

fn reading(clock: ClockId) -> Nanos {
    // The call fails only for clocks that do not exist.
    let reading = clock_gettime(clock).map(Duration::from).unwrap_or_default();
    Nanos(u64::try_from(reading.as_nanos()).unwrap_or(u64::MAX))
}

/// Converts monotonic time to Unix time.
///
/// The offset between the clocks is kept until the wall clock is stepped: measured again for each scrape it would change the creation
/// time of every series, and a series with a new creation time is a new series to Prometheus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WallClock {
    /// Unix time when the monotonic clock was at zero.
    origin: Duration,
}

impl WallClock {
    /// With the offset that holds now.
    #[must_use]
    pub fn now() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { origin: wall.saturating_sub(Duration::from_nanos(monotonic_now().0)) }
    }

    /// With a known origin: Unix time when the monotonic clock was at zero.
    #[must_use]
    pub const fn with_origin(origin: Duration) -> Self {
        Self { origin }
    }

    /// Returns the same clock, or a new one if the wall clock was stepped. To be called at each scrape.
    #[must_use]
    pub fn refreshed(self) -> Self {
        self.unless_stepped(Self::now())
    }

    fn unless_stepped(self, measured: Self) -> Self {
        if self.origin.abs_diff(measured.origin) < STEP { self } else { measured }
    }

    /// A monotonic time in nanoseconds since the Unix epoch.
    #[must_use]
    pub fn unix_nanos(self, at: Nanos) -> i64 {
        let unix = self.origin + Duration::from_nanos(at.0);
        i64::try_from(unix.as_nanos()).unwrap_or(i64::MAX)
    }

    /// A monotonic time in seconds since the Unix epoch, to the millisecond.
    #[must_use]
    pub fn unix_seconds(self, at: Nanos) -> f64 {
        let unix = self.origin + Duration::from_nanos(at.0);
        unix.as_millis() as f64 / 1e3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_is_kept_until_the_wall_clock_is_stepped() {
        let clock = WallClock::with_origin(Duration::from_secs(1_000));
        let near = WallClock::with_origin(Duration::from_millis(1_000_400));
        let stepped = WallClock::with_origin(Duration::from_secs(2_000));
        assert_eq!(clock.unless_stepped(near), clock);
        assert_eq!(clock.unless_stepped(stepped), stepped);
    }

    #[test]
    fn unix_seconds_are_exact_to_the_millisecond() {
        let clock = WallClock::with_origin(Duration::from_secs(1_700_000_000));
        assert_eq!(clock.unix_seconds(Nanos(1_234_567_890)).to_string(), "1700000001.234");
    }

    #[test]
    fn now_is_now() {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let now = WallClock::now().unix_seconds(monotonic_now());
        assert!((now - wall).abs() < 1.0, "{now} is not {wall}");
    }
}
