//! Fuzz targets: requests, web configurations and certificates.

#![allow(clippy::unwrap_used, reason = "a target fails by panicking")]

use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

use gpucause_engine::chain::Chain;
use gpucause_engine::observation::{ObservationState, Period};
use gpucause_http::server::{Handler, Limits, Peer, Server};
use gpucause_http::server_pool::Connection;
use gpucause_http::token::Token;
use gpucause_http::web_config::WebConfig;
use gpucause_http::web_config::client_cert::san::alternative_names;
use gpucause_page::family::Sink;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::{Login, Readiness, Routes, ScrapeError, Source};
use crate::collector::{Collectors, Scope};

/// The token in the corpus.
const TOKEN: &str = "0123456789abcdef";
/// Size of the buffer in each direction.
const IN_FLIGHT: usize = 1 << 20;

struct EmptySource;

impl Source for EmptySource {
    fn collectors(&self) -> Vec<&'static str> {
        Collectors::default().names()
    }

    fn scrape(&self, _: &Scope, _: &mut dyn Sink) -> Result<(), ScrapeError> {
        Ok(())
    }

    fn chains(&self) -> Vec<Chain> {
        Vec::new()
    }

    fn observation(&self) -> ObservationState {
        Period::attached(0.0).into()
    }

    fn ready(&self) -> Readiness {
        Readiness::Ready
    }
}

/// Complete and partial requests on a connection.
pub(crate) fn http(data: &[u8]) {
    thread_local! {
        static SERVER: (Runtime, Arc<Handler<Routes>>) = {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let limits = Limits::default();
            let permits = Server::on(Vec::new(), limits).permits();
            let login = Login { hint: "no credentials".to_owned(), token_path: None };
            let path = "/metrics".parse().unwrap();
            let routes = Routes::with_permits(permits.clone(), Arc::new(EmptySource), path, login);
            let access = (Arc::default(), Some(Token::of(TOKEN).unwrap()));
            let handler = Handler::new(routes, access, limits, permits);
            (runtime, Arc::new(handler))
        };
    }
    SERVER.with(|(runtime, handler)| {
        let answer = runtime.block_on(async {
            let (mut client, server) = duplex(IN_FLIGHT);
            let peer = Peer { address: Ipv4Addr::LOCALHOST.into(), identified: false };
            let (_stop, stopped) = watch::channel(false);
            client.write_all(data).await.unwrap();
            client.shutdown().await.unwrap();
            let connection = Arc::new(Connection::new(peer.address));
            let mut answer = Vec::new();
            let (served, read) = tokio::join!(
                Arc::clone(handler).serve(server, peer, &connection, stopped),
                client.read_to_end(&mut answer)
            );
            // A malformed request is an error of its connection.
            drop(served);
            read.unwrap();
            answer
        });
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "no answer");
        assert!(!answer.windows(12).any(|part| part.starts_with(b"HTTP/1.1 5")), "a failure");
    });
}

/// The text of a `--web.config.file`.
pub(crate) fn web_config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut text_out = Vec::new();
    match WebConfig::parse(text, Path::new("/nonexistent"), &mut Vec::new()) {
        Ok(config) => write!(text_out, "{config}").unwrap(),
        Err(complaints) => {
            assert!(!complaints.is_empty());
            complaints.iter().for_each(|complaint| writeln!(text_out, "{complaint}").unwrap());
        }
    }
}

/// A client's certificate in DER.
pub(crate) fn certificate(data: &[u8]) {
    drop(alternative_names(data));
}
