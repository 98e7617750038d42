//! A flight record on request: who may ask, how often, and what is answered.

use std::path::Path;
use std::sync::Arc;

use gpucause::flights::{FlightFile, FlightRecords, FlightRequest};
use gpucause_fixture::http_client::request;
use serde_json::Value;
use tokio::sync::mpsc::Receiver;

use super::live_page::WithRecords;
use super::{Fixture, Running, serve};

const PATH: &str = "/-/flight";

/// A server with a recorder, which the test is.
fn recording(dir: &Path) -> (Running, Receiver<FlightRequest>) {
    let records = Arc::new(FlightRecords::in_dir(dir.to_owned(), 9));
    let requests = records.accept_requests();
    (serve(WithRecords(records)), requests)
}

fn file() -> FlightFile {
    FlightFile { name: "flight-gpu-1-1.000-request.db".into(), bytes: 7, written: 1.0 }
}

fn json(body: &[u8]) -> Value {
    serde_json::from_slice(body).unwrap()
}

#[test]
fn a_record_is_written_for_who_may_read_chains_and_the_answer_says_where_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (server, mut requests) = recording(dir.path());
    let form = "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 0\r\n";
    for (method, path, headers, status) in [
        ("POST", PATH, String::new(), 401),
        ("POST", PATH, "Authorization: Bearer x\r\n".to_owned(), 401),
        ("POST", PATH, format!("Origin: null\r\n{}", server.token), 403),
        ("POST", PATH, format!("Sec-Fetch-Site: cross-site\r\n{}", server.token), 403),
        ("POST", PATH, format!("{form}{}", server.token), 400),
        ("POST", PATH, format!("Content-Length: 9999999\r\n{}", server.token), 400),
        ("POST", "/-/flight?seconds=9", server.token.clone(), 400),
        ("GET", PATH, server.token.clone(), 405),
        ("PUT", PATH, server.token.clone(), 405),
    ] {
        let refused = request(server.address, method, path, &headers);
        assert_eq!(refused.status, status, "{method} {path} {headers}");
    }
    assert!(requests.try_recv().is_err(), "a refused request writes nothing");

    let writing = std::thread::spawn(move || requests.blocking_recv().unwrap().answer(Ok(file())));
    let answer = request(server.address, "POST", PATH, &server.token);
    writing.join().unwrap();
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    let data = json(&answer.body)["data"].take();
    assert_eq!(data["name"], "flight-gpu-1-1.000-request.db");
    assert_eq!(data["path"], "/flight-records/flight-gpu-1-1.000-request.db");
    assert_eq!((&data["bytes"], data["now"].as_f64() > Some(1e9)), (&7.into(), true), "{data}");
}

#[test]
fn two_at_once_and_one_soon_after_the_other_are_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let (server, mut requests) = recording(dir.path());
    let (address, token) = (server.address, server.token.clone());
    let first = std::thread::spawn(move || request(address, "POST", PATH, &token));
    let writing = requests.blocking_recv().unwrap();
    let second = request(server.address, "POST", PATH, &server.token);
    let error = json(&second.body)["error"].take().to_string();
    assert_eq!(second.status, 409, "{error}");
    assert!(error.contains("another flight record is being written"), "{error}");
    writing.answer(Ok(file()));
    assert_eq!(first.join().unwrap().status, 200);

    let soon = request(server.address, "POST", PATH, &server.token);
    assert_eq!(soon.status, 429);
    let wait: u64 = soon.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=11).contains(&wait), "{wait}");
}

#[test]
fn without_a_recorder_and_without_a_file_the_reason_is_answered() {
    let server = serve(Fixture);
    let off = request(server.address, "POST", PATH, &server.token);
    let error = json(&off.body)["error"].take().to_string();
    assert_eq!(off.status, 404);
    assert!(error.contains("start the exporter with --flight-recorder.dir"), "{error}");

    let dir = tempfile::tempdir().unwrap();
    let (server, mut requests) = recording(dir.path());
    let failing = std::thread::spawn(move || {
        requests.blocking_recv().unwrap().answer(Err("the disk is full".into()));
    });
    let failed = request(server.address, "POST", PATH, &server.token);
    failing.join().unwrap();
    let error = json(&failed.body)["error"].take();
    assert_eq!(
        (failed.status, error),
        (500, "cannot write a flight record: the disk is full".into())
    );
}
