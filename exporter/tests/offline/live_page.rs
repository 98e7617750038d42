//! The live page in a headless Chromium, on replayed hosts: no probes.
//!
//! With `GPUCAUSE_SCREENSHOTS=DIR` in the environment, pictures of the page are written there.

mod browser;
mod host;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use browser::Browser;
use gpucause_fixture::exporter::{Exporter, gpucause};
use gpucause_fixture::{http_client, poll};
use serde_json::Value;

/// The table as the reader sees it: PID, name and numbers of each row.
const TABLE: &str = "[...document.querySelectorAll('#process-table tbody tr')].map((row) => ({
    pid: Number(row.dataset.pid),
    comm: row.querySelector('.name').textContent,
    ...Object.fromEntries([...row.querySelectorAll('data')].map((own) => [own.className, own.value])),
    texts: Object.fromEntries([...row.querySelectorAll('data')].map((own) => [own.className, own.textContent])),
}))";

fn token(server: &Exporter) -> String {
    std::fs::read_to_string(server.token_file()).unwrap().trim().to_owned()
}

/// The data of an answer of the API.
fn api(server: &Exporter, path: &str) -> Value {
    let header = format!("Authorization: Bearer {}\r\n", token(server));
    let answer = http_client::request(server.address, "GET", path, &header);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let mut answer: Value = serde_json::from_slice(&answer.body).unwrap();
    answer["data"].take()
}

/// Waits for the last snapshot of the host that was made up.
fn until_over(server: &Exporter) {
    let points = || api(server, "/api/v1/timeline")["points"].as_array().map(Vec::len);
    poll::until("the last snapshot", || (points() == Some(3)).then_some(()));
}

/// Logs in like somebody who reads the token and types it.
fn log_in(browser: &mut Browser, server: &Exporter) {
    browser.open(&format!("http://me:{}@{}/login", token(server), server.address));
    // Where a URL has credentials, Chromium does not send those that it knows; with a dialog it needs no second request.
    browser.open(&format!("http://{}/", server.address));
    browser.until("document.getElementById('processes') !== null");
}

fn screenshot(browser: &mut Browser, name: &str) {
    if let Some(dir) = std::env::var_os("GPUCAUSE_SCREENSHOTS").map(PathBuf::from) {
        browser.screenshot(&dir.join(name));
    }
}

/// Compares each row with the API's, number by number.
fn assert_equal(rows: &Value, processes: &Value) {
    for row in rows.as_array().unwrap() {
        let all = processes["processes"].as_array().unwrap();
        let own = all.iter().find(|own| own["pid"] == row["pid"]).unwrap();
        assert_eq!(row["comm"], own["comm"]);
        for (shown, field) in [
            ("rate", "launches_per_second"),
            ("p50", "p50_seconds"),
            ("p99", "p99_seconds"),
            ("spread", "spread"),
            ("lost", "lost_seconds"),
        ] {
            let value: f64 = row[shown].as_str().unwrap().parse().unwrap();
            let answered = own[field].as_f64().unwrap();
            // The JSON parser of this test may err in the last bit.
            assert!((value - answered).abs() <= answered * f64::EPSILON, "{field} of {row}");
        }
        let lost = own["lost_seconds"].as_f64().unwrap();
        let text = row["texts"]["lost"].as_str().unwrap();
        assert!(text.starts_with(&format!("{lost:.2} s (")), "{text} is not {lost}");
    }
}

#[test]
fn what_the_browser_shows_is_what_the_api_answers() {
    let server = host::serve(40);
    until_over(&server);
    let mut browser = Browser::start();
    browser.open(&format!("http://{}/", server.address));
    assert_eq!(browser.value("document.querySelectorAll('#process-table').length"), 0);
    log_in(&mut browser, &server);
    let processes = api(&server, "/api/v1/processes");
    let rows = browser.value(TABLE);
    assert_eq!(rows.as_array().map(Vec::len), Some(40));
    assert_equal(&rows, &processes);
    let names = rows.as_array().unwrap().iter().map(|row| row["comm"].as_str().unwrap());
    assert!(names.clone().any(|name| name == "<script>x</scri"), "a name is text");
    assert!(names.into_iter().any(|name| name == "a&amp;\"'\u{fc}"));
    // The script has run, and its update shows the same.
    browser.value("document.getElementById('processes').dataset.mark = 'old'");
    browser.until("document.getElementById('processes').dataset.mark !== 'old'");
    assert_equal(&browser.value(TABLE), &processes);
    assert_eq!(browser.value("document.getElementById('pause').hidden"), false);
    // The first key leads past the head of the page, and the focus survives an update.
    browser.key("Tab");
    assert_eq!(browser.value("document.activeElement.className"), "skip");
    browser.value("document.getElementById('sort-p99').focus()");
    browser.value("document.getElementById('processes').dataset.mark = 'old'");
    browser.value("document.getElementById('processes').dataset.from = ''");
    browser.until("document.getElementById('processes').dataset.mark !== 'old'");
    assert_eq!(browser.value("document.activeElement.id"), "sort-p99");
    assert_eq!(
        browser.value("wrong.join()"),
        "",
        "the policy is kept, and the script has no error"
    );
}

#[test]
fn a_link_of_another_site_leads_to_the_whole_page() {
    let server = host::serve(3);
    let mut browser = Browser::start();
    log_in(&mut browser, &server);
    let port = server.address.port();
    browser.open(&format!("http://localhost:{port}/"));
    browser.value(&format!("void (location.href = 'http://127.0.0.1:{port}/')"));
    browser.until(
        "location.hostname === '127.0.0.1' && document.getElementById('processes') !== null",
    );
}

#[test]
fn a_chain_is_shown_with_its_fix_which_a_button_copies() {
    let case =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../investigations/cases/cpu-contention.db");
    let server = host::replay(&case, "20");
    let chains = || api(&server, "/api/v1/chains")["chains"].clone();
    poll::until("a chain", || (chains()[0]["severity"] == "critical").then_some(()));
    let last = poll::until("the end of the recording", || {
        let before = chains();
        std::thread::sleep(std::time::Duration::from_secs(1));
        (before[0]["lost_seconds"] == chains()[0]["lost_seconds"]).then(chains)
    });
    let mut browser = Browser::start();
    for scheme in ["dark", "light"] {
        browser.prefer(scheme);
        log_in(&mut browser, &server);
        screenshot(&mut browser, &format!("live-{scheme}.png"));
    }
    let shown = browser.value("[...document.querySelectorAll('.chain')].map((own) => own.id)");
    let ids =
        last.as_array().unwrap().iter().map(|own| format!("chain-{}", own["id"].as_str().unwrap()));
    assert_eq!(shown, serde_json::json!(ids.collect::<Vec<_>>()));
    // Commands are shown as code.
    let fix = last[0]["fix"].as_str().unwrap().replace('`', "");
    assert_eq!(browser.value("document.querySelector('.chain .fix').textContent"), fix);
    let lost = format!("{:.1} s of it lost", last[0]["lost_seconds"].as_f64().unwrap());
    let chain = browser.value("document.querySelector('.chain').textContent");
    assert!(chain.as_str().unwrap().contains(&lost), "{lost} is not in {chain}");
    browser.until("document.querySelector('.copy').hidden === false");
    browser.value("document.querySelector('.copy').click()");
    browser.until("document.querySelector('.copy').textContent === 'Copied'");
    assert_eq!(browser.value("wrong.join()"), "");
}

/// Killed when dropped.
struct Viewer(Child);

impl Drop for Viewer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_trace_file_is_shown_as_a_page() {
    let case =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../investigations/cases/cpu-contention.db");
    let mut viewer = Viewer(gpucause(&["view"]).arg(&case).stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(viewer.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.split_once("http://").unwrap().1.split_once('/').unwrap().0.to_owned();
    let password = line.split_once("password ").unwrap().1.split_once(')').unwrap().0.to_owned();
    let mut browser = Browser::start();
    browser.open(&format!("http://me:{password}@{address}/login"));
    browser.open(&format!("http://{address}/"));
    screenshot(&mut browser, "live-page.png");
    let rows = browser.value(TABLE);
    let header = format!("Authorization: Bearer {password}\r\n");
    let answer =
        http_client::request(address.parse().unwrap(), "GET", "/api/v1/processes", &header);
    let answer: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_equal(&rows, &answer["data"]);
    assert_eq!(rows.as_array().map(Vec::len), Some(1));
    assert_eq!(browser.value("document.querySelectorAll('.chain.critical').length"), 1);
    assert_eq!(browser.value("document.querySelectorAll('.plot').length"), 3);
    assert_eq!(browser.value("wrong.join()"), "");
}

#[test]
fn with_a_thousand_processes_the_page_has_fifty_rows_and_can_be_searched() {
    let server = host::serve(1_000);
    until_over(&server);
    let mut browser = Browser::start();
    log_in(&mut browser, &server);
    browser.open(&format!("http://{}/?sort=lost", server.address));
    let count = "document.querySelectorAll('#process-table tbody tr').length";
    browser.until(&format!("{count} === 50"));
    let size = "performance.getEntriesByType('navigation')[0].decodedBodySize";
    println!("{} bytes", browser.value(size));
    assert!((10 << 10..=64 << 10).contains(&browser.value(size).as_u64().unwrap()));
    screenshot(&mut browser, "live-1000.png");
    let processes = api(&server, "/api/v1/processes");
    assert_eq!(processes["processes"].as_array().map(Vec::len), Some(1_000));
    assert_equal(&browser.value(TABLE), &processes);
    browser.value("document.getElementById('sort-pid').click()");
    browser.until("document.querySelector('#process-table tbody tr').dataset.pid === '4001'");
    browser.value("document.getElementById('page-next').click()");
    browser.until("document.querySelector('#process-table tbody tr').dataset.pid === '4051'");
    assert_eq!(browser.value("location.search"), "?sort=pid&page=2");
    browser.value("document.getElementById('find').value = 'rank-777'; document.getElementById('find-button').click()");
    browser.until("document.querySelectorAll('#process-table tbody tr').length === 1");
    let rows = browser.value(TABLE);
    assert_eq!(rows[0]["pid"], host::FIRST + 777);
    assert_eq!(browser.value("wrong.join()"), "");
}
