//! `gpucause check` tells what `gpucause exporter` would meet.

use super::refusals::{outcome, outcome_as_nobody};
use gpucause_fixture::exporter::gpucause;
use gpucause_fixture::workload::{Workload, libraries};
use std::net::TcpListener;

/// The line about this subject.
#[track_caller]
fn line<'a>(report: &'a str, subject: &str) -> &'a str {
    let about = |line: &&str| {
        line.split_once(' ').is_some_and(|(_, rest)| rest.trim_start().starts_with(subject))
    };
    report.lines().find(about).unwrap_or_else(|| panic!("nothing about {subject}:\n{report}"))
}

#[test]
fn a_host_that_meets_all_requirements_can_run_the_exporter() {
    let workload = Workload::start(&["idle"]);
    let (code, report) = outcome(&mut gpucause(&["check", "--web.listen-address=127.0.0.1:0"]));
    assert_eq!(code, Some(0), "{report}");
    let library = libraries().join("libcudart.so.12").canonicalize().unwrap();
    for subject in [
        "kernel",
        "BTF",
        "uprobes",
        "CAP_BPF",
        "CAP_PERFMON",
        "eBPF programs",
        "listen 127.0.0.1:0",
        library.to_str().unwrap(),
    ] {
        let line = line(&report, subject);
        assert!(line.starts_with("ok "), "{line}");
    }
    let symbols = line(&report, library.to_str().unwrap());
    assert!(symbols.contains(" functions, ") && symbols.contains(" operations"), "{symbols}");
    assert!(report.ends_with("the exporter can run\n"), "{report}");
    drop(workload);
}

#[test]
fn a_taken_port_is_a_failure_that_names_who_has_it() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, report) = outcome(&mut gpucause(&["check", "--web.listen-address", &address]));
    assert_eq!(code, Some(1), "{report}");
    let port = line(&report, &format!("listen {address}"));
    assert!(port.starts_with("failed "), "{port}");
    assert!(port.contains("dcgm-exporter") && port.contains("--web.listen-address"), "{port}");
    assert!(port.contains(&format!("(PID {})", std::process::id())), "{port}");
    assert!(report.ends_with("the exporter cannot run\n"), "{report}");
}

#[test]
fn each_missing_capability_is_reported_with_its_fix() {
    let (code, report) = outcome_as_nobody(&["check", "--web.listen-address=127.0.0.1:0"]);
    assert_eq!(code, Some(1), "{report}");
    for (subject, state) in [
        ("CAP_BPF", "failed "),
        ("CAP_PERFMON", "failed "),
        ("CAP_SYS_PTRACE", "disabled "),
        ("CAP_DAC_READ_SEARCH", "disabled "),
    ] {
        let capability = line(&report, subject);
        assert!(capability.starts_with(state), "{capability}");
        assert!(capability.contains("run as root") && capability.contains("systemd"));
    }
    let programs = line(&report, "eBPF programs");
    assert!(programs.starts_with("failed ") && programs.contains("grant CAP_BPF"), "{programs}");
    assert!(report.ends_with("the exporter cannot run\n"), "{report}");
}
