//! Pages as dcgm-exporter writes them, and as nobody should.

use std::fmt::Write as _;

use gpucause_page::exposition::Format;
use gpucause_page::family::Exported;

use super::*;
use proptest::prelude::*;

/// A page of dcgm-exporter: a family in two groups, counters without `_total`.
const PAGE: &str = "\
# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
# TYPE DCGM_FI_DEV_SM_CLOCK gauge
DCGM_FI_DEV_SM_CLOCK{gpu=\"0\",UUID=\"GPU-a\",Hostname=\"n1\",pod=\"\"} 1755
DCGM_FI_DEV_SM_CLOCK{gpu=\"1\",UUID=\"GPU-b\",Hostname=\"n1\",pod=\"p \\\"1\\\"\"} 345 1700000000000
# HELP DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION Total energy consumption since boot (in mJ).
# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu=\"0\",UUID=\"GPU-a\"} 1.5e+09

# TYPE go_goroutines gauge
go_goroutines 17
# TYPE DCGM_FI_DEV_SM_CLOCK gauge
DCGM_FI_DEV_SM_CLOCK{nvlink=\"3\"} NaN
DCGM_FI_DEV_SM_CLOCK{UUID=\"GPU-a\",gpu=\"0\",Hostname=\"n1\"} 2
DCGM_UNTYPED -Inf
";

fn written(format: Format, families: Vec<ForeignFamily>) -> String {
    let foreign = families.into_iter().map(Arc::new).collect();
    String::from_utf8(format.encode(&Exported { own: Vec::new(), foreign })).unwrap()
}

#[test]
fn only_dcgms_metrics_are_kept_and_each_once_without_its_time() {
    let page = written(Format::Text, parse(PAGE.as_bytes()).unwrap());
    assert_eq!(
        page,
        "\
# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
# TYPE DCGM_FI_DEV_SM_CLOCK gauge
DCGM_FI_DEV_SM_CLOCK{gpu=\"0\",UUID=\"GPU-a\",Hostname=\"n1\",pod=\"\"} 1755
DCGM_FI_DEV_SM_CLOCK{gpu=\"1\",UUID=\"GPU-b\",Hostname=\"n1\",pod=\"p \\\"1\\\"\"} 345
DCGM_FI_DEV_SM_CLOCK{nvlink=\"3\"} NaN
# HELP DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION Total energy consumption since boot (in mJ).
# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu=\"0\",UUID=\"GPU-a\"} 1500000000
# TYPE DCGM_UNTYPED untyped
DCGM_UNTYPED -Inf
"
    );
}

#[test]
fn a_counter_keeps_its_name_in_openmetrics() {
    let page = written(Format::OpenMetrics, parse(PAGE.as_bytes()).unwrap());
    assert!(page.contains("# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION unknown\n"), "{page}");
    assert!(page.contains("\nDCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu=\"0\""), "{page}");
    assert!(page.ends_with("# EOF\n"));
}

#[test]
fn a_page_is_taken_as_a_whole_or_not_at_all() {
    let first = "DCGM_A 1\n";
    for (wrong, problem) in [
        ("DCGM_B", "no value"),
        ("DCGM_B x", "no number"),
        ("DCGM_B 1 now", "after the value"),
        ("DCGM_B 1 2 3", "after the value"),
        ("DCGM_B{a=1} 1", "without quotes"),
        ("DCGM_B{a=\"1} 1", "without end"),
        ("DCGM_B{a=\"1\" b=\"2\"} 1", "without comma"),
        ("DCGM_B{a=\"1\"", "without comma"),
        ("DCGM_B{a=\"\\t\"} 1", "an escape"),
        ("DCGM_B{a=\"1\",a=\"2\"} 1", "duplicate"),
        ("DCGM_B{__name__=\"up\"} 1", "label's name"),
        ("DCGM_B{a:b=\"1\"} 1", "label's name"),
        ("DCGM-B 1", "metric's name"),
        ("other{} one", "no number"),
        ("# TYPE DCGM_B enum", "a type"),
        ("<html>", "no value"),
    ] {
        let error = parse(format!("{first}{wrong}\n").as_bytes()).unwrap_err().to_string();
        assert!(error.contains(problem) && error.contains("line 2"), "{wrong}: {error}");
    }
    assert_eq!(parse(b"DCGM_A{a=\"\xff\"} 1\n"), Err(PageError::NotText));
    assert_eq!(parse(b""), Err(PageError::Empty));
    assert_eq!(parse(b"up 1\n"), Err(PageError::Empty));
    assert_eq!(parse(b"DCGM_A 1\ngpucause_dcgm_up 1\n"), Err(PageError::Own));
}

#[test]
fn a_page_has_bounds() {
    let mut series = String::new();
    for number in 0..=MAX_SAMPLES {
        let _ = writeln!(series, "DCGM_A{{n=\"{number}\"}} 1");
    }
    assert_eq!(parse(series.as_bytes()), Err(PageError::TooMuch("100,000 series")));
    let mut names = String::new();
    for number in 0..=MAX_FAMILIES {
        let _ = writeln!(names, "# TYPE DCGM_{number} gauge");
    }
    assert_eq!(parse(names.as_bytes()), Err(PageError::TooMuch("4,096 metrics")));
    let long = "x".repeat(MAX_TEXT + 1);
    assert!(parse(format!("DCGM_A{{a=\"{long}\"}} 1\n").as_bytes()).is_err());
    assert!(parse(format!("DCGM_{} 1\n", &long[..MAX_NAME]).as_bytes()).is_err());
    let many: Vec<_> = (0..=MAX_LABELS).map(|n| format!("l{n}=\"\"")).collect();
    assert!(parse(format!("DCGM_A{{{}}} 1\n", many.join(",")).as_bytes()).is_err());
}

#[test]
fn what_openmetrics_could_not_tell_apart_is_left_out() {
    let page = "# TYPE DCGM_H histogram\nDCGM_H_bucket{le=\"1\"} 1\nDCGM_H_count 1\nDCGM_H_sum 1\n\
                DCGM_A_total 1\nDCGM_A 2\nDCGM_B_total 3\n";
    let names: Vec<_> = parse(page.as_bytes()).unwrap().into_iter().map(|f| f.name).collect();
    assert_eq!(names, ["DCGM_A".into(), Arc::<str>::from("DCGM_B_total")]);
}

proptest! {
    #[test]
    fn no_bytes_break_the_reader(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse(&bytes);
    }

    #[test]
    fn no_near_miss_breaks_the_reader_or_the_page(
        lines in prop::collection::vec(
            "(# (HELP|TYPE) )?DCGM_[AB](_total|_sum)?[{ ]?([a-c]=\"(\\\\[n\"\\\\]|[^\n\"\\\\]){0,4}\",?){0,3}[} ]{0,2}(-?[0-9.]{1,4}|NaN|counter|gauge|summary)?",
            0..8,
        ),
    ) {
        // Whatever is taken reads back as it is: no text in it breaks out of its place.
        if let Ok(families) = parse(lines.join("\n").as_bytes()) {
            let page = written(Format::Text, families);
            let again = parse(page.as_bytes()).unwrap();
            prop_assert_eq!(written(Format::Text, again), page);
        }
    }

    #[test]
    fn a_broken_page_breaks_nothing(cut in 0..PAGE.len(), byte in any::<u8>()) {
        let mut bytes = PAGE.as_bytes().to_vec();
        bytes[cut] = byte;
        let _ = parse(&bytes);
        bytes.truncate(cut);
        let _ = parse(&bytes);
    }
}
