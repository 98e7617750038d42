//! The global rate limit of requests.

use std::fmt;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Complaints;
use super::document::RateSection;

/// A token bucket: each request takes one token, and one is added in every interval.
#[derive(Debug)]
pub(crate) struct Rate {
    interval: Duration,
    burst: u32,
    /// When the bucket is, or was, full.
    full_at: Mutex<Option<Instant>>,
}

impl Rate {
    fn new(interval: Duration, burst: u32) -> Self {
        Self { interval, burst, full_at: Mutex::new(None) }
    }

    /// Takes a token, if there is one.
    pub(crate) fn admits(&self, now: Instant) -> bool {
        let mut full_at = self.full_at.lock();
        let next = full_at.unwrap_or(now).max(now) + self.interval;
        let admits = next <= now + self.interval.saturating_mul(self.burst);
        if admits {
            *full_at = Some(next);
        }
        admits
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a request every {:?}, {} at once", self.interval, self.burst)
    }
}

/// With a longer interval next to nothing would be served.
const MAX_INTERVAL: Duration = Duration::from_secs(3600);

pub(super) fn build(section: &RateSection, complaints: &mut Complaints) -> Option<Rate> {
    let text = section.interval.as_deref().unwrap_or("0");
    let Some(interval) = interval(text).filter(|interval| *interval <= MAX_INTERVAL) else {
        let form = "a duration up to 1h, such as 1s or 500ms, or 0 for no limit";
        complaints.add("rate_limit.interval", format!("is {text:?}, and must be {form}"));
        return None;
    };
    if interval.is_zero() {
        return None;
    }
    let burst = section.burst.unwrap_or(0);
    if burst == 0 || burst > 1_000_000 {
        let problem = format!("is {burst}, and must be from 1 to 1000000 with an interval");
        complaints.add("rate_limit.burst", problem);
        return None;
    }
    Some(Rate::new(interval, burst))
}

/// A duration as Go writes them.
fn interval(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let unit = match &rest[..letters] {
            "ns" => 1e-9,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        rest = &rest[letters..];
        total = total.checked_add(Duration::try_from_secs_f64(number * unit).ok()?)?;
    }
    (!text.is_empty()).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_let_through_and_then_one_an_interval() {
        let rate = Rate::new(Duration::from_secs(1), 3);
        let start = Instant::now();
        let admitted = |after: u64| rate.admits(start + Duration::from_millis(after));
        assert_eq!([0, 0, 1, 2].map(admitted), [true, true, true, false]);
        assert_eq!([1_500, 1_500].map(admitted), [true, false]);
        assert_eq!([60_000; 4].map(admitted), [true, true, true, false]);
    }

    #[test]
    fn intervals_are_written_as_in_go() {
        for (text, millis) in [("1s", 1_000), ("1.5s", 1_500), ("1m30s", 90_000), ("0", 0)] {
            assert_eq!(interval(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "1", "s", "-1s", "1x", "1e400s", "1..2s", "\u{b5}"] {
            assert_eq!(interval(text), None, "{text}");
        }
    }
}
