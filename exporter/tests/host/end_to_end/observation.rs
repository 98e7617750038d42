//! The exporter reports everywhere whether it observes, before any finding.

use super::refusals::outcome;
use gpucause_fixture::exporter::{Exporter, gpucause};
use gpucause_fixture::http_client;
use gpucause_fixture::poll::until;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::process::Command;

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

#[test]
fn an_exporter_in_a_pid_namespace_of_its_own_observes_nothing_and_says_so_everywhere() {
    let own_namespace =
        ["--pid", "--fork", "--mount-proc", "--kill-child", env!("CARGO_BIN_EXE_gpucause")];
    let inside = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(own_namespace).args(arguments);
        command.envs(gpucause(&[]).get_envs().filter_map(|(name, value)| Some((name, value?))));
        command
    };
    let mut exporter = inside(&["exporter", "--web.listen-address=127.0.0.1:0"]);
    let exporter = Exporter::of_unready(&mut exporter);
    let url = exporter.address.to_string();
    let disabled = until_it_is(&exporter, "disabled");
    until("more than the search for libraries", || {
        let reason = state(&exporter)["reason"].as_str().unwrap().to_owned();
        reason.contains("hostPID: true").then_some(())
    });
    assert_eq!(disabled["timed_share"], 0.0);
    let (code, report) = outcome(&mut gpucause(&["explain", "--since=1s", "--url", &url]));
    assert_eq!(code, Some(3), "{report}");
    assert!(report.contains("--pid=host") && !report.contains("no causal chain"), "{report}");
    let ready = http_client::get(exporter.address, "/-/ready");
    assert!(ready.status == 503 && ready.text().contains("hostPID"), "{}", ready.text());
    let landing = http_client::get(exporter.address, "/").text().to_owned();
    assert!(landing.contains("disabled since"), "{landing}");
    let page = exporter.samples();
    assert_eq!(page.sum("gpucause_observation_state", &[("state", "disabled")]), 1.0);
    let log = exporter.log();
    let warning = log.lines().find(|line| line.contains("level=warn") && line.contains("hostPID"));
    assert!(warning.is_some(), "{log}");
    let (code, report) = outcome(&mut inside(&["check", "--web.listen-address=127.0.0.1:0"]));
    assert_eq!(code, Some(1), "{report}");
    let point = report.lines().find(|line| line.contains("PID namespace")).unwrap();
    assert!(point.starts_with("failed ") && point.contains("hostPID: true"), "{point}");
}
