//! The command as the shell and systemd see it: exit codes, messages, signals.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its fixtures too")]

#[path = "fixture/http_client.rs"]
mod http_client;

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Output, Stdio};

fn gpucause(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpucause"));
    command.args(arguments);
    command
}

fn outcome(arguments: &[&str]) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = gpucause(arguments).output().unwrap();
    (status.code(), String::from_utf8([stdout, stderr].concat()).unwrap())
}

/// A started exporter and the address that it logs. Nobody reads its log from then on.
fn started(format: &str) -> (Child, SocketAddr) {
    let arguments = ["exporter", "--web.listen-address=127.0.0.1:0", "--log.format", format];
    let mut child = gpucause(&arguments).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let address = lines
        .map_while(Result::ok)
        .find_map(|line| {
            let (_, rest) = line.split_once("127.0.0.1:")?;
            let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
            Some(([127, 0, 0, 1], port.parse().ok()?).into())
        })
        .unwrap();
    (child, address)
}

#[test]
fn a_taken_port_is_a_run_time_error_that_says_what_to_do() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, output) = outcome(&["exporter", "--web.listen-address", &address]);
    assert_eq!(code, Some(1), "{output}");
    for part in [&*address, "in use", "9400", "dcgm-exporter", "--web.listen-address"] {
        assert!(output.contains(part), "{part} is missing in {output}");
    }
}

#[test]
fn an_address_of_another_host_is_a_configuration_error() {
    let (code, output) = outcome(&["exporter", "--web.listen-address=192.0.2.1:0"]);
    assert_eq!(code, Some(78), "{output}");
}

#[test]
fn wrong_command_lines_are_usage_errors() {
    for arguments in [
        &["exporter", "--no-such-flag"][..],
        &["exporter", "--web.listen-address=9400"],
        &["exporter", "--web.telemetry-path=metrics"],
        &["exporter", "--retention=soon"],
        &["exporter", "--log.level=loud"],
        &["no-such-command"],
        &[],
    ] {
        let (code, output) = outcome(arguments);
        assert_eq!(code, Some(64), "{arguments:?}: {output}");
    }
}

#[test]
fn help_and_version_succeed() {
    let (code, output) = outcome(&["--version"]);
    assert_eq!(code, Some(0));
    assert!(output.starts_with(concat!("gpucause ", env!("CARGO_PKG_VERSION"), " (")), "{output}");
    let (code, output) = outcome(&["exporter", "--help"]);
    assert_eq!(code, Some(0));
    assert!(output.contains("--web.listen-address") && output.contains("[default: :9400]"));
}

#[test]
fn the_exporter_serves_until_it_is_terminated_though_nobody_reads_its_log() {
    for (format, signal) in [("logfmt", "-TERM"), ("json", "-INT")] {
        let (mut child, address) = started(format);
        let page = http_client::get(address, "/metrics");
        assert_eq!(page.status, 200);
        assert_eq!(page.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
        assert!(page.text().contains("gpucause_build_info{"), "{}", page.text());
        let pid = child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        assert_eq!(child.wait().unwrap().code(), Some(0), "{signal}");
    }
}
