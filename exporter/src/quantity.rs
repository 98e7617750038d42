//! Numbers as people read them.

use gpucause_abi::Nanos;

/// In the unit that fits; `-` when there is none.
pub(crate) fn duration(time: Option<Nanos>) -> String {
    let Some(time) = time else { return "-".into() };
    let ns = time.0 as f64;
    match time.0 {
        0..1_000 => format!("{ns:.0} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns / 1e6),
        _ => format!("{:.2} s", ns / 1e9),
    }
}

/// Events a second.
pub(crate) fn rate(per_second: f64) -> String {
    match per_second {
        1e6.. => format!("{:.1}M", per_second / 1e6),
        1e5.. => format!("{:.0}k", per_second / 1e3),
        10.0.. => format!("{per_second:.0}"),
        rate if rate > 0.0 => format!("{rate:.1}"),
        _ => "0".into(),
    }
}

/// How many times as large; `-` when that is not known.
pub(crate) fn ratio(ratio: Option<f64>) -> String {
    match ratio {
        None => "-".into(),
        Some(ratio) if ratio < 10.0 => format!("{ratio:.1}x"),
        Some(ratio) => format!("{ratio:.0}x"),
    }
}

/// A share, such as 0.25; `-` when it is not known.
pub(crate) fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".into(), |share| format!("{:.0}%", share * 100.0))
}

/// A size.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut size = bytes as f64 / 1024.0;
    let mut unit = UNITS[0];
    for &next in &UNITS[1..] {
        if size < 1024.0 {
            break;
        }
        size /= 1024.0;
        unit = next;
    }
    let digits = usize::from(size < 100.0);
    format!("{size:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_the_unit_that_fits() {
        assert_eq!(duration(None), "-");
        assert_eq!(duration(Some(Nanos(999))), "999 ns");
        assert_eq!(duration(Some(Nanos(1_500))), "1.5 us");
        assert_eq!(duration(Some(Nanos(4_100_000))), "4.1 ms");
        assert_eq!(duration(Some(Nanos(2_000_000_000))), "2.00 s");
    }

    #[test]
    fn rates_and_ratios_have_as_many_digits_as_they_need() {
        let rates = [0.0, 0.25, 9.5, 4988.4, 123_456.0, 1_250_000.0].map(rate);
        assert_eq!(rates, ["0", "0.2", "9.5", "4988", "123k", "1.2M"]);
        assert_eq!([None, Some(1.26), Some(40.2)].map(ratio), ["-", "1.3x", "40x"]);
        assert_eq!([None, Some(0.0), Some(0.496)].map(percent), ["-", "0%", "50%"]);
    }

    #[test]
    fn sizes_have_the_unit_that_fits() {
        let sizes = [0, 1023, 1536, 200 << 20, 80 << 30, u64::MAX].map(bytes);
        assert_eq!(sizes, ["0 B", "1023 B", "1.5 KiB", "200 MiB", "80.0 GiB", "16.0 EiB"]);
    }
}
