//! Basic authentication.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gpucause_fixture::elsewhere::request_from;
use gpucause_fixture::http_client::{get, request};
use gpucause_fixture::server::serve;

use super::pairs::Folder;

/// A header with credentials.
pub(crate) fn basic(user: &str, password: &str) -> String {
    format!("Authorization: Basic {}\r\n", STANDARD.encode(format!("{user}:{password}")))
}

/// A section with users whose hashes cost this.
pub(crate) fn users(cost: u32, users: &[(&str, &str)]) -> String {
    let mut section = "basic_auth_users:\n".to_owned();
    for (user, password) in users {
        let hash = bcrypt::hash(password, cost).unwrap();
        writeln!(section, "  {user}: {hash}").unwrap();
    }
    section
}

#[test]
fn every_path_asks_for_a_password_and_only_the_right_one_is_let_in() {
    let folder = Folder::new();
    let server = serve(&folder.plain(&users(4, &[("alice", "secret"), ("bob", "p:w")])));
    for path in ["/metrics", "/", "/-/healthy", "/-/ready", "/api/v1/chains", "/none"] {
        let refused = get(server.address, path);
        assert_eq!(refused.status, 401, "{path}");
        assert!(refused.header("www-authenticate").unwrap().starts_with("basic "), "{path}");
    }
    for (user, password) in [("alice", "secret"), ("bob", "p:w"), ("alice", "secret")] {
        let response = request(server.address, "GET", "/metrics", &basic(user, password));
        assert_eq!(response.status, 200, "{user}");
    }
    for (user, password) in [("alice", "p:w"), ("alice", ""), ("mallory", "secret"), ("", "")] {
        let response = request(server.address, "GET", "/metrics", &basic(user, password));
        assert_eq!(response.status, 401, "{user}:{password}");
    }
    for header in
        ["Authorization: Bearer x\r\n", "Authorization: Basic ?\r\n", "Authorization:\r\n"]
    {
        assert_eq!(request(server.address, "GET", "/metrics", header).status, 401, "{header}");
    }
}

#[test]
fn who_has_logged_in_or_shows_the_token_may_read_chains() {
    let folder = Folder::new();
    let server = serve(&folder.plain(&users(4, &[("alice", "secret")])));
    let token = format!("{}.token", server.address.port());
    let token = std::fs::read_to_string(server.runtime.path().join(token)).unwrap();
    let token = format!("Authorization: Bearer {}\r\n", token.trim());
    for credentials in [basic("alice", "secret"), token] {
        assert_eq!(request(server.address, "GET", "/api/v1/chains", &credentials).status, 200);
    }
    let page = format!("Origin: http://evil.example\r\n{}", basic("alice", "secret"));
    assert_eq!(request(server.address, "GET", "/api/v1/chains", &page).status, 403);
}

#[test]
fn an_unknown_user_takes_as_long_as_a_known_one() {
    let folder = Folder::new();
    let server = serve(&folder.plain(&users(9, &[("alice", "secret")])));
    let took = |user: &str, from: [u8; 4]| {
        let begin = Instant::now();
        assert_eq!(request_from(from, server.address, "/", &basic(user, "wrong")).status, 401);
        begin.elapsed()
    };
    // Each time another client, who does not have to wait for the last one's pause.
    let shortest =
        |user: &str, net: u8| (1..6).map(|n| took(user, [127, 0, net, n])).min().unwrap();
    let (known, unknown) = (shortest("alice", 1), shortest("mallory", 2));
    let ratio = unknown.as_secs_f64() / known.as_secs_f64();
    assert!((0.5..2.0).contains(&ratio), "known {known:?}, unknown {unknown:?}");
}

#[test]
fn a_flood_of_wrong_passwords_does_not_keep_others_waiting() {
    let folder = Folder::new();
    let server = serve(&folder.plain(&users(10, &[("alice", "secret")])));
    let address = server.address;
    let flood: Vec<_> = (0..40)
        .map(|n| {
            let wrong = basic("alice", &format!("wrong {n}"));
            std::thread::spawn(move || request(address, "GET", "/metrics", &wrong).status)
        })
        .collect();
    std::thread::sleep(Duration::from_millis(50));
    for again in [false, true] {
        let begin = Instant::now();
        let response = request_from([127, 0, 0, 9], address, "/metrics", &basic("alice", "secret"));
        assert_eq!(response.status, 200);
        let limit = Duration::from_millis(if again { 500 } else { 3_000 });
        assert!(begin.elapsed() < limit, "{:?}, again: {again}", begin.elapsed());
    }
    for status in flood {
        assert!(matches!(status.join().unwrap(), 401 | 429));
    }
}

#[test]
fn requests_beyond_the_rate_are_refused_before_anything_else() {
    let folder = Folder::new();
    let server = serve(&folder.plain("rate_limit:\n  interval: 1h\n  burst: 2\n"));
    let statuses: Vec<_> = (0..4).map(|_| get(server.address, "/-/healthy").status).collect();
    assert_eq!(statuses, [200, 200, 429, 429]);
}
