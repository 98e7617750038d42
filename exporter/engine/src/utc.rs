//! Moments as people read them.

use time::OffsetDateTime;

/// A moment of the day, UTC, such as `07:03:12`; with the date when it is asked for.
#[must_use]
pub fn utc(unix_seconds: f64, with_date: bool) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a moment beyond the range is clamped, and then refused below"
    )]
    let Ok(at) = OffsetDateTime::from_unix_timestamp(unix_seconds as i64) else {
        return "?".into();
    };
    let clock = format!("{:02}:{:02}:{:02}", at.hour(), at.minute(), at.second());
    if with_date { format!("{} {clock}", at.date()) } else { clock }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_told_in_utc() {
        assert_eq!(utc(1_700_000_001.9, true), "2023-11-14 22:13:21");
        assert_eq!(utc(1_700_000_001.9, false), "22:13:21");
        assert_eq!(utc(f64::INFINITY, false), "?");
    }
}
