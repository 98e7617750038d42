//! Whether the exporter observes: reported everywhere, before any finding.

use crate::exporter::{Exporter, gpucause};
use crate::http_client;
use crate::poll::until;
use crate::refusals::outcome;
use nix::sys::signal::Signal;
use serde_json::Value;

fn state(exporter: &Exporter) -> Value {
    let response = exporter.chains();
    let answer: Value = serde_json::from_slice(&response.body).unwrap();
    answer["data"]["observation"].clone()
}

fn until_it_is(exporter: &Exporter, wanted: &str) -> Value {
    until(wanted, || Some(state(exporter)).filter(|state| state["state"] == wanted))
}

#[test]
fn probes_that_a_signal_detached_are_reported_everywhere_and_no_report_says_that_nothing_was_found()
{
    let exporter = Exporter::start(&[]);
    let url = exporter.address.to_string();
    let explain = |since: &str| outcome(&mut gpucause(&["explain", since, "--url", &url]));
    let landing = || http_client::get(exporter.address, "/").text().to_owned();
    until_it_is(&exporter, "attached");
    let report = until("a second that was observed", || {
        let (code, report) = explain("--since=1s");
        (code == Some(2)).then_some(report)
    });
    assert!(report.starts_with("OBSERVATION  attached since "), "{report}");
    assert!(report.contains("no causal chain"), "{report}");
    assert!(landing().contains("attached since"), "{}", landing());

    exporter.signal(Signal::SIGUSR1);
    let disabled = until_it_is(&exporter, "disabled");
    assert!(disabled["reason"].as_str().unwrap().contains("SIGUSR1"), "{disabled}");
    assert_eq!(disabled["timed_share"], 0.0);
    assert_eq!(disabled["earlier"][0]["until"], disabled["since"]);
    let (code, report) = explain("--since=1m");
    assert_eq!(code, Some(3), "{report}");
    assert!(report.starts_with("OBSERVATION  disabled since "), "{report}");
    assert!(report.contains("NOT OBSERVED") && !report.contains("no causal chain"), "{report}");
    assert!(landing().contains("disabled since"), "{}", landing());
    let page = exporter.samples();
    assert!(page.has("gpucause_observation_state", &[("state", "disabled")]));
    assert_eq!(page.sum("gpucause_observation_state", &[("state", "disabled")]), 1.0);
    assert_eq!(page.sum("gpucause_observation_state", &[("state", "attached")]), 0.0);
    let since = page.sum("gpucause_observation_state_changed_timestamp_seconds", &[]);
    assert_eq!(Some(since), disabled["since"].as_f64());
    let (_, report) = outcome(&mut gpucause(&["check", "--web.listen-address", &url]));
    let point = format!("disabled     exporter {url}");
    assert!(report.contains(&point) && report.contains(" disabled since "), "{report}");

    exporter.signal(Signal::SIGUSR1);
    until_it_is(&exporter, "attached");
    let (code, report) = explain("--since=1m");
    assert_eq!(code, Some(3), "a part of the minute was not observed: {report}");
    let gap =
        report.lines().find(|line| line.starts_with("NOT OBSERVED") && line.contains("SIGUSR1"));
    assert!(gap.is_some(), "{report}");
}
