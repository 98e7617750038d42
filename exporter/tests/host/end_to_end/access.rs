//! The exporter with a web configuration, asked with curl as people do, and what a crowd of bad clients leaves behind.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use gpucause_fixture::exporter::{Exporter, gpucause};
use gpucause_fixture::http_client::{connect, get};
use gpucause_fixture::poll::until;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use super::python::Python;
use super::refusals::outcome;

/// Writes `ca.crt`, and `NAME.crt` and `NAME.key` for each name.
fn certificates(folder: &Path, names: &[&str]) {
    let write = |name: String, text: String| std::fs::write(folder.join(name), text).unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // OpenSSL takes a certificate for self-signed whose name is that of its issuer.
    params.distinguished_name.push(DnType::CommonName, "authority");
    let key = KeyPair::generate().unwrap();
    write("ca.crt".to_owned(), params.self_signed(&key).unwrap().pem());
    let issuer = Issuer::new(params, key);
    for name in names {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![(*name).to_owned()]).unwrap();
        write(format!("{name}.crt"), params.signed_by(&key, &issuer).unwrap().pem());
        write(format!("{name}.key"), key.serialize_pem());
    }
}

/// Status and body that curl gets, or its exit code and no body.
fn curl(folder: &Path, address: SocketAddr, path: &str, arguments: &[&str]) -> (String, String) {
    let url = format!("https://localhost:{}{path}", address.port());
    let Output { status, stdout, .. } = Command::new("curl")
        .current_dir(folder)
        .args(["--silent", "--ipv4", "--cacert", "ca.crt", "--write-out", "\n%{http_code}", &url])
        .args(arguments)
        .output()
        .expect("curl is there");
    let text = String::from_utf8(stdout).unwrap();
    let (body, code) = text.rsplit_once('\n').unwrap();
    let code = if status.success() { code.to_owned() } else { format!("exit {status}") };
    (code, body.to_owned())
}

#[test]
fn curl_gets_in_with_certificate_and_password_and_not_without() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("web.yml");
    certificates(folder.path(), &["localhost", "prometheus.example", "grafana.example"]);
    std::fs::write(
        &file,
        format!(
            "tls_server_config:\n  cert_file: localhost.crt\n  key_file: localhost.key\n  client_ca_file: ca.crt\n  \
             client_auth_type: RequireAndVerifyClientCert\n  client_allowed_sans: [prometheus.example]\n  min_version: TLS13\n\
             basic_auth_users:\n  alice: {}\n",
            bcrypt::hash("secret", 10).unwrap()
        ),
    )
    .unwrap();
    let file = file.to_str().unwrap();
    let shown = ["--cert", "prometheus.example.crt", "--key", "prometheus.example.key"];
    let with = |more: &[&'static str]| [&shown, more].concat();
    let exporter = Exporter::start_until(&["--web.config.file", file], |address| {
        curl(folder.path(), address, "/-/ready", &with(&["-u", "alice:secret"])).0 == "200"
    });
    let ask = |path, arguments: &[&str]| curl(folder.path(), exporter.address, path, arguments);
    let (code, page) = ask("/metrics", &with(&["-u", "alice:secret"]));
    assert_eq!(code, "200");
    assert!(page.contains("\ngpucause_web_config_last_reload_successful 1\n"), "{page}");
    assert!(page.contains("\ngpucause_web_config_reload_failures_total 0\n"), "{page}");
    for arguments in [with(&[]), with(&["-u", "alice:wrong"]), with(&["-u", "mallory:secret"])] {
        assert_eq!(ask("/metrics", &arguments).0, "401", "{arguments:?}");
    }
    let other =
        ["--cert", "grafana.example.crt", "--key", "grafana.example.key", "-u", "alice:secret"];
    let old = with(&["-u", "alice:secret", "--tls-max", "1.2"]);
    for refused in [&other[..], &["-u", "alice:secret"], &old] {
        assert!(ask("/metrics", refused).0.starts_with("exit"), "{refused:?}");
    }
    assert_eq!(ask("/api/v1/chains", &with(&["-u", "alice:secret"])).0, "200");

    std::fs::write(folder.path().join("localhost.crt"), "not a certificate").unwrap();
    until("the failure on the page", || {
        let page = ask("/metrics", &with(&["-u", "alice:secret"])).1;
        page.contains("\ngpucause_web_config_reload_failures_total 1\n").then_some(())
    });
    until("the failure in the log", || exporter.log().contains("localhost.crt").then_some(()));
    assert!(!exporter.log().contains("secret"), "{}", exporter.log());
    let (code, report) = outcome(&mut gpucause(&[
        "check",
        "--web.listen-address=127.0.0.1:0",
        "--web.config.file",
        file,
    ]));
    assert_eq!(code, Some(78), "{report}");
}

#[test]
fn check_tells_what_a_web_configuration_comes_to() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("web.yml");
    certificates(folder.path(), &["localhost"]);
    std::fs::write(
        &file,
        "tls_server_config: {cert_file: localhost.crt, key_file: localhost.key}\n",
    )
    .unwrap();
    let arguments =
        ["check", "--web.listen-address=127.0.0.1:0", "--web.config.file", file.to_str().unwrap()];
    let (code, report) = outcome(&mut gpucause(&arguments));
    assert_eq!(code, Some(0), "{report}");
    assert!(report.contains("TLS 1.2 and 1.3, no client certificates, no users"), "{report}");
}

/// Listens at another loopback address until its standard input ends.
const LISTENS_TOO: &str = "
import socket, sys
listener = socket.create_server(('127.0.0.2', int(sys.argv[1])))
sys.stdin.read()
";

#[test]
fn a_program_of_another_user_on_the_port_keeps_the_token_back_and_is_named() {
    const NOBODY: u32 = 65534;
    let exporter = Exporter::start(&[]);
    let port = exporter.address.port();
    let url = exporter.address.to_string();
    let explain = || outcome(&mut gpucause(&["explain", "--since=1s", "--url", &url]));
    let mut stranger = Command::new("python3");
    stranger.args(["-c", LISTENS_TOO, &port.to_string()]).stdin(Stdio::piped()).current_dir("/");
    let stranger = Python(stranger.uid(NOBODY).gid(NOBODY).spawn().unwrap());
    let place = format!("at 127.0.0.2:{port}");
    let (code, said) = until("the refusal", || {
        let outcome = explain();
        outcome.1.contains(&place).then_some(outcome)
    });
    assert_eq!(code, Some(1), "{said}");
    let who = format!("(PID {}) of user nobody", stranger.0.id());
    assert!(said.contains(&who) && !said.contains("sudo"), "{said}");
    let (_, report) = outcome(&mut gpucause(&["check", "--web.listen-address", &url]));
    let point = report.lines().find(|line| line.contains("exporter 127.0.0.1")).unwrap();
    assert!(point.starts_with("failed ") && point.contains(&who), "{point}");
    drop(stranger);
    let (code, said) = explain();
    assert!(code != Some(1), "{said}");
}

/// Memory that the process allocated and uses, in KiB. Without pages of files, which the kernel takes away and reads again.
fn allocated(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// A crowd: slow ones, many at a time, and malformed requests one after the other.
fn crowd(server: SocketAddr, malformed: usize) {
    let slow: Vec<_> = (0..500)
        .map(|_| {
            let mut stream = connect(server);
            stream.write_all(b"GET /metrics HTTP/1.1\r\nX: ").unwrap();
            stream
        })
        .collect();
    assert_eq!(get(server, "/metrics").status, 200);
    drop(slow);
    let many: Vec<_> = (0..1_000)
        .map(|_| {
            let mut stream = connect(server);
            let _ = stream
                .write_all(b"GET /-/healthy HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            stream
        })
        .collect();
    for mut stream in many {
        let mut text = Vec::new();
        stream.read_to_end(&mut text).unwrap();
        assert!(text.starts_with(b"HTTP/1.1 200"));
    }
    for n in 0..malformed {
        let mut stream = connect(server);
        let _ = stream.write_all(format!("G{n}T / HTTP/\0.{n}\r\n\r\n").as_bytes());
        let _ = stream.shutdown(Shutdown::Write);
    }
}

#[test]
fn a_crowd_of_bad_clients_leaves_no_memory_behind() {
    let exporter = Exporter::start(&[]);
    // The allocator keeps the most that was in use at any time, which is the same after a few.
    (0..3).for_each(|_| crowd(exporter.address, 1_000));
    let before = allocated(exporter.pid());
    crowd(exporter.address, 10_000);
    until("the memory's return", || {
        assert_eq!(get(exporter.address, "/metrics").status, 200);
        (allocated(exporter.pid()) < before + 4 * 1024).then_some(())
    });
}
