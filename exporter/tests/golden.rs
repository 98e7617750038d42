//! Whole pages, compared byte by byte. `GPUCAUSE_BLESS=1 cargo test --test golden` writes them anew.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its fixtures too")]

#[path = "fixture/snapshot.rs"]
mod snapshot;

use gpucause::exposition::Format;
use std::collections::HashSet;
use std::path::Path;

fn page(format: Format) -> String {
    String::from_utf8(format.encode(&snapshot::families())).unwrap()
}

fn assert_golden(name: &str, page: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("GPUCAUSE_BLESS").is_some() {
        std::fs::write(&path, page).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    for (number, (ours, expected)) in page.lines().zip(golden.lines()).enumerate() {
        assert_eq!(ours, expected, "line {} of {name}", number + 1);
    }
    assert_eq!(page.len(), golden.len(), "length of {name}");
}

#[test]
fn the_text_page_is_the_golden_one() {
    assert_golden("text.txt", &page(Format::Text));
}

#[test]
fn the_openmetrics_page_is_the_golden_one() {
    assert_golden("openmetrics.txt", &page(Format::OpenMetrics));
}

#[test]
fn a_hostile_name_stays_within_its_label() {
    for format in [Format::Text, Format::OpenMetrics] {
        let page = page(format);
        let label = "comm=\"a\\\"b\\\\c?\u{fffd}} 1\",";
        assert!(page.contains(label), "{label} is missing");
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            assert!(line.starts_with("gpucause_"), "{line}");
        }
    }
}

#[test]
fn no_series_is_there_twice_and_none_has_a_timestamp() {
    for format in [Format::Text, Format::OpenMetrics] {
        let mut seen = HashSet::new();
        let page = page(format);
        for line in page.lines().filter(|line| !line.starts_with('#')).map(without_exemplar) {
            let (series, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok(), "{line}");
            assert!(seen.insert(series), "{series} twice");
            assert!(!series.ends_with(|c: char| c.is_ascii_digit()), "timestamp in {line}");
        }
    }
}

#[test]
fn both_formats_tell_the_same() {
    assert!(!page(Format::Text).contains(" # {"), "the text format knows no exemplars");
    let samples = |format| -> Vec<String> {
        let page = page(format);
        let told = |line: &&str| !line.starts_with('#') && !line.contains("_created");
        page.lines().filter(told).map(|line| without_exemplar(line).to_owned()).collect()
    };
    assert_eq!(samples(Format::Text), samples(Format::OpenMetrics));
}

/// Exemplars are for OpenMetrics alone, and have a moment of their own.
fn without_exemplar(line: &str) -> &str {
    line.split_once(" # ").map_or(line, |(sample, _)| sample)
}

#[test]
fn only_counters_and_histograms_have_a_beginning() {
    let page = page(Format::OpenMetrics);
    assert!(page.ends_with("\n# EOF\n"));
    assert!(page.contains("gpucause_context_switches_created{"));
    assert!(page.contains("gpucause_cuda_call_duration_seconds_created{"));
    assert!(page.contains("# UNIT gpucause_cuda_call_offcpu_seconds seconds\n"));
    assert!(!page.contains("_info_created") && !page.contains("map_entries_created"));
}
