//! Headers as scrapers send them, and as nobody should.

use super::*;

const PROTOBUF: &str =
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";

#[test]
fn real_scrapers_get_the_best_format_there_is() {
    let cases = [
        (
            "Prometheus 2.42",
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1".to_owned(),
            Format::OpenMetrics,
        ),
        (
            "Prometheus 2.42 with native histograms",
            format!("{PROTOBUF},application/openmetrics-text;version=1.0.0;q=0.8,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"),
            Format::Protobuf,
        ),
        (
            "Prometheus 2.53",
            "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2".to_owned(),
            Format::OpenMetrics,
        ),
        (
            "Prometheus 2.53 with protobuf",
            format!("{PROTOBUF};q=0.5,application/openmetrics-text;version=1.0.0;q=0.4,application/openmetrics-text;version=0.0.1;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"),
            Format::Protobuf,
        ),
        (
            "Prometheus 3.5",
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1".to_owned(),
            Format::OpenMetrics,
        ),
        (
            "Prometheus 3.5 with protobuf",
            format!("{PROTOBUF};q=0.6,application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"),
            Format::Protobuf,
        ),
        ("VictoriaMetrics 1.145", "text/plain;version=0.0.4;q=1,*/*;q=0.1".to_owned(), Format::Text),
        ("curl", "*/*".to_owned(), Format::Text),
        ("no header", String::new(), Format::Text),
        (
            "a browser",
            "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8".to_owned(),
            Format::Text,
        ),
    ];
    for (scraper, accept, expected) in cases {
        assert_eq!(format(&accept), expected, "{scraper}");
    }
}

#[test]
fn quality_order_and_precision_decide() {
    for (accept, expected) in [
        ("text/plain;q=0.5, application/openmetrics-text;q=0.4", Format::Text),
        ("application/openmetrics-text, text/plain", Format::OpenMetrics),
        ("text/plain, application/openmetrics-text", Format::Text),
        ("text/plain;q=0, */*", Format::OpenMetrics),
        ("application/openmetrics-text;q=0, */*;q=0.1", Format::Text),
        ("APPLICATION/OpenMetrics-Text ; Version=1.0.0 ; Q=1.0", Format::OpenMetrics),
        ("application/openmetrics-text; version=\"1.0.0\"", Format::OpenMetrics),
        ("application/openmetrics-text;version=2.0.0", Format::Text),
        ("application/openmetrics-text;version=0.0.1, text/plain;q=0.1", Format::Text),
        ("application/json", Format::Text),
        (PROTOBUF, Format::Protobuf),
        (&format!("{PROTOBUF};escaping=underscores;x=\"a;q=0,b\""), Format::Protobuf),
        (&format!("{PROTOBUF};q=0.1, text/plain;q=0.2"), Format::Text),
        (&format!("{PROTOBUF};q=0, */*;q=0.1"), Format::Text),
        (&format!("text/plain, {PROTOBUF}"), Format::Text),
        (&PROTOBUF.replace("delimited", "text"), Format::Text),
        (&PROTOBUF.replace("delimited", "compact-text"), Format::Text),
        (&PROTOBUF.replace("MetricFamily", "Metric"), Format::Text),
        ("application/vnd.google.protobuf", Format::Text),
        (
            "application/vnd.google.protobuf, application/openmetrics-text;q=0.1",
            Format::OpenMetrics,
        ),
        ("application/*", Format::OpenMetrics),
    ] {
        assert_eq!(format(accept), expected, "{accept}");
    }
}

#[test]
fn broken_headers_get_text() {
    for accept in [
        ",,,",
        ";;;",
        "q=1",
        "application/openmetrics-text;q=high",
        "application/openmetrics-text;q=2",
        "application/openmetrics-text;q=NaN",
        "\"application/openmetrics-text",
        "\u{1f525}",
    ] {
        assert_eq!(format(accept), Format::Text, "{accept}");
    }
}

#[test]
fn gzip_is_used_only_where_it_is_allowed() {
    for (accept, expected) in [
        ("", false),
        ("gzip", true),
        ("GZIP;q=0.5", true),
        ("gzip;q=0", false),
        ("gzip;q=0.000", false),
        ("deflate, gzip;q=1.0, *;q=0.5", true),
        ("*", true),
        ("*;q=0", false),
        ("gzip;q=0, *", false),
        ("*, gzip;q=0", false),
        ("identity", false),
        ("br, zstd", false),
    ] {
        assert_eq!(gzip(accept), expected, "{accept}");
    }
}
