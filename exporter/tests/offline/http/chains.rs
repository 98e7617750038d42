//! Causal chains: who is shown them, and who is not.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};

use gpucause_engine::chain::Chain;
use gpucause_engine::observation::{ObservationState, Period};
use gpucause_fixture::http_client::{Response, connect, get, request};
use gpucause_fixture::snapshot;

use super::{Fixture, Running, serve};

const CHAINS: &str = "/api/v1/chains";

#[test]
fn chains_are_shown_to_clients_with_the_token() {
    let server = serve(Fixture);
    let response = request(server.address, "GET", CHAINS, &server.token);
    assert_eq!(response.status, 200);
    assert_eq!(response.header("content-type"), Some("application/json"));
    let answer: serde_json::Value = serde_json::from_slice(&response.body).unwrap();
    assert_eq!(answer["status"], "success");
    let input = |name: &str| answer["data"][name].as_f64().unwrap();
    assert!((0.0..60.0).contains(&(input("now") - input("watched_since"))), "{answer}");
    let chains: Vec<Chain> = serde_json::from_value(answer["data"]["chains"].clone()).unwrap();
    assert_eq!(chains, [snapshot::chain()], "a chain reads back as itself");
    let state: ObservationState =
        serde_json::from_value(answer["data"]["observation"].clone()).unwrap();
    assert_eq!(state, Period::attached(0.0).into());
    let text = response.text();
    assert!(text.find("\"observation\"") < text.find("\"chains\""), "{text}");
}

#[test]
fn answers_of_the_api_are_stored_by_nobody_and_taken_for_no_other_type() {
    let server = serve(Fixture);
    for path in [CHAINS, "/api/v1/processes", "/api/v1/timeline"] {
        for (token, status) in [(&*server.token, 200), ("", 401)] {
            let response = request(server.address, "GET", path, token);
            assert_eq!(response.status, status, "{path}");
            assert_eq!(response.header("cache-control"), Some("no-store"), "{path}");
            assert_eq!(response.header("x-content-type-options"), Some("nosniff"), "{path}");
        }
    }
}

/// Returns the status of an answer and the error in its JSON.
fn refusal(response: &Response) -> (u16, String) {
    let answer: serde_json::Value = serde_json::from_slice(&response.body).unwrap();
    assert_eq!(answer["status"], "error");
    (response.status, answer["error"].as_str().unwrap().to_owned())
}

/// Passes connections on as it gets them, as a reverse proxy does that adds no header.
fn proxy(server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut client = listener.accept().unwrap().0;
        let mut upstream = connect(server);
        let mut head = [0; 4096];
        let length = client.read(&mut head).unwrap();
        upstream.write_all(&head[..length]).unwrap();
        std::io::copy(&mut upstream, &mut client).unwrap();
    });
    address
}

#[test]
fn a_proxy_on_this_host_shows_others_no_chains() {
    let server = serve(Fixture);
    let response = get(proxy(server.address), CHAINS);
    assert_eq!(response.header("www-authenticate"), Some("bearer realm=\"gpucause\""));
    let (status, error) = refusal(&response);
    assert_eq!(status, 401);
    let file = server.runtime.path().join(format!("{}.token", server.address.port()));
    let curl = format!(
        "sudo cat {} | sed 's/^/Authorization: Bearer /' | curl -H @- http://{}{CHAINS}",
        file.display(),
        server.address
    );
    assert!(error.contains(&curl), "{error}");
    assert_eq!(get(proxy(server.address), "/metrics").status, 200);
    for wrong in ["Authorization: Bearer 0123456789abcdef\r\n", "Authorization: Basic YTpi\r\n"] {
        assert_eq!(request(server.address, "GET", CHAINS, wrong).status, 401, "{wrong}");
    }
}

#[test]
fn chains_are_not_shown_to_web_pages() {
    let server = serve(Fixture);
    let asked = format!("Origin: http://evil.example\r\n{}", server.token);
    let (status, error) = refusal(&request(server.address, "GET", CHAINS, &asked));
    assert_eq!(status, 403);
    assert!(error.contains("not available to web pages"), "{error}");
}

#[test]
fn the_token_file_goes_with_the_server() {
    let mut server = serve(Fixture);
    let files = |server: &Running| std::fs::read_dir(server.runtime.path()).unwrap().count();
    assert_eq!(get(server.address, "/-/healthy").status, 200);
    assert_eq!(files(&server), 1);
    server.stop();
    server.thread.take().unwrap().join().unwrap();
    assert_eq!(files(&server), 0);
}
