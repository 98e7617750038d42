//! The server over real sockets: pages, refusals, and clients that misbehave.

mod chains;
mod flights;
mod huge_page;
mod live_page;

use gpucause::collector::{Collectors, Scope};
use gpucause::config::MetricsSettings;
use gpucause::routes::{Readiness, Routes, ScrapeError, Source};
use gpucause_engine::chain::Chain;
use gpucause_engine::observation::{ObservationState, Period};
use gpucause_fixture::http_client::{DEADLINE, connect, get, read_to_end, request};
use gpucause_fixture::snapshot;
use gpucause_http::server::{Limits, Server};
use gpucause_http::token_file::TokenFile;
use gpucause_page::exposition::Format;
use gpucause_page::exposition::classic_buckets::Policy;
use gpucause_page::family::Sink;
use gpucause_page::metric::Level;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::sync::oneshot;

/// A server on a port of its own, until dropped.
struct Running {
    address: SocketAddr,
    /// A header with the token.
    token: String,
    /// Where the file of the token is.
    runtime: TempDir,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        let joined = self.thread.take().map_or(Ok(()), JoinHandle::join);
        assert!(joined.is_ok() || std::thread::panicking(), "the server panicked");
    }
}

fn start(source: impl Source, limits: Limits) -> Running {
    let server = Server::bind(&["127.0.0.1:0".parse().unwrap()], limits).unwrap();
    let address = server.addresses()[0];
    let runtime = tempfile::tempdir().unwrap();
    let token_file = TokenFile::create_in(runtime.path(), &[address].into()).unwrap();
    let token = format!("Authorization: Bearer {}\r\n", token_file.token().secret());
    let server = server.with_token_file(token_file);
    let (stop, stopped) = oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let until = async {
            let _ = stopped.await;
        };
        let routes = Routes::new(&server, Arc::new(source), "/metrics".parse().unwrap());
        runtime.block_on(server.serve(routes, until)).unwrap();
        runtime.shutdown_timeout(Duration::from_secs(5));
    });
    Running { address, token, runtime, stop: Some(stop), thread: Some(thread) }
}

fn serve(source: impl Source) -> Running {
    start(source, Limits::default())
}

/// Always has the page of the fixture.
struct Fixture;

impl Source for Fixture {
    fn collectors(&self) -> Vec<&'static str> {
        Collectors::default().names()
    }

    fn metrics(&self) -> MetricsSettings {
        MetricsSettings {
            level: Level::Full,
            classic_buckets: Policy::Always,
            ..MetricsSettings::default()
        }
    }

    fn scrape(&self, scope: &Scope, page: &mut dyn Sink) -> Result<(), ScrapeError> {
        Ok(snapshot::selected(scope).into_iter().try_for_each(|family| page.own(family))?)
    }

    fn chains(&self) -> Vec<Chain> {
        vec![snapshot::chain()]
    }

    fn observation(&self) -> ObservationState {
        Period::attached(0.0).into()
    }

    fn ready(&self) -> Readiness {
        Readiness::Ready
    }
}

/// Never has a page.
struct Failing {
    panics: bool,
}

impl Source for Failing {
    fn collectors(&self) -> Vec<&'static str> {
        Collectors::default().names()
    }

    fn scrape(&self, _: &Scope, _: &mut dyn Sink) -> Result<(), ScrapeError> {
        if self.panics {
            panic!("a bug");
        }
        Err(ScrapeError("the maps are gone".into()))
    }

    fn chains(&self) -> Vec<Chain> {
        vec![snapshot::chain()]
    }

    fn observation(&self) -> ObservationState {
        Period::attached(0.0).into()
    }

    fn ready(&self) -> Readiness {
        Readiness::NotReady("every probe is broken".to_owned())
    }
}

/// Has a page once it is let go, and tells how many wait for that.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<(usize, bool)>, Condvar)>);

impl Gate {
    fn wait_for_scrapes(&self, count: usize) {
        let (lock, changed) = &*self.0;
        let waits = |state: &mut (usize, bool)| state.0 < count;
        let waited = changed.wait_timeout_while(lock.lock().unwrap(), DEADLINE, waits);
        assert_eq!(waited.unwrap().0.0, count);
    }

    fn open(&self) {
        self.0.0.lock().unwrap().1 = true;
        self.0.1.notify_all();
    }
}

impl Source for Gate {
    fn collectors(&self) -> Vec<&'static str> {
        Collectors::default().names()
    }

    fn metrics(&self) -> MetricsSettings {
        MetricsSettings {
            level: Level::Full,
            classic_buckets: Policy::Always,
            ..MetricsSettings::default()
        }
    }

    fn scrape(&self, _: &Scope, page: &mut dyn Sink) -> Result<(), ScrapeError> {
        let (lock, changed) = &*self.0;
        lock.lock().unwrap().0 += 1;
        changed.notify_all();
        let closed = |state: &mut (usize, bool)| !state.1;
        drop(changed.wait_timeout_while(lock.lock().unwrap(), DEADLINE, closed).unwrap());
        Ok(snapshot::families().into_iter().try_for_each(|family| page.own(family))?)
    }

    fn chains(&self) -> Vec<Chain> {
        vec![snapshot::chain()]
    }

    fn observation(&self) -> ObservationState {
        Period::attached(0.0).into()
    }

    fn ready(&self) -> Readiness {
        Readiness::Ready
    }
}

#[test]
fn the_page_comes_in_the_format_that_is_asked_for() {
    let server = serve(Fixture);
    for (accept, format) in [
        ("", Format::Text),
        ("Accept: text/plain;version=0.0.4;q=1,*/*;q=0.1\r\n", Format::Text),
        ("Accept: application/openmetrics-text;version=1.0.0,*/*;q=0.1\r\n", Format::OpenMetrics),
        (
            "Accept: text/plain;q=0.1\r\nAccept: application/openmetrics-text\r\n",
            Format::OpenMetrics,
        ),
        (
            "Accept: application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.5,*/*;q=0.1\r\n",
            Format::Protobuf,
        ),
        ("Accept: application/vnd.google.protobuf\r\n", Format::Text),
    ] {
        let response = request(server.address, "GET", "/metrics", accept);
        assert_eq!(response.status, 200, "{accept}");
        let content_type = format.content_type().to_lowercase();
        assert_eq!(response.header("content-type"), Some(&*content_type), "{accept}");
        assert_eq!(response.header("content-encoding"), None, "{accept}");
        assert!(response.body == format.encode(&snapshot::families().into()), "{accept}");
    }
}

#[test]
fn a_zipped_page_is_the_same_page() {
    let server = serve(Fixture);
    let response = request(server.address, "GET", "/metrics?x=y", "Accept-Encoding: gzip\r\n");
    assert_eq!(response.header("content-encoding"), Some("gzip"));
    let mut page = Vec::new();
    flate2::read::GzDecoder::new(response.body.as_slice()).read_to_end(&mut page).unwrap();
    assert!(page == Format::Text.encode(&snapshot::families().into()));
    let plain = request(server.address, "GET", "/metrics", "Accept-Encoding: gzip;q=0\r\n");
    assert_eq!(plain.header("content-encoding"), None);
}

#[test]
fn a_scrape_may_select_collectors() {
    let server = serve(Fixture);
    for (query, named, missing) in [
        ("collect[]=calls&collect[]=offcpu", "gpucause_cuda_call_duration", "TYPE gpucause_kernel"),
        ("collect%5B%5D=kernels", "gpucause_kernel_launches_total", "gpucause_cuda_call_duration"),
        ("exclude[]=kernels", "gpucause_cuda_call_duration", "TYPE gpucause_kernel"),
    ] {
        let response = get(server.address, &format!("/metrics?{query}"));
        assert_eq!(response.status, 200, "{query}");
        let page = response.text();
        assert!(page.contains(&format!("# TYPE {named}")), "{query}: {page}");
        assert!(!page.contains(missing), "{query}: {page}");
        let selected = !query.starts_with("exclude");
        let sample = "gpucause_scrape_collector_success{collector=\"memory\"} 1";
        assert_eq!(page.contains(sample), !selected, "{query}: {page}");
    }
}

#[test]
fn a_selection_that_cannot_be_is_refused_before_anything_is_scraped() {
    let server = serve(Failing { panics: true });
    for (query, said) in [
        ("collect[]=calls&exclude[]=host", "cannot be combined"),
        (
            "collect[]=cals",
            "unknown collector \"cals\"; known collectors: launches, errors, calls, dispatch, waits,",
        ),
        ("exclude[]=%zz", "not percent-encoded"),
        ("level=all", "unknown level \"all\"; known levels: fleet, standard, full"),
    ] {
        let path = format!("/metrics?{query}");
        let response = get(server.address, &path);
        assert_eq!(response.status, 400, "{query}");
        assert!(response.text().contains(said), "{}", response.text());
        let head = request(server.address, "HEAD", &path, "");
        assert_eq!((head.status, head.body.len()), (400, 0), "{query}");
    }
    let long = format!("/metrics?{}", "collect[]=calls&".repeat(3_000));
    assert_eq!(get(serve(Fixture).address, &long).status, 200);
}

#[test]
fn a_scrape_may_ask_for_a_level() {
    let server = serve(Fixture);
    let page = |query: &str| get(server.address, &format!("/metrics?{query}")).text().to_owned();
    let [fleet, standard, full] =
        ["fleet", "standard", "full"].map(|l| page(&format!("level={l}")));
    assert_eq!(full, page(""));
    let stalled = "gpucause_cuda_call_stalled_total{";
    assert!(full.contains(stalled) && !standard.contains(stalled));
    let calls = "gpucause_cuda_call_duration_seconds_count{";
    assert!(standard.contains(calls) && !fleet.contains(calls));
    assert!(fleet.contains("gpucause_launches_total{"));
}

#[test]
fn head_gets_the_headers_of_get_and_no_body() {
    let server = serve(Fixture);
    for path in ["/metrics", "/", "/-/healthy", "/-/ready"] {
        let (whole, head) = (get(server.address, path), request(server.address, "HEAD", path, ""));
        assert_eq!(head.status, 200, "{path}");
        assert!(head.body.is_empty(), "{path}");
        assert_eq!(head.header("content-type"), whole.header("content-type"), "{path}");
        assert_eq!(head.header("content-length"), Some(&*whole.body.len().to_string()), "{path}");
    }
}

#[test]
fn unknown_paths_are_not_found() {
    let server = serve(Fixture);
    for path in ["/metric", "/metrics/", "//", "/index.html", "/-/", "/-/quit", "/..", "/%2e"] {
        assert_eq!(get(server.address, path).status, 404, "{path}");
    }
}

#[test]
fn a_reload_is_asked_for_by_post_where_that_is_enabled() {
    let server = serve(Fixture);
    let response = request(server.address, "POST", "/-/reload", "");
    assert_eq!(response.status, 403);
    assert!(response.text().contains("--web.enable-lifecycle"), "{}", response.text());
    let response = get(server.address, "/-/reload");
    assert_eq!((response.status, response.header("allow")), (405, Some("post, put")));
}

#[test]
fn other_methods_are_refused_with_those_that_are_not() {
    let server = serve(Fixture);
    for path in ["/metrics", "/", "/-/healthy", "/-/ready"] {
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "BREW"] {
            let response = request(server.address, method, path, "Content-Length: 0\r\n");
            assert_eq!(response.status, 405, "{method} {path}");
            assert_eq!(response.header("allow"), Some("get, head"), "{method} {path}");
        }
    }
}

#[test]
fn the_landing_page_links_to_the_metrics() {
    let server = serve(Fixture);
    let response = get(server.address, "/");
    assert_eq!(response.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(response.text().contains("<a href=\"/metrics\">"));
}

#[test]
fn health_does_not_depend_on_readiness() {
    let server = serve(Failing { panics: false });
    assert_eq!(get(server.address, "/-/healthy").status, 200);
    let ready = get(server.address, "/-/ready");
    assert_eq!((ready.status, ready.text()), (503, "Not ready: every probe is broken\n"));
    assert_eq!(get(serve(Fixture).address, "/-/ready").status, 200);
}

#[test]
fn a_scrape_that_fails_is_a_server_error_that_says_why() {
    let server = serve(Failing { panics: false });
    let response = get(server.address, "/metrics");
    assert_eq!(response.status, 500);
    assert!(response.text().contains("the maps are gone"), "{}", response.text());
}

#[test]
fn a_scrape_that_panics_is_survived() {
    let server = serve(Failing { panics: true });
    for _ in 0..5 {
        assert_eq!(get(server.address, "/metrics").status, 500);
    }
    assert_eq!(get(server.address, "/-/healthy").status, 200);
}

#[test]
fn slow_headers_hold_nobody_up_and_end_in_time() {
    let header_timeout = Duration::from_millis(500);
    let server = start(Fixture, Limits { header_timeout, ..Limits::default() });
    let slow: Vec<_> = (0..50)
        .map(|_| {
            let mut stream = connect(server.address);
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: ").unwrap();
            stream
        })
        .collect();
    assert_eq!(get(server.address, "/metrics").status, 200);
    for mut stream in slow {
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(!answer.starts_with(b"HTTP/1.1 200"));
    }
}

#[test]
fn connections_beyond_the_cap_are_served_when_others_end() {
    let header_timeout = Duration::from_millis(500);
    let limits = Limits { connections: 2, header_timeout, ..Limits::default() };
    let server = start(Fixture, limits);
    let idle = [connect(server.address), connect(server.address)];
    assert_eq!(get(server.address, "/-/healthy").status, 200);
    drop(idle);
}

#[test]
fn a_connection_is_closed_at_the_end_of_its_life() {
    let connection_life = Duration::from_millis(200);
    let server = start(Fixture, Limits { connection_life, ..Limits::default() });
    let mut stream = connect(server.address);
    stream.write_all(b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let begin = Instant::now();
    assert_eq!(read_to_end(stream).status, 200);
    assert!(begin.elapsed() < Limits::default().header_timeout);
}

#[test]
fn a_connection_can_be_used_again() {
    let server = serve(Fixture);
    let mut stream = connect(server.address);
    stream.write_all(b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    stream.write_all(b"GET /-/healthy HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let both = read_to_end(stream);
    assert_eq!(both.status, 200);
    assert!(both.text().ends_with("\r\n\r\nHealthy.\n"), "{}", both.text());
}

#[test]
fn long_headers_are_read_and_endless_ones_refused() {
    let server = serve(Fixture);
    let long = format!("Accept: {}, application/openmetrics-text\r\n", "x".repeat(10_000));
    let response = request(server.address, "GET", "/metrics", &long);
    assert_eq!(response.status, 200);
    assert_eq!(response.header("content-type"), Some(Format::OpenMetrics.content_type()));
    for (length, status) in [(60_000, 200), (100_000, 431)] {
        let header = format!("X: {}\r\n", "x".repeat(length));
        assert_eq!(
            request(server.address, "GET", "/-/healthy", &header).status,
            status,
            "{length}"
        );
    }
    let mut stream = connect(server.address);
    let endless = format!("GET / HTTP/1.1\r\nHost: x\r\nX: {}", "x".repeat(100_000));
    // The server may hang up before all of it is sent.
    let _ = stream.write_all(endless.as_bytes());
    let mut answer = [0; 12];
    if stream.read_exact(&mut answer).is_ok() {
        assert_eq!(&answer, b"HTTP/1.1 431");
    }
    assert_eq!(get(server.address, "/-/healthy").status, 200);
}

#[test]
fn malformed_requests_are_refused() {
    let server = serve(Fixture);
    for malformed in [
        "\x16\x03\x01\x02 \x01 hello\r\n\r\n",
        "GET\r\n\r\n",
        "\r\n \r\n\r\n",
        "G\0T / HTTP/1.1\r\n\r\n",
    ] {
        let mut stream = connect(server.address);
        stream.write_all(malformed.as_bytes()).unwrap();
        assert_eq!(read_to_end(stream).status, 400, "{malformed:?}");
    }
    assert_eq!(get(server.address, "/-/healthy").status, 200);
}

#[test]
fn scrapes_beyond_the_limit_wait_and_are_then_refused() {
    let gate = Gate::default();
    let limits =
        Limits { permits: 1, permit_wait: Duration::from_millis(200), ..Limits::default() };
    let server = start(gate.clone(), limits);
    let address = server.address;
    let first = std::thread::spawn(move || get(address, "/metrics").status);
    gate.wait_for_scrapes(1);
    assert_eq!(get(address, "/metrics").status, 503);
    assert_eq!(get(address, "/-/healthy").status, 200, "health must not wait for scrapes");
    gate.open();
    assert_eq!(first.join().unwrap(), 200);
    assert_eq!(get(address, "/metrics").status, 200);
}

#[test]
fn a_scrape_under_way_is_finished_when_the_server_stops() {
    let gate = Gate::default();
    let mut server = serve(gate.clone());
    let address = server.address;
    let scrape = std::thread::spawn(move || get(address, "/metrics"));
    gate.wait_for_scrapes(1);
    server.stop();
    let deadline = Instant::now() + DEADLINE;
    while std::net::TcpStream::connect(address).is_ok() {
        assert!(Instant::now() < deadline, "connections are still accepted");
        std::thread::yield_now();
    }
    gate.open();
    let response = scrape.join().unwrap();
    assert_eq!(response.status, 200);
    assert!(response.body == Format::Text.encode(&snapshot::families().into()));
}
