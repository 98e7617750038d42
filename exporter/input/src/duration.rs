//! Durations as Prometheus writes them.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The accepted form, for messages.
const FORM: &str = "numbers with units ms, s, m, h or d, such as 90s or 1h30m";

/// A duration that is text in files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(pub Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u128, &str); 5] =
            [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")];
        let mut rest = self.0.as_millis();
        if rest == 0 {
            return f.write_str("0");
        }
        for (unit_ms, name) in UNITS {
            if rest >= unit_ms {
                write!(f, "{}{name}", rest / unit_ms)?;
                rest %= unit_ms;
            }
        }
        Ok(())
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let refusal = |_| format!("is {text:?}, and must be a duration: {FORM}");
        parse(&text).map(Self).map_err(refusal).map_err(serde::de::Error::custom)
    }
}

/// A duration such as `90s`, `5m` or `1h30m`.
///
/// # Errors
/// When the text is none; the message says what is accepted.
pub fn parse(text: &str) -> Result<Duration, String> {
    let form = || format!("{text:?} is no duration; write {FORM}");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(form)?;
        let number: u64 = rest[..digits].parse().map_err(|_| form())?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let unit_ms: u64 = match &rest[..letters] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(form()),
        };
        rest = &rest[letters..];
        let span = Duration::from_millis(number.checked_mul(unit_ms).ok_or_else(form)?);
        total = total.checked_add(span).ok_or_else(form)?;
    }
    if text.is_empty() { Err(form()) } else { Ok(total) }
}

/// Parses the duration of something that is to go on: it must be longer than zero.
pub fn parse_length(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        Duration::ZERO => Err(format!("{text:?} is no time at all; write {FORM}")),
        length => Ok(length),
    }
}

/// A duration, which may be shorter than those of Prometheus.
pub fn parse_short(text: &str) -> Result<Duration, String> {
    let number = |unit: &str| text.strip_suffix(unit).and_then(|number| number.parse().ok());
    if let Some(micros) = number("us") {
        return Ok(Duration::from_micros(micros));
    }
    if let Some(nanos) = number("ns") {
        return Ok(Duration::from_nanos(nanos));
    }
    parse(text).map_err(|message| format!("{message}, or us or ns, such as 50us"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_with_their_units() {
        for (text, seconds) in [
            ("0", 0.0),
            ("90s", 90.0),
            ("5m", 300.0),
            ("1h30m", 5400.0),
            ("250ms", 0.25),
            ("1d", 86400.0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
        for text in [
            "",
            "5",
            "m",
            "5x",
            "-5m",
            "5m3",
            "1.5h",
            "99999999999999999999s",
            "18446744073709551615d",
            "5\u{b5}s",
        ] {
            assert!(parse(text).unwrap_err().contains("no duration"), "{text}");
            assert_eq!(parse_length(text), parse(text));
        }
        for text in ["0", "0s", "0m0s"] {
            assert!(parse_length(text).unwrap_err().contains("no time at all"), "{text}");
        }
        assert_eq!(parse_length("1ms"), Ok(Duration::from_millis(1)));
    }

    #[test]
    fn a_duration_is_written_as_it_is_read() {
        for text in ["0", "5m", "1h30m", "1d1h1m1s1ms", "250ms"] {
            assert_eq!(Span(parse(text).unwrap()).to_string(), text);
        }
    }
}
