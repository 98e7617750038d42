//! What the server reads that clients and administrators write, as targets of a fuzz engine.

#![allow(clippy::unwrap_used, reason = "a target fails by panicking")]

use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::access::Peer;
use super::connection::Host;
use super::door::Door;
use super::lobby::{Guest, Lobby};
use super::routes::Routes;
use super::turnstile::Turnstile;
use super::web_config::WebConfig;
use super::web_config::client_cert::san::alternative_names;
use super::{Limits, Readiness, ScrapeError, Source};
use crate::collector::{Collectors, Selection};
use crate::family::Sink;
use gpucause_engine::chain::Chain;
use gpucause_engine::observation::{ObservationState, Period};
use gpucause_investigations::http::Token;

/// What the corpus shows for chains.
const TOKEN: &str = "0123456789abcdef";
/// Bytes that may be on their way to one side.
const IN_FLIGHT: usize = 1 << 20;

/// Has nothing to tell.
struct Nothing;

impl Source for Nothing {
    fn collectors(&self) -> Vec<&'static str> {
        Collectors::default().names()
    }

    fn scrape(&self, _: &Selection, _: &mut dyn Sink) -> Result<(), ScrapeError> {
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

/// What a client sends on a connection, whole requests and parts of them.
pub(crate) fn http(data: &[u8]) {
    thread_local! {
        static SERVER: (Runtime, Arc<Host>) = {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let limits = Limits::default();
            let gate = (Turnstile::new(limits.scrapes), limits.scrape_wait);
            let host = Host {
                routes: Routes::new(
                    Arc::new(Nothing),
                    "/metrics".parse().unwrap(),
                    gate,
                    None,
                    "no credentials".to_owned(),
                ),
                door: Door::new(Arc::default(), Some(Token::of(TOKEN).unwrap())),
                lobby: Arc::new(Lobby::new(1)),
                limits,
            };
            (runtime, Arc::new(host))
        };
    }
    SERVER.with(|(runtime, host)| {
        let answer = runtime.block_on(async {
            let (mut client, server) = duplex(IN_FLIGHT);
            let peer = Peer { address: Ipv4Addr::LOCALHOST.into(), identified: false };
            let (_stop, stopped) = watch::channel(false);
            client.write_all(data).await.unwrap();
            client.shutdown().await.unwrap();
            let guest = Arc::new(Guest::new());
            let mut answer = Vec::new();
            let (served, read) = tokio::join!(
                Arc::clone(host).serve(server, peer, &guest, stopped),
                client.read_to_end(&mut answer)
            );
            // What the client sends wrong is an error of its connection.
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
    let mut told = Vec::new();
    match WebConfig::parse(text, Path::new("/nonexistent"), &mut Vec::new()) {
        Ok(config) => write!(told, "{config}").unwrap(),
        Err(complaints) => {
            assert!(!complaints.is_empty());
            complaints.iter().for_each(|complaint| writeln!(told, "{complaint}").unwrap());
        }
    }
}

/// A client's certificate in DER.
pub(crate) fn certificate(data: &[u8]) {
    drop(alternative_names(data));
}
