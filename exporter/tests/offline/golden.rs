//! Whole pages, compared byte by byte. `GPUCAUSE_BLESS=1 cargo test --test offline golden::` rewrites them.

#[path = "../../page/src/exposition/protobuf/tests/metrics_proto.rs"]
mod metrics_proto;

use gpucause_fixture::snapshot;
use gpucause_page::exposition::Format;
use gpucause_page::family::Exported;
use metrics_proto::{Metric, MetricFamily, MetricType};
use prost::Message as _;
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;

fn page(format: Format) -> String {
    String::from_utf8(format.encode(&snapshot::families().into())).unwrap()
}

fn assert_golden(name: &str, page: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/offline/golden").join(name);
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
        let is_sample = |line: &&str| !line.starts_with('#') && !line.contains("_created");
        page.lines().filter(is_sample).map(|line| without_exemplar(line).to_owned()).collect()
    };
    assert_eq!(samples(Format::Text), samples(Format::OpenMetrics));
}

/// The families of the protobuf page.
fn messages() -> Vec<MetricFamily> {
    let page = Format::Protobuf.encode(&snapshot::families().into());
    let mut rest = page.as_slice();
    let mut families = Vec::new();
    while !rest.is_empty() {
        families.push(MetricFamily::decode_length_delimited(&mut rest).unwrap());
    }
    families
}

/// The samples of a message, by their names and labels in the text format.
fn as_text(family: &MetricFamily, metric: &Metric) -> Vec<(String, f64)> {
    let escaped =
        |value: &str| value.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"");
    let pairs = metric.label.iter();
    let labels: Vec<_> = pairs.map(|l| format!("{}=\"{}\"", l.name, escaped(&l.value))).collect();
    let series = |suffix: &str, le: Option<f64>| {
        let le = le.map(|le| {
            format!("le=\"{}\"", if le.is_finite() { le.to_string() } else { "+Inf".into() })
        });
        let labels: Vec<_> = labels.iter().cloned().chain(le).collect();
        let braces =
            if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        format!("{}{suffix}{braces}", family.name)
    };
    assert_eq!(metric.timestamp_ms, 0, "{} has a timestamp", family.name);
    let kinds = (&metric.counter, &metric.gauge, &metric.histogram);
    match (family.r#type(), kinds) {
        (MetricType::Counter, (Some(counter), None, None)) => {
            vec![(series("", None), counter.value)]
        }
        (MetricType::Gauge, (None, Some(gauge), None)) => vec![(series("", None), gauge.value)],
        (MetricType::Histogram, (None, None, Some(histogram))) => {
            let count = histogram.sample_count as f64;
            let buckets =
                histogram.bucket.iter().map(|b| (b.upper_bound, b.cumulative_count as f64));
            let all = buckets.chain([(f64::INFINITY, count)]);
            all.map(|(le, count)| (series("_bucket", Some(le)), count))
                .chain([
                    (series("_sum", None), histogram.sample_sum),
                    (series("_count", None), count),
                ])
                .collect()
        }
        other => panic!("{} has {other:?}", family.name),
    }
}

#[test]
fn protobuf_tells_what_text_tells() {
    let page = page(Format::Text);
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    let text: BTreeMap<String, f64> = lines
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(series, value)| (series.to_owned(), value.parse().unwrap()))
        .collect();
    let families = messages();
    let samples = |family: &MetricFamily| -> Vec<_> {
        family.metric.iter().flat_map(|metric| as_text(family, metric)).collect()
    };
    let protobuf: BTreeMap<_, _> = families.iter().flat_map(samples).collect();
    assert_eq!(protobuf, text);
    for family in families {
        let help = family.help.replace('\\', "\\\\");
        assert!(page.contains(&format!("# HELP {} {help}\n", family.name)), "{}", family.name);
    }
}

#[test]
fn protobuf_tells_beginnings_and_exemplars_as_openmetrics_does() {
    let page = page(Format::OpenMetrics);
    let metrics = || messages().into_iter().flat_map(|family| family.metric);
    let begun = metrics().filter(|metric| match (&metric.counter, &metric.histogram) {
        (Some(counter), _) => counter.created_timestamp.is_some(),
        (_, histogram) => histogram.as_ref().is_some_and(|h| h.created_timestamp.is_some()),
    });
    let created = |line: &&str| !line.starts_with('#') && line.contains("_created");
    assert_eq!(begun.count(), page.lines().filter(created).count());
    let exemplars =
        metrics().filter(|metric| metric.counter.as_ref().is_some_and(|c| c.exemplar.is_some()));
    let in_text = page.lines().filter(|line| line.contains(" # {")).count();
    assert!(in_text > 0);
    assert_eq!(exemplars.count(), in_text);
}

#[test]
fn native_buckets_hold_as_many_values_as_are_counted() {
    let histograms = messages().into_iter().flat_map(|family| family.metric);
    let mut seen = 0;
    for histogram in histograms.filter_map(|metric| metric.histogram) {
        let mut count = 0;
        let counts = histogram.positive_delta.iter().map(|delta| {
            count += delta;
            u64::try_from(count).unwrap()
        });
        assert_eq!(histogram.zero_count + counts.sum::<u64>(), histogram.sample_count);
        seen += 1;
    }
    assert!(seen > 5);
}

/// Exemplars are not in the text format, and have a moment of their own.
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

#[test]
fn metrics_of_other_names_follow_ours_and_are_the_same_in_every_format() {
    let page = b"# HELP DCGM_A An a\\\\b.\n# TYPE DCGM_A counter\nDCGM_A{gpu=\"0\",pod=\"p\\\"1\"} 1.5\nDCGM_A 0\n\
                 # TYPE DCGM_B gauge\nDCGM_B -2\nDCGM_C NaN\n";
    let foreign = gpucause_observe::dcgm::parse(page).unwrap().into_iter().map(Arc::new).collect();
    let exported = Exported { own: snapshot::families(), foreign };
    let text = |format: Format| String::from_utf8(format.encode(&exported)).unwrap();
    let samples = "DCGM_A{gpu=\"0\",pod=\"p\\\"1\"} 1.5\nDCGM_A 0\n";
    let expected = format!(
        "# HELP DCGM_A An a\\\\b.\n# TYPE DCGM_A counter\n{samples}# TYPE DCGM_B gauge\nDCGM_B -2\n\
         # TYPE DCGM_C untyped\nDCGM_C NaN\n"
    );
    assert_eq!(text(Format::Text), self::page(Format::Text) + &expected);
    let expected = format!(
        "# TYPE DCGM_A unknown\n# HELP DCGM_A An a\\\\b.\n{samples}# TYPE DCGM_B gauge\nDCGM_B -2\n\
         # TYPE DCGM_C unknown\nDCGM_C NaN\n# EOF\n"
    );
    let own = self::page(Format::OpenMetrics);
    assert_eq!(
        text(Format::OpenMetrics),
        own.strip_suffix("# EOF\n").unwrap().to_owned() + &expected
    );

    let page = Format::Protobuf.encode(&exported);
    let own = Format::Protobuf.encode(&snapshot::families().into());
    let mut rest = page.strip_prefix(own.as_slice()).unwrap();
    let mut families = Vec::new();
    while !rest.is_empty() {
        families.push(MetricFamily::decode_length_delimited(&mut rest).unwrap());
    }
    let kinds: Vec<_> =
        families.iter().map(|family| (family.name.as_str(), family.r#type())).collect();
    let expected = [
        ("DCGM_A", MetricType::Counter),
        ("DCGM_B", MetricType::Gauge),
        ("DCGM_C", MetricType::Untyped),
    ];
    assert_eq!(kinds, expected);
    let counters = families[0].metric.iter().map(|metric| metric.counter.as_ref().unwrap().value);
    assert_eq!(counters.collect::<Vec<_>>(), [1.5, 0.0]);
    let label = &families[0].metric[0].label[1];
    assert_eq!((label.name.as_str(), label.value.as_str()), ("pod", "p\"1"));
    assert_eq!(families[0].help, "An a\\b.");
}
