//! A dcgm-exporter beside the daemon, well and unwell: nothing that it does may hurt our own metrics.

use super::upstream::{Answer, Upstream};
use gpucause_fixture::exporter::{Exporter, gpucause};
use gpucause_fixture::poll::until;
use gpucause_fixture::samples::Samples;
use std::time::{Duration, Instant};

const PAGE: &[u8] = b"# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).\n# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n\
DCGM_FI_DEV_GPU_UTIL{gpu=\"0\",UUID=\"GPU-1\",modelName=\"NVIDIA H200\",Hostname=\"n1\"} 97 1700000000000\n\
# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter\n\
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu=\"0\",UUID=\"GPU-1\"} 12345\ngo_goroutines 9\n";
const UTIL: &str = "DCGM_FI_DEV_GPU_UTIL";

/// Longer than a scrape takes, and far shorter than an upstream may.
const PROMPT: Duration = Duration::from_secs(2);

/// A page, which must have come at once and be whole.
fn prompt_page(exporter: &Exporter) -> Samples {
    let begin = Instant::now();
    let page = exporter.samples();
    assert!(begin.elapsed() < PROMPT, "{:?}", begin.elapsed());
    let builds = page.of("gpucause_build_info", &[]).len();
    assert_eq!((builds, page.of("gpucause_dcgm_up", &[]).len()), (1, 1));
    page
}

fn until_failed(exporter: &Exporter, reason: &str) -> Samples {
    until(&format!("a failure for being {reason}"), || {
        let page = prompt_page(exporter);
        let failures = page.sum("gpucause_dcgm_fetch_failures_total", &[("reason", reason)]);
        (failures > 0.0).then_some(page)
    })
}

#[test]
fn a_failing_upstream_does_not_delay_our_own_metrics() {
    let upstream = Upstream::start(Answer::Page(PAGE.into()));
    let url = upstream.url();
    let exporter = Exporter::start(&["--dcgm.url", &url, "--dcgm.interval=200ms", "--nvml.off"]);
    let merged = || {
        until("the upstream's metrics", || {
            let page = prompt_page(&exporter);
            (page.sum("gpucause_dcgm_up", &[]) == 1.0).then_some(page)
        })
    };
    let page = merged();
    assert_eq!(page.sum(UTIL, &[("UUID", "GPU-1"), ("Hostname", "n1")]), 97.0);
    assert_eq!(page.sum("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", &[]), 12_345.0);
    assert!(!page.has("go_goroutines", &[]));
    let openmetrics = exporter.scrape("Accept: application/openmetrics-text; version=1.0.0\r\n");
    assert!(openmetrics.text().ends_with("# EOF\n"));
    assert!(openmetrics.text().contains("\n# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION unknown\n"));

    for (answer, reason) in [
        (Answer::Status("500 Internal Server Error"), "status"),
        (Answer::Page((0..=255).cycle().take(100_000).collect()), "malformed"),
        (Answer::Page([PAGE, b"gpucause_build_info 2\n"].concat()), "malformed"),
        (Answer::Endless, "huge"),
        (Answer::Hangup, "broken"),
    ] {
        upstream.set(answer);
        until_failed(&exporter, reason);
        let page = until("the end of what is too old", || {
            let page = prompt_page(&exporter);
            (!page.has(UTIL, &[])).then_some(page)
        });
        assert_eq!(page.sum("gpucause_dcgm_up", &[]), 0.0);
        assert!(!page.has("gpucause_dcgm_page_age_seconds", &[]));
        upstream.set(Answer::Page(PAGE.into()));
        merged();
    }
    upstream.set(Answer::Silence);
    until_failed(&exporter, "slow");
    assert!(!prompt_page(&exporter).has(UTIL, &[]));
    let log = exporter.log();
    let logged = |what: &str| log.matches(what).count();
    assert_eq!(logged("dcgm-exporter's metrics are on the page"), 6, "once a change");
    assert!(logged("missing from the page") <= 6, "once a change");
}

#[test]
fn an_upstream_that_is_not_there_costs_nothing() {
    let exporter = Exporter::start(&["--dcgm.url=http://127.0.0.1:9", "--dcgm.interval=200ms"]);
    let page = until_failed(&exporter, "unreachable");
    assert!(!page.has(UTIL, &[]));
    assert_eq!(exporter.log().matches("is dcgm-exporter running there").count(), 1);
}

#[test]
fn an_address_that_cannot_be_asked_is_a_usage_error() {
    let output = gpucause(&["exporter", "--dcgm.url=ftp://h:9401"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("http://HOST:PORT/metrics"), "{message}");
}
