//! `gpucause check`, as any user may run it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};

use serde_json::Value;

use super::errors::streams;

/// The points of `check --json` about this subject.
fn points(arguments: &[&str], subject: &str) -> Vec<Value> {
    let (_, stdout, stderr) = streams(&[&["check", "--json"], arguments].concat());
    let report: Value = serde_json::from_str(&stdout).map_err(|_| stderr).unwrap();
    assert_eq!(report["version"], 1, "{report}");
    let points = report["points"].as_array().unwrap();
    let about = |point: &&Value| point["subject"].as_str().unwrap().starts_with(subject);
    points.iter().filter(about).cloned().collect()
}

/// Answers every request with the body for its path.
pub(crate) fn server(bodies: &'static [(&'static str, String)]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut request = [0; 2048];
            let length = client.read(&mut request).unwrap();
            let request = String::from_utf8_lossy(&request[..length]).into_owned();
            let path = request.split(' ').nth(1).unwrap_or_default();
            let body = bodies.iter().find(|(own, _)| path.starts_with(own));
            let (status, body) = body.map_or(("404 x", ""), |(_, body)| ("200 OK", body));
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n", body.len());
            let _ = client.write_all(format!("{head}Connection: close\r\n\r\n{body}").as_bytes());
        }
    });
    address
}

#[test]
fn check_takes_the_flags_of_the_exporter_and_reports_their_files() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.yaml");
    std::fs::write(&config, "probe: {enabled: false}\n").unwrap();
    let flag = format!("--config.file={}", config.display());
    let (_, stdout, stderr) = streams(&[
        "check",
        &flag,
        "--web.listen-address=127.0.0.1:0",
        "--web.telemetry-path=/m",
        "--log.level=debug",
        "--retention=1m",
        "--metrics.level=fleet",
        "--nvml.off",
        "--flight-recorder.dir=/nonexistent/folder",
    ]);
    assert!(stdout.contains("probe.enabled is false"), "{stdout}{stderr}");
    assert!(stdout.contains("failed       flight recorder"), "{stdout}");
    let counts = stdout.lines().last().unwrap();
    assert!(counts.contains(" ok, ") && counts.ends_with("the exporter cannot run"), "{counts}");
    let is_failed = |line: &&str| line.starts_with("failed ");
    let after = stdout.lines().skip_while(|line| !is_failed(line));
    assert!(after.skip_while(is_failed).all(|line| line.is_empty() || line == counts), "{stdout}");
}

#[test]
fn an_invalid_configuration_has_its_own_exit_code_and_a_wrong_flag_another() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "limits: {scrapes: 0}\n").unwrap();
    let path = file.path().to_str().unwrap();
    for flag in ["--config", "--config.file"] {
        let (code, stdout, _) =
            streams(&["doctor", "--web.listen-address=127.0.0.1:0", flag, path]);
        assert_eq!(code, Some(78), "{stdout}");
        assert!(stdout.contains("limits.scrapes is 0"), "{stdout}");
    }
    let (code, _, stderr) = streams(&["check", "--prometheus", "ftp://localhost:9090"]);
    assert_eq!(code, Some(64), "{stderr}");
    assert!(stderr.contains("expected http://HOST:PORT"), "{stderr}");
}

#[test]
fn a_port_that_another_program_has_is_reported_with_its_name_and_pid() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let found = points(&["--web.listen-address", &address], "listen ");
    assert_eq!((&found[0]["state"], &found[0]["required"]), (&"failed".into(), &true.into()));
    let detail = found[0]["detail"].as_str().unwrap();
    assert!(detail.contains(&format!("(PID {})", std::process::id())), "{detail}");
    assert!(found[0]["advice"].as_str().unwrap().contains("--web.listen-address"), "{found:?}");
}

#[test]
fn dcgm_is_reachable_or_not() {
    let page =
        "# TYPE DCGM_FI_DEV_GPU_UTIL gauge\nDCGM_FI_DEV_GPU_UTIL{gpu=\"0\",UUID=\"GPU-1\"} 5\n";
    let bodies = vec![("/metrics", page.to_owned())].leak();
    let here = ["--web.listen-address=127.0.0.1:0", "--dcgm.url"];
    let url = format!("http://{}", server(bodies));
    let found = points(&[&here[..], &[&url]].concat(), "dcgm-exporter");
    assert_eq!(found[0]["state"], "ok", "{found:?}");
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{closed}");
    let found = points(&[&here[..], &[&url]].concat(), "dcgm-exporter");
    assert_eq!(found[0]["state"], "failed", "{found:?}");
    assert!(found[0]["advice"].as_str().unwrap().contains("running there"), "{found:?}");
}

#[test]
fn a_prometheus_is_asked_for_this_host_and_the_rules() {
    let target = r#"{"status":"success","data":{"activeTargets":[{"scrapeUrl":"http://127.0.0.1:19400/metrics","health":"up","lastError":""}]}}"#;
    let rules = r#"{"status":"success","data":{"groups":[{"name":"a","rules":[{"name":"GpucauseExporterDown","health":"ok","type":"alerting"}]}]}}"#;
    let bodies = vec![("/api/v1/targets", target.to_owned()), ("/api/v1/rules", rules.to_owned())];
    let url = format!("http://{}", server(bodies.leak()));
    let ask = |address: &str| {
        let listen = format!("--web.listen-address={address}");
        points(&[&listen, "--prometheus", &url], "prometheus ")
    };
    let found = ask("127.0.0.1:19400");
    let states: Vec<_> = found.iter().map(|point| point["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["ok", "failed"], "{found:?}");
    assert!(found[1]["detail"].as_str().unwrap().contains("alerts/exporter.yaml ("), "{found:?}");
    let other = ask("127.0.0.1:19401");
    assert_eq!(other[0]["state"], "failed", "{other:?}");
    assert!(other[0]["detail"].as_str().unwrap().contains("no target"), "{other:?}");
}

#[test]
fn a_prometheus_gets_the_password_of_a_file_for_the_user_of_its_address() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://me@{}", listener.local_addr().unwrap());
    let client = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut request = [0; 2048];
        let length = client.read(&mut request).unwrap();
        String::from_utf8_lossy(&request[..length]).to_lowercase()
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "secret\n").unwrap();
    let here = ["--web.listen-address=127.0.0.1:0", "--prometheus", &url];
    let without = points(&here, "prometheus");
    let advice = without[0]["advice"].as_str().unwrap();
    assert!(advice.contains("--prometheus-password-file"), "{without:?}");
    let path = file.path().to_str().unwrap();
    points(&[&here[..], &["--prometheus-password-file", path]].concat(), "prometheus");
    let request = client.join().unwrap();
    // me:secret
    assert!(request.contains("authorization: basic bwu6c2vjcmv0"), "{request}");
}
