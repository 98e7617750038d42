//! The live page of a real process: its numbers are those of the workload.

use gpucause_fixture::exporter::Exporter;
use gpucause_fixture::http_client::{Response, request};
use gpucause_fixture::poll::until;
use gpucause_fixture::workload::{Workload, libraries};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Launches a second of the workload.
const RATE: f64 = 200.0;

fn authorized(exporter: &Exporter, path: &str) -> Response {
    let token = std::fs::read_to_string(exporter.token_file()).unwrap();
    let header = format!("Authorization: Bearer {}\r\n", token.trim());
    let response = request(exporter.address, "GET", path, &header);
    assert_eq!(response.status, 200, "{path}");
    response
}

#[test]
fn the_page_has_the_rate_of_a_process_and_where_all_of_its_time_goes() {
    let exporter = Exporter::start(&[]);
    let mut workload =
        Workload::start(&["rate", "--seconds=40", "--per-second=200", "--mix=cudaLaunchKernel=1"]);
    workload.go();
    exporter.until_attached(&libraries().join("libcudart.so.12"));
    let pid: u32 = workload.pid().parse().unwrap();
    let answer = |path: &str| -> Value {
        serde_json::from_slice(&authorized(&exporter, path).body).unwrap()
    };
    // A whole window with the workload in it.
    let (process, window) = until("numbers of the workload", || {
        let data = answer("/api/v1/processes")["data"].take();
        let own = data["processes"].as_array()?.iter().find(|own| own["pid"] == pid)?.clone();
        let window = data["window_seconds"].as_f64()?;
        (window > 5.0 && own["seconds"].as_f64()? >= window).then_some((own, window))
    });
    let number = |field: &str| process[field].as_f64().unwrap();
    let rate = number("launches_per_second");
    assert!((rate / RATE - 1.0).abs() < 0.1, "{process}");
    assert!((number("launches") - rate * number("seconds")).abs() < 1e-6, "{process}");
    // One dispatcher: all of its time is in the parts.
    let parts: f64 = process["parts"].as_object().unwrap().values().filter_map(Value::as_f64).sum();
    assert!((parts - number("dispatcher_seconds")).abs() < 1e-6, "{process}");
    assert!((parts / window - 1.0).abs() < 0.1, "{process}");
    let page = authorized(&exporter, "/");
    assert!(page.text().contains(&format!("<tr data-pid=\"{pid}\">")), "{}", page.text());
    let timeline = answer("/api/v1/timeline");
    let points = timeline["data"]["points"].as_array().unwrap();
    let last = points.last().unwrap();
    let timeline_rate = last["launches"].as_f64().unwrap() / last["seconds"].as_f64().unwrap();
    assert!((timeline_rate / RATE - 1.0).abs() < 0.2, "{last}");
    workload.kill();
}

#[test]
fn a_flight_record_is_downloaded_as_it_is_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(&["--flight-recorder.dir", dir.path().to_str().unwrap()]);
    assert!(authorized(&exporter, "/").text().contains("None yet"));
    exporter.signal(Signal::SIGUSR2);
    let path = until("a flight record", || {
        let files = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
        files
            .filter(|path| path.extension().is_some_and(|ending| ending == "db"))
            .find(|path| path.file_name().unwrap().to_str().unwrap().starts_with("flight-"))
    });
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(authorized(&exporter, "/").text().contains(&format!("/flight-records/{name}\"")));
    let sent = authorized(&exporter, &format!("/flight-records/{name}"));
    assert!(sent.body == std::fs::read(&path).unwrap());
}
