//! The live page: what everybody sees, what only those see who may read causal chains, and its headers.

use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpucause::collector::{Collectors, Scope};
use gpucause::flights::FlightRecords;
use gpucause::live_page::Problem;
use gpucause::routes::{Readiness, ScrapeError, Source};
use gpucause_engine::chain::Chain;
use gpucause_engine::observation::{ObservationState, Period};
use gpucause_fixture::http_client::{DEADLINE, connect, get, read_to_end, request};
use gpucause_fixture::snapshot;
use gpucause_http::server::Limits;
use gpucause_page::family::Sink;

use super::{Fixture, Running, serve, start};

/// The fixture with flight records in a folder.
pub(crate) struct WithRecords(pub(crate) Arc<FlightRecords>);

impl Source for WithRecords {
    fn collectors(&self) -> Vec<&'static str> {
        Collectors::default().names()
    }

    fn scrape(&self, _: &Scope, _: &mut dyn Sink) -> Result<(), ScrapeError> {
        Ok(())
    }

    fn chains(&self) -> Vec<Chain> {
        vec![snapshot::chain()]
    }

    fn flights(&self) -> Option<Arc<FlightRecords>> {
        Some(Arc::clone(&self.0))
    }

    fn problem(&self) -> Option<Problem> {
        Some(Problem { at: 0.0, what: "the maps are gone".into() })
    }

    fn observation(&self) -> ObservationState {
        Period::attached(0.0).into()
    }

    fn ready(&self) -> Readiness {
        Readiness::Ready
    }
}

/// The header of a browser that has logged in with the token as its password.
fn logged_in(server: &Running) -> String {
    use base64::Engine as _;
    let token = server.token.trim().rsplit(' ').next().unwrap().to_owned();
    let code = base64::engine::general_purpose::STANDARD.encode(format!("me:{token}"));
    format!("Authorization: Basic {code}\r\n")
}

#[test]
fn nothing_is_loaded_from_elsewhere_and_no_script_is_inline() {
    let server = serve(Fixture);
    for (path, content_type) in [
        ("/", "text/html; charset=utf-8"),
        ("/live.css", "text/css; charset=utf-8"),
        ("/live.js", "text/javascript; charset=utf-8"),
    ] {
        for headers in [String::new(), server.token.clone()] {
            let response = request(server.address, "GET", path, &headers);
            assert_eq!(
                (response.status, response.header("content-type")),
                (200, Some(content_type))
            );
            let policy = response.header("content-security-policy").unwrap();
            assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
            assert!(
                policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"),
                "{policy}"
            );
            assert_eq!(response.header("x-content-type-options"), Some("nosniff"));
            assert_eq!(response.header("cache-control"), Some("no-store"));
        }
    }
    let page = request(server.address, "GET", "/", &server.token);
    assert!(!page.text().contains("<style") && !page.text().contains(" style="));
}

#[test]
fn chains_and_processes_are_shown_only_to_those_who_may_read_chains() {
    let server = serve(Fixture);
    let shown = |headers: &str| get_page(&server, headers).contains("chain-65523a1d-4242");
    assert!(shown(&server.token) && shown(&logged_in(&server)));
    assert!(!shown("") && !shown("Authorization: Basic YTpi\r\n"));
    let elsewhere = format!("Sec-Fetch-Site: cross-site\r\n{}", server.token);
    assert!(!shown(&elsewhere), "another site led here");
    let page = get_page(&server, "");
    assert!(
        page.contains("Observation: <strong>attached since") && page.contains("/login"),
        "{page}"
    );
    for path in ["/api/v1/processes", "/api/v1/timeline", "/flight-records/flight-a.db"] {
        assert_eq!(get(server.address, path).status, 401, "{path}");
        let refused = request(server.address, "GET", path, &elsewhere);
        assert_eq!(refused.status, 403, "{path}");
    }
}

fn get_page(server: &Running, headers: &str) -> String {
    let response = request(server.address, "GET", "/", headers);
    assert_eq!(response.status, 200);
    response.text().to_owned()
}

#[test]
fn a_browser_logs_in_with_the_token_as_its_password() {
    let server = serve(Fixture);
    let asked = get(server.address, "/login");
    let challenge = Some("basic realm=\"gpucause\", charset=\"utf-8\"");
    assert_eq!((asked.status, asked.header("www-authenticate")), (401, challenge));
    let wrong = request(server.address, "GET", "/login", "Authorization: Basic YTpi\r\n");
    assert_eq!(wrong.status, 401);
    let right = request(server.address, "GET", "/login", &logged_in(&server));
    assert_eq!((right.status, right.header("location")), (303, Some("/")));
}

#[test]
fn numbers_of_processes_and_the_timeline_are_json() {
    let server = serve(Fixture);
    let answer = |path| -> serde_json::Value {
        let response = request(server.address, "GET", path, &server.token);
        assert_eq!(response.header("content-type"), Some("application/json"));
        serde_json::from_slice(&response.body).unwrap()
    };
    let processes = answer("/api/v1/processes");
    assert_eq!(
        (&processes["status"], &processes["data"]["processes"]),
        (&"success".into(), &serde_json::json!([]))
    );
    assert_eq!(processes["data"]["observation"]["state"], "attached");
    assert_eq!(answer("/api/v1/timeline")["data"]["points"], serde_json::json!([]));
}

#[test]
fn flight_records_are_listed_and_downloaded_and_nothing_else_of_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    let content: Vec<u8> = (0..20_000_000u32).map(|byte| byte as u8).collect();
    std::fs::write(dir.path().join("flight-gpu-1-1.000-c1.db"), &content).unwrap();
    std::fs::write(dir.path().join("notes.db"), "mine").unwrap();
    let records = FlightRecords::in_dir(dir.path().to_owned(), 9);
    let server = serve(WithRecords(Arc::new(records)));
    let page = get_page(&server, &server.token);
    let link = "<a href=\"/flight-records/flight-gpu-1-1.000-c1.db\" download>";
    assert!(page.contains(link) && !page.contains("notes.db"), "{page}");
    assert!(page.contains("the maps are gone"), "the last error is shown: {page}");
    let file = |name: &str| {
        request(server.address, "GET", &format!("/flight-records/{name}"), &server.token)
    };
    let response = file("flight-gpu-1-1.000-c1.db");
    assert!(response.status == 200 && response.body == content);
    let slow = begin_download(&server);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(file("flight-gpu-1-1.000-c1.db").status, 503, "one is sent at a time");
    assert!(read_to_end(slow).body == content, "a slow client gets all of it");
    let disposition = Some("attachment; filename=\"flight-gpu-1-1.000-c1.db\"");
    assert_eq!(response.header("content-disposition"), disposition);
    // The server may have more to do for the slow client, which has all of it.
    let deadline = Instant::now() + Duration::from_secs(10);
    while file("notes.db").status == 503 {
        assert!(Instant::now() < deadline, "the slow client is served for ever");
    }
    for name in ["notes.db", "", "..", "../notes.db", "flight-x/../notes.db", "%2e%2e/notes.db"] {
        assert_eq!(file(name).status, 404, "{name}");
    }
}

/// Sends a request for the record of a folder.
fn begin_download(server: &Running) -> std::net::TcpStream {
    let mut stream = connect(server.address);
    let path = "/flight-records/flight-gpu-1-1.000-c1.db";
    let head =
        format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{}\r\n", server.token);
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

#[test]
fn a_download_may_take_longer_than_a_connection_lives_and_not_forever() {
    const LENGTH: usize = 20_000_000;
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("flight-gpu-1-1.000-c1.db"), vec![7; LENGTH]).unwrap();
    let records = Arc::new(FlightRecords::in_dir(dir.path().to_owned(), 9));
    let limits = |life| Limits {
        connection_life: Duration::from_millis(life),
        drain: Duration::from_millis(100),
        ..Limits::default()
    };
    let server = start(WithRecords(Arc::clone(&records)), limits(1_500));
    let mut slow = begin_download(&server);
    let (mut received, mut part) = (0, vec![0; 1 << 20]);
    let begun = Instant::now();
    loop {
        match slow.read(&mut part).unwrap() {
            0 => break,
            bytes => received += bytes,
        }
        let due = Duration::from_secs(4).mul_f64(received as f64 / LENGTH as f64);
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
    }
    assert!(begun.elapsed() >= Duration::from_secs(3) && received > LENGTH, "{received}");

    let server = start(WithRecords(records), limits(200));
    let mut stuck = begin_download(&server);
    let begun = Instant::now();
    while begin_download(&server).read(&mut part).unwrap() < 100
        || part.starts_with(b"HTTP/1.1 503")
    {
        assert!(begun.elapsed() < DEADLINE, "a client that reads nothing is not cut");
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut rest = Vec::new();
    // It may also be reset.
    let _ = stuck.read_to_end(&mut rest);
    assert!(rest.len() < LENGTH, "{}", rest.len());
}
