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
fn a_folder_that_may_be_mounted_later_is_no_invalid_configuration() {
    let flags = ["--web.listen-address=127.0.0.1:0", "--flight-recorder.dir=/none"];
    let (code, stdout, _) = streams(&[&["check"], &flags[..]].concat());
    assert_eq!(code, Some(1), "{stdout}");
    assert!(stdout.ends_with("the exporter cannot run\n"), "{stdout}");
    let (code, _, stderr) = streams(&[&["exporter"], &flags[..]].concat());
    assert_eq!(code, Some(1), "{stderr}");
}

#[test]
fn check_refuses_the_files_with_which_the_exporter_does_not_start() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let with = |text: &str| {
        std::fs::write(file.path(), text).unwrap();
        format!("--config.file={}", file.path().display())
    };
    let here = "--web.listen-address=127.0.0.1:0";
    let closed = "127.0.0.1:1";
    for (arguments, named) in [
        (
            vec![format!("--otlp.endpoint=http://{closed}"), "--otlp.headers-file=/none".into()],
            "/none",
        ),
        (vec![format!("--otlp.endpoint=https://{closed}"), "--otlp.ca-file=/none".into()], "/none"),
        (vec![format!("--peers.url=http://me@{closed}")], "no password for me"),
        (
            vec![format!("--peers.url=http://me@{closed}"), "--peers.password-file=/none".into()],
            "/none",
        ),
        (vec![format!("--dcgm.url=https://{closed}"), "--dcgm.ca-file=/none".into()], "/none"),
    ] {
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let (code, stdout, _) = streams(&[&["check", here], &*arguments].concat());
        assert_eq!(code, Some(78), "{arguments:?}: {stdout}");
        let is_it = |line: &str| line.starts_with("failed ") && line.contains(named);
        assert!(stdout.lines().any(is_it), "{arguments:?}: {stdout}");
        assert!(stdout.ends_with("the exporter cannot run\n"), "{arguments:?}: {stdout}");
        let (code, _, stderr) = streams(&[&["exporter", here], &*arguments].concat());
        assert_eq!(code, Some(78), "{arguments:?}: {stderr}");
        assert!(stderr.contains(named), "{arguments:?}: {stderr}");
    }
    let text = "otlp: {endpoint: 'http://127.0.0.1:1', headers_file: /none}\n\
                peers: {url: 'https://127.0.0.1:1', ca_file: /none}\n";
    let flag = with(text);
    let (code, stdout, _) = streams(&["check", here, &flag]);
    assert_eq!(code, Some(78), "{stdout}");
    let (code, stdout, _) = streams(&["exporter", "--config.check", &flag]);
    assert_eq!(code, Some(78), "{stdout}");
    let lines: Vec<_> = stdout.lines().collect();
    let [otlp, peers] = lines[..] else { panic!("{stdout}") };
    assert!(otlp.starts_with("otlp.headers_file: ") && peers.starts_with("peers: "), "{stdout}");
}

/// A port where nobody listens.
fn closed_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// The state, detail and advice of the only point about a flag.
fn asked(flag: &str, url: &str) -> [String; 3] {
    let arguments = ["--web.listen-address=127.0.0.1:0", &*format!("--{flag}={url}")];
    let found = points(&arguments, flag);
    let [point] = &found[..] else { panic!("{found:?}") };
    assert_eq!(point["required"], false, "{point}");
    ["state", "detail", "advice"].map(|key| point[key].as_str().unwrap_or_default().to_owned())
}

#[test]
fn an_otlp_endpoint_takes_records_or_the_point_says_why_not() {
    let receiver = format!("http://{}", server(vec![("/v1/logs", String::new())].leak()));
    let [state, detail, _] = asked("otlp.endpoint", &receiver);
    assert_eq!(state, "ok", "{detail}");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for (url, why) in [
        (format!("http://{}", closed_port()), "cannot connect"),
        (format!("http://{}", server(&[])), "404"),
        (format!("http://{}", silent.local_addr().unwrap()), "no answer within"),
        (format!("http://{}", server(vec![("/v1/logs", "a page".into())].leak())), "no receiver"),
    ] {
        let [state, detail, advice] = asked("otlp.endpoint", &url);
        assert!(state == "failed" && detail.contains(why), "{url}: {state} {detail}");
        assert!(advice.contains("check "), "{advice}");
    }
}

#[test]
fn the_prometheus_of_peers_answers_and_has_the_rules_or_the_point_says_what_is_missing() {
    let all = [
        "rank:gpucause_nccl_wait:least2_1m",
        "process:gpucause_nccl_wait:ratio_rate1m",
        "peers:gpucause_nccl_wait:count",
    ];
    let series = |names: &[&str]| {
        let one =
            |name: &&str| format!(r#"{{"metric":{{"__name__":"{name}"}},"value":[1.5,"1"]}}"#);
        let all = names.iter().map(one).collect::<Vec<_>>().join(",");
        ("/api/v1/query", format!(r#"{{"status":"success","data":{{"result":[{all}]}}}}"#))
    };
    let rules = |names: &[&str]| {
        let one = |name: &&str| format!(r#"{{"name":"{name}"}}"#);
        let all = names.iter().map(one).collect::<Vec<_>>().join(",");
        (
            "/api/v1/rules",
            format!(r#"{{"status":"success","data":{{"groups":[{{"rules":[{all}]}}]}}}}"#),
        )
    };
    for (bodies, expected, what) in [
        (vec![series(&all)], "ok", "has the rules"),
        (vec![series(&[]), rules(&all)], "ok", "has the rules"),
        (vec![series(&[])], "ok", "does not list its rules"),
        (vec![series(&[]), rules(&["other"])], "failed", all[0]),
        (vec![series(&[]), rules(&all[..2])], "failed", ": peers:gpucause_nccl_wait:count"),
        (vec![], "failed", "404"),
    ] {
        let url = format!("http://{}", server(bodies.leak()));
        let [state, detail, _] = asked("peers.url", &url);
        assert_eq!(state, expected, "{detail}");
        assert!(detail.contains(what), "{what}: {detail}");
    }
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let [state, detail, _] =
        asked("peers.url", &format!("http://{}", silent.local_addr().unwrap()));
    assert!(state == "failed" && detail.contains("did not answer within"), "{detail}");
    let [state, detail, advice] = asked("peers.url", &format!("http://{}", closed_port()));
    assert!(state == "failed" && detail.contains("cannot connect"), "{detail}");
    assert!(advice.contains("peers.url"), "{advice}");
}

#[test]
fn files_that_nothing_uses_are_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for flag in ["otlp.headers-file", "peers.password-file"] {
        let argument = format!("--{flag}={}", file.path().display());
        let (subject, _) = flag.split_once('.').unwrap();
        let found =
            points(&["--web.listen-address=127.0.0.1:0", &argument], &format!("{subject}."));
        assert_eq!(found[0]["state"], "disabled", "{found:?}");
        assert!(found[0]["detail"].as_str().unwrap().contains("not used"), "{found:?}");
    }
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
    for (name, state) in [("GPU_UTIL_RATIO", "ok"), ("GPU_ACTIVITY", "unsupported")] {
        let page = page.replace("GPU_UTIL", name);
        let url = format!("http://{}", server(vec![("/metrics", page)].leak()));
        let found = points(&[&here[..], &[&url]].concat(), "dcgm-exporter");
        assert_eq!(found[0]["state"], state, "{found:?}");
    }
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
    let busy = r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"8"]}]}}"#;
    let bodies = [("targets", target), ("rules", rules), ("query", busy)];
    let bodies = bodies.map(|(name, body)| (&*format!("/api/v1/{name}").leak(), body.to_owned()));
    let bodies = bodies.to_vec();
    let url = format!("http://{}", server(bodies.leak()));
    let ask = |address: &str| {
        let listen = format!("--web.listen-address={address}");
        points(&[&listen, "--prometheus", &url], "prometheus ")
    };
    let found = ask("127.0.0.1:19400");
    let states: Vec<_> = found.iter().map(|point| point["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["ok", "failed", "ok"], "{found:?}");
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
