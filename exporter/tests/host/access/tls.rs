//! Encryption, and what is asked of clients' certificates.

use gpucause_fixture::http_client;
use gpucause_fixture::server::serve;
use rustls::{CipherSuite, ProtocolVersion};

use super::pairs::{Authority, Folder};
use super::tls_client::Asking;

#[test]
fn pages_are_served_over_tls_and_plain_http_is_refused_with_a_hint() {
    let folder = Folder::new();
    let server = serve(
        &folder.configure(&[], "http_server_config:\n  headers:\n    X-Frame-Options: deny\n"),
    );
    let answer = Asking::new(&folder).get(server.address, "/metrics").unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.version, ProtocolVersion::TLSv1_3);
    assert!(answer.text.contains("\r\nx-frame-options: deny\r\n"));
    assert!(answer.text.contains("gpucause_build_info{"));
    let plain = http_client::get(server.address, "/metrics");
    assert!(plain.head.starts_with("http/1.1 400 "), "{:?}", plain.head);
    assert!(plain.text().contains("https://"), "{}", plain.text());
}

#[test]
fn versions_and_suites_are_those_of_the_configuration() {
    let folder = Folder::new();
    let server = serve(&folder.configure(&["min_version: TLS13"], ""));
    let old = Asking { versions: &[&rustls::version::TLS12], ..Asking::new(&folder) };
    assert!(old.get(server.address, "/").is_err());
    assert_eq!(Asking::new(&folder).get(server.address, "/").unwrap().status(), 200);

    let suites =
        ["max_version: TLS12", "cipher_suites: [TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256]"];
    let server = serve(&folder.configure(&suites, ""));
    let answer = Asking::new(&folder).get(server.address, "/").unwrap();
    assert_eq!(answer.version, ProtocolVersion::TLSv1_2);
    assert_eq!(answer.suite.suite(), CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256);
    let new = Asking { versions: &[&rustls::version::TLS13], ..Asking::new(&folder) };
    assert!(new.get(server.address, "/").is_err());
}

/// Returns true for each client that gets in under a policy: without a certificate, with one of a stranger, and with a good one.
fn let_in(policy: &str, with_authority: bool) -> [bool; 3] {
    let folder = Folder::new();
    let policy = format!("client_auth_type: {policy}");
    let lines: &[&str] =
        if with_authority { &[&policy, "client_ca_file: ca.crt"] } else { &[&policy] };
    let server = serve(&folder.configure(lines, ""));
    let stranger = Authority::new().pair("prometheus.example");
    let good = folder.authority.pair("prometheus.example");
    [Asking::new(&folder), Asking::with(&folder, &stranger), Asking::with(&folder, &good)].map(
        |asking| {
            let versions: [&'static _; 2] = [&rustls::version::TLS12, &rustls::version::TLS13];
            let [old, new] = versions.map(|version| {
                let asking = Asking { versions: &[version], ..asking };
                asking.get(server.address, "/-/healthy").is_ok_and(|answer| answer.status() == 200)
            });
            assert_eq!(old, new, "{policy}");
            old
        },
    )
}

#[test]
fn each_policy_lets_in_whom_it_says() {
    assert_eq!(let_in("NoClientCert", false), [true, true, true]);
    assert_eq!(let_in("RequestClientCert", false), [true, true, true]);
    assert_eq!(let_in("RequireAnyClientCert", false), [false, true, true]);
    assert_eq!(let_in("VerifyClientCertIfGiven", true), [true, false, true]);
    assert_eq!(let_in("RequireAndVerifyClientCert", true), [false, false, true]);
}

#[test]
fn a_client_must_have_one_of_the_names_that_are_allowed() {
    let folder = Folder::new();
    for policy in ["RequireAnyClientCert", "RequireAndVerifyClientCert"] {
        let policy = format!("client_auth_type: {policy}");
        let names = "client_allowed_sans: [other.example, 192.0.2.7, prometheus.example]";
        let server = serve(&folder.configure(&[&policy, "client_ca_file: ca.crt", names], ""));
        for (name, expected) in [
            ("prometheus.example", true),
            ("192.0.2.7", true),
            ("grafana.example", false),
            ("example", false),
        ] {
            let pair = folder.authority.pair(name);
            let answer = Asking::with(&folder, &pair).get(server.address, "/-/healthy");
            assert_eq!(answer.is_ok(), expected, "{name} under {policy}");
        }
    }
}

#[test]
fn a_verified_client_may_read_chains_and_an_unverified_one_may_not() {
    let folder = Folder::new();
    let pair = folder.authority.pair("prometheus.example");
    for (policy, certificate, expected) in [
        ("RequireAndVerifyClientCert", true, 200),
        ("VerifyClientCertIfGiven", true, 200),
        ("VerifyClientCertIfGiven", false, 401),
        ("RequireAnyClientCert", true, 401),
    ] {
        let line = format!("client_auth_type: {policy}");
        let server = serve(&folder.configure(&[&line, "client_ca_file: ca.crt"], ""));
        let pair = certificate.then_some(&pair);
        let asking = Asking { pair, ..Asking::new(&folder) };
        let answer = asking.get(server.address, "/api/v1/chains").unwrap();
        assert_eq!(answer.status(), expected, "{policy}");
        assert_eq!(asking.get(server.address, "/metrics").unwrap().status(), 200, "{policy}");
    }
}
