//! Numbers as people read them, the same in sentences, tables and pages.

use gpucause_abi::Nanos;

/// A share, such as 0.25; `-` when it is not known.
#[must_use]
pub fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".into(), |share| digits(share * 100.0) + " %")
}

/// A share with tenths, for tables whose rows are compared.
#[must_use]
pub fn percent_with_tenths(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// A time for a sentence, in the unit that fits.
#[must_use]
pub fn rounded_time(seconds: f64) -> String {
    let (scaled, unit) = match seconds {
        s if s >= 1.0 || s <= 0.0 => (s, " s"),
        s if s >= 1e-3 => (s * 1e3, " ms"),
        s if s >= 1e-6 => (s * 1e6, " us"),
        s => (s * 1e9, " ns"),
    };
    digits(scaled) + unit
}

/// A time in seconds for a table, in the unit that fits; `-` when there is none. It has tenths at least.
#[must_use]
pub fn time(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".into(),
        // A number that would be rounded up to a thousand has the next unit.
        Some(s) if s >= 0.999_95 => format!("{s:.2} s"),
        Some(s) if s >= 0.999_95e-3 => format!("{:.1} ms", s * 1e3),
        Some(s) if s >= 0.999_5e-6 => format!("{:.1} us", s * 1e6),
        Some(s) => format!("{:.0} ns", s * 1e9),
    }
}

/// A time for a table; `-` when there is none.
#[must_use]
pub fn duration(time: Option<Nanos>) -> String {
    self::time(time.map(|time| time.0 as f64 / 1e9))
}

/// A time of seconds to hours, in two units at most.
#[must_use]
pub fn long_duration(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

/// Events a second.
#[must_use]
pub fn rate(per_second: f64) -> String {
    match per_second {
        1e6.. => format!("{:.1}M", per_second / 1e6),
        1e5.. => format!("{:.0}k", per_second / 1e3),
        10.0.. => format!("{per_second:.0}"),
        rate if rate > 0.0 => format!("{rate:.1}"),
        _ => "0".into(),
    }
}

/// How many times as large; `-` when that is not known.
#[must_use]
pub fn ratio(ratio: Option<f64>) -> String {
    match ratio {
        None => "-".into(),
        Some(ratio) => format!("{}x", digits(ratio)),
    }
}

/// A size for a table, with tenths below a hundred.
#[must_use]
pub fn bytes(bytes: f64) -> String {
    scaled_bytes(
        bytes,
        |size| if size < 99.95 { format!("{size:.1}") } else { format!("{size:.0}") },
    )
}

/// A size for a sentence.
#[must_use]
pub fn rounded_bytes(bytes: f64) -> String {
    scaled_bytes(bytes, digits)
}

fn scaled_bytes(bytes: f64, digits: impl Fn(f64) -> String) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024.0 {
        return format!("{bytes:.0} B");
    }
    let (mut size, mut unit) = (bytes / 1024.0, UNITS[0]);
    for next in &UNITS[1..] {
        if size < 1023.5 {
            break;
        }
        size /= 1024.0;
        unit = next;
    }
    format!("{} {unit}", digits(size))
}

/// Rounded to a whole number from ten up, and to tenths below.
pub(crate) fn digits(value: f64) -> String {
    if value >= 9.95 { format!("{value:.0}") } else { format!("{value:.1}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_unit_that_fits() {
        assert_eq!(duration(None), "-");
        let times = [0, 999, 1_500, 4_100_000, 2_000_000_000].map(|ns| duration(Some(Nanos(ns))));
        assert_eq!(times, ["0 ns", "999 ns", "1.5 us", "4.1 ms", "2.00 s"]);
        assert_eq!(duration(Some(Nanos(999_960))), "1.0 ms");
        assert_eq!(percent(Some(0.0996)), "10 %");
        let rounded = [0.0000123, 2.5, 0.0041, 0.0].map(rounded_time);
        assert_eq!(rounded, ["12 us", "2.5 s", "4.1 ms", "0.0 s"]);
    }

    #[test]
    fn long_durations_are_in_two_units_at_most() {
        let texts = [5, 65, 7_265].map(long_duration);
        assert_eq!(texts, ["5 s", "1 min 5 s", "2 h 1 min"]);
    }

    #[test]
    fn rates_ratios_and_shares_have_as_many_digits_as_they_need() {
        let rates = [0.0, 0.25, 9.5, 4988.4, 123_456.0, 1_250_000.0].map(rate);
        assert_eq!(rates, ["0", "0.2", "9.5", "4988", "123k", "1.2M"]);
        assert_eq!([None, Some(1.26), Some(40.2)].map(ratio), ["-", "1.3x", "40x"]);
        let shares = [None, Some(0.0), Some(0.02), Some(0.496), Some(1.0)].map(percent);
        assert_eq!(shares, ["-", "0.0 %", "2.0 %", "50 %", "100 %"]);
    }

    #[test]
    fn sizes_have_the_unit_that_fits() {
        let sizes = [0, 1023, 1536, 200 << 20, 80 << 30, u64::MAX].map(|size| bytes(size as f64));
        assert_eq!(sizes, ["0 B", "1023 B", "1.5 KiB", "200 MiB", "80.0 GiB", "16.0 EiB"]);
    }
}
