//! The Prometheus of `--nodes-from`: whom it is asked as, and what its errors say. A server of pages stands in, which has no targets.

use std::net::TcpListener;
use std::process::{Command, Output};

use gpucause_fixture::server::serve;

use super::fleet::PASSWORD;
use super::pairs::Folder;
use super::passwords::users;

/// Returns the error of `query` when it asks this Prometheus, on a host that trusts the authority of a folder.
fn said(url: &str, password: &str, trusted: &Folder, more: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpucause"));
    command.args(["query", "SELECT 1", "--nodes-from", &format!("prometheus:{url}")]).args(more);
    command.env("GPUCAUSE_PROMETHEUS_PASSWORD", password);
    command.env("SSL_CERT_FILE", trusted.path("ca.crt"));
    let Output { status, stderr, .. } = command.output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(78), "{said}");
    assert!(!said.contains(PASSWORD), "{said}");
    said
}

#[test]
fn an_error_says_what_to_do_with_flags_that_the_command_has() {
    let (folder, other) = (Folder::new(), Folder::new());
    let server = serve(&folder.configure(&[], &users(4, &[("alice", PASSWORD)])));
    let port = server.address.port();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (url, password, trusted, advice) in [
        (format!("https://alice@localhost:{port}"), PASSWORD, &folder, "is this a Prometheus?"),
        (
            format!("https://alice@localhost:{port}"),
            "wrong",
            &folder,
            ": wrong user or password - check the user in --nodes-from, and --prometheus-password-file",
        ),
        (
            format!("https://localhost:{port}"),
            "",
            &folder,
            " requires a login - use --nodes-from prometheus:https://USER@HOST:PORT",
        ),
        (format!("https://localhost:{port}"), "", &other, "with --ca-file"),
        (format!("http://{closed}"), "", &other, " - check --nodes-from, and that it runs"),
    ] {
        let said = said(&url, password, trusted, &[]);
        assert!(said.contains(advice), "{url}: {said}");
        assert!(!said.contains("--prometheus,") && !said.contains("1000 nodes"), "{url}: {said}");
    }
}

#[test]
fn its_certificate_may_be_of_an_authority_in_the_file_or_of_one_that_the_host_trusts() {
    let (folder, other) = (Folder::new(), Folder::new());
    let server = serve(&folder.configure(&[], ""));
    let url = format!("https://localhost:{}", server.address.port());
    for (trusted, in_file, is_trusted) in
        [(&other, &folder, true), (&folder, &other, true), (&other, &other, false)]
    {
        let ca_file = in_file.path("ca.crt");
        let said = said(&url, "", trusted, &["--ca-file", ca_file.to_str().unwrap()]);
        assert_eq!(said.contains("answered 404"), is_trusted, "{said}");
        assert_eq!(said.contains("TLS failed"), !is_trusted, "{said}");
    }
}
