//! Times in UTC.

use time::OffsetDateTime;

/// Time of day in UTC, such as `07:03:12`, optionally with the date.
pub fn utc(unix_seconds: f64, with_date: bool) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "times out of range are clamped, and then rejected below"
    )]
    let Ok(at) = OffsetDateTime::from_unix_timestamp(unix_seconds as i64) else {
        return "?".into();
    };
    let (hour, minute, second) = at.to_hms();
    if !with_date {
        return format!("{hour:02}:{minute:02}:{second:02}");
    }
    let (year, month, day) = (at.year(), u8::from(at.month()), at.day());
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_formatted_in_utc() {
        assert_eq!(utc(1_700_000_001.9, true), "2023-11-14 22:13:21");
        assert_eq!(utc(1_700_000_001.9, false), "22:13:21");
        assert_eq!(utc(f64::INFINITY, false), "?");
    }
}
