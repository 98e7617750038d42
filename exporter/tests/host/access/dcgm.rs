//! A dcgm-exporter that speaks TLS.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpucause_observe::dcgm::{Upstream, UpstreamState};
use rustls::crypto::ring;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::pairs::Folder;

const PAGE: &str = "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} 97\n";

/// Serves the page until the test ends.
fn upstream(folder: &Folder) -> SocketAddr {
    let (chain, key) = folder.authority.pair("localhost").parts();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let tls = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = StreamOwned::new(tls, stream);
            // A client that does not trust us hangs up.
            if stream.read(&mut [0; 4096]).is_ok() {
                let length = PAGE.len();
                let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{PAGE}");
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        }
    });
    address
}

/// How it stands with the page once it was asked for.
fn fetched(server: SocketAddr, ca_file: &Path) -> (usize, UpstreamState) {
    let url = format!("https://localhost:{}", server.port()).parse().unwrap();
    let upstream = Upstream::new(url, Some(ca_file), Duration::from_millis(100)).unwrap();
    let upstream = Arc::new(upstream);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let following = tokio::spawn(Arc::clone(&upstream).follow());
        let begin = Instant::now();
        let outcome = loop {
            let (families, state) = upstream.view(Instant::now());
            if state.up || state.failures.iter().any(|(_, count)| *count > 0) {
                break (families.len(), state);
            }
            assert!(
                begin.elapsed() < gpucause_fixture::http_client::DEADLINE,
                "nothing came of it"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        following.abort();
        outcome
    })
}

#[test]
fn a_page_is_fetched_over_tls_from_whom_the_authority_knows() {
    let folder = Folder::new();
    let (families, state) = fetched(upstream(&folder), &folder.path("ca.crt"));
    assert_eq!((families, state.up), (1, true), "{state:?}");
}

#[test]
fn a_page_of_somebody_else_is_not_fetched() {
    let (folder, stranger) = (Folder::new(), Folder::new());
    let (families, state) = fetched(upstream(&stranger), &folder.path("ca.crt"));
    assert_eq!((families, state.up), (0, false));
    assert!(state.failures.contains(&("tls", 1)), "{state:?}");
}
