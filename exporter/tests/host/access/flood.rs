//! Clients that try to keep others out, and proper ones between them.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use gpucause_fixture::elsewhere::request_from;
use gpucause_fixture::http_client::{DEADLINE, connect, get};
use gpucause_fixture::poll::until;
use gpucause_fixture::server::{Running, serve, start};
use gpucause_http::server::Limits;
use gpucause_http::web_config::LiveWebConfig;

use super::pairs::Folder;
use super::tls_client::Asking;

/// How long a scrape may take whatever others do.
const SCRAPE: Duration = Duration::from_secs(1);

fn open() -> Running {
    start(LiveWebConfig::default(), Limits::default())
}

/// Scrapes, and tells how long that took.
fn scrape(server: SocketAddr) -> Duration {
    let begin = Instant::now();
    assert_eq!(get(server, "/metrics").status, 200);
    begin.elapsed()
}

#[test]
fn a_scrape_is_answered_among_500_slow_clients_of_the_same_address() {
    let server = open();
    let slow: Vec<_> = (0..500)
        .map(|_| {
            let mut stream = connect(server.address);
            stream.write_all(b"GET /metrics HTTP/1.1\r\nX: ").unwrap();
            stream
        })
        .collect();
    for _ in 0..5 {
        let took = scrape(server.address);
        assert!(took < SCRAPE, "{took:?}");
    }
    drop(slow);
}

#[test]
fn a_scrape_is_answered_among_clients_that_do_not_read() {
    let server = open();
    let slow: Vec<_> = (0..50)
        .map(|_| {
            let mut stream = connect(server.address);
            // Pipelined, so that more is to be sent than buffers take.
            let _ =
                stream.write_all("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(50).as_bytes());
            stream
        })
        .collect();
    // The server first makes what clients have asked for, as far as it can send it: then nothing moves.
    until("a quick scrape", || (scrape(server.address) < SCRAPE).then_some(()));
    for _ in 0..3 {
        let took = scrape(server.address);
        assert!(took < SCRAPE, "{took:?}");
    }
    drop(slow);
}

#[test]
fn a_client_that_does_not_read_is_dropped() {
    let limits = Limits { write_timeout: Duration::from_millis(300), ..Limits::default() };
    let server = start(LiveWebConfig::default(), limits);
    let mut stream = connect(server.address);
    stream.set_write_timeout(Some(DEADLINE)).unwrap();
    let begin = Instant::now();
    // As long as the server takes requests, it has not dropped the client.
    let asking = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(100);
    while stream.write_all(asking.as_bytes()).is_ok() {
        assert!(begin.elapsed() < DEADLINE, "a client that never reads is still served");
    }
    assert!(begin.elapsed() < DEADLINE);
    assert_eq!(get(server.address, "/-/healthy").status, 200);
}

#[test]
fn a_thousand_connections_at_a_time_are_served() {
    let server = open();
    let streams: Vec<_> = (0..1_000)
        .map(|_| {
            let mut stream = connect(server.address);
            stream
                .write_all(b"GET /-/healthy HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                .unwrap();
            stream
        })
        .collect();
    let served = streams.into_iter().filter(|stream| {
        let mut text = Vec::new();
        let mut stream = stream;
        stream.read_to_end(&mut text).is_ok() && text.starts_with(b"HTTP/1.1 200")
    });
    assert_eq!(served.count(), 1_000);
}

#[test]
fn more_slow_clients_than_connections_keep_nobody_of_another_address_out() {
    let server = open();
    let slow: Vec<_> = (0..1_000).map(|_| connect(server.address)).collect();
    let begin = Instant::now();
    assert_eq!(request_from([127, 0, 0, 9], server.address, "/metrics", "").status, 200);
    assert!(begin.elapsed() < SCRAPE, "{:?}", begin.elapsed());
    drop(slow);
}

#[test]
fn handshakes_that_are_not_finished_end_in_time_and_hold_nobody_up() {
    let folder = Folder::new();
    let access = LiveWebConfig::load(&folder.configure(&[], "")).unwrap();
    let limits = Limits { handshake_timeout: Duration::from_millis(700), ..Limits::default() };
    let server = start(access, limits);
    let slow: Vec<_> = (0..300)
        .map(|_| {
            let mut stream = connect(server.address);
            stream.write_all(b"\x16\x03\x01\x02\x00\x01").unwrap();
            stream
        })
        .collect();
    let begin = Instant::now();
    assert_eq!(Asking::new(&folder).get(server.address, "/metrics").unwrap().status(), 200);
    assert!(begin.elapsed() < SCRAPE, "{:?}", begin.elapsed());
    for mut stream in slow {
        let mut answer = Vec::new();
        // Closed, or reset: either is an end.
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 200"));
    }
}

/// Bytes that differ from call to call and are the same in every run.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..length).map(|_| next()).collect()
}

#[test]
fn malformed_requests_and_noise_harm_nobody() {
    let folder = Folder::new();
    let (plain, tls) = (open(), serve(&folder.configure(&[], "")));
    let words: [&[u8]; 6] = [
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\n: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"\x16\x03\x01\xff\xff\x01\x00",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ];
    for n in 0..5_000_u64 {
        for server in [&plain, &tls] {
            let mut stream = connect(server.address);
            let noise = noise(n, 64);
            let bytes = if n % 2 == 0 { words[(n / 2) as usize % words.len()] } else { &noise };
            // The server may have hung up.
            let _ = stream.write_all(bytes);
            let _ = stream.shutdown(Shutdown::Write);
            if n % 50 == 0 {
                let mut answer = Vec::new();
                let _ = stream.read_to_end(&mut answer);
                assert!(!answer.starts_with(b"HTTP/1.1 5"), "{bytes:?}");
            }
        }
    }
    assert!(scrape(plain.address) < SCRAPE);
    assert_eq!(Asking::new(&folder).get(tls.address, "/metrics").unwrap().status(), 200);
}
