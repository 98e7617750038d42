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
    let mut text = String::with_capacity("2023-11-14 22:13:21".len());
    if with_date {
        text.push_str(&at.year().to_string());
        push(&mut text, '-', at.month().into());
        push(&mut text, '-', at.day());
        text.push(' ');
    }
    let (hour, minute, second) = at.to_hms();
    push_digits(&mut text, hour);
    push(&mut text, ':', minute);
    push(&mut text, ':', second);
    text
}

fn push(text: &mut String, separator: char, number: u8) {
    text.push(separator);
    push_digits(text, number);
}

/// Two digits. Each sentence of a chain has two times, and formatting them with a width would take a tenth of its time.
fn push_digits(text: &mut String, number: u8) {
    text.extend([number / 10, number % 10].map(|digit| char::from(b'0' + digit)));
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
