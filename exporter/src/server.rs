//! The HTTP server: who may take up how much of it, and for how long.
//!
//! It is one thread. Scrapes run on blocking threads, a few at a time, so that neither a slow scrape nor a slow client
//! holds up `/-/healthy`, as long as connections are free. A connection lives for a bounded time, since a scraper opens another one without ado.

mod access;
mod api;
mod body;
mod connection;
mod desk;
mod door;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod gate;
mod landing;
mod lifecycle;
mod listen;
mod live;
mod lobby;
mod paced;
mod routes;
mod signal;
mod source;
mod turnstile;
mod web_config;

pub use gate::Gates;
pub use lifecycle::{ReloadHandle, ReloadRequest, ReloadRequests, reload_channel};
pub use listen::{BindError, ListenAddress};
pub use live::{LiveWebConfig, ReloadState};
pub use routes::TelemetryPath;
pub use signal::shutdown_signal;
pub use source::{Readiness, ScrapeError, Source};
pub use web_config::{WebConfig, WebConfigError};

pub(crate) use api::node as node_name;

use crate::token_file::TokenFile;
use connection::Host;
use door::Door;
use gate::Gate;
use lobby::Lobby;
use routes::Routes;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{sleep, timeout};
use turnstile::Turnstile;

/// How long to wait when no connection can be accepted, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What clients may use.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Open connections; more wait to be accepted.
    pub connections: u32,
    /// Those of one client that are served at a time; more wait for one of them to end, to do nothing for a while, or to
    /// have been answered.
    pub connections_per_client: usize,
    /// Scrapes and questions for chains at a time; more wait, and clients take turns.
    pub scrapes: u32,
    /// How long a scrape waits for its turn before it is refused.
    pub scrape_wait: Duration,
    /// Time for a request's headers to arrive, also the time that an idle connection stays open.
    pub header_timeout: Duration,
    /// Time for a TLS handshake.
    pub handshake_timeout: Duration,
    /// Time for a response to be made, waiting for a scrape's turn included.
    pub response_timeout: Duration,
    /// Time for a client to take a buffer of a response, 64 KiB or so.
    pub write_timeout: Duration,
    /// Age at which a connection is closed after the response it is at.
    pub connection_life: Duration,
    /// Time for that response, and for all responses when the server stops.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 512,
            connections_per_client: 64,
            scrapes: 2,
            scrape_wait: Duration::from_secs(5),
            header_timeout: Duration::from_secs(5),
            handshake_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(10),
            connection_life: Duration::from_secs(120),
            drain: Duration::from_secs(5),
        }
    }
}

/// A server that has its ports and waits to be told what to serve.
#[derive(Debug)]
pub struct Server {
    listeners: Vec<StdListener>,
    limits: Limits,
    access: Arc<LiveWebConfig>,
    gates: Gates,
    reload: Option<ReloadHandle>,
    token_file: Option<TokenFile>,
}

impl Server {
    /// Takes the ports. Connections queue up until [`serve`](Self::serve).
    ///
    /// # Errors
    /// When one of the addresses cannot be had.
    pub fn bind(addresses: &[ListenAddress], limits: Limits) -> Result<Self, BindError> {
        let listeners = addresses.iter().map(ListenAddress::bind).collect::<Result<_, _>>()?;
        Ok(Self::on(listeners, limits))
    }

    /// On sockets that listen already, and do not block.
    #[must_use]
    pub fn on(listeners: Vec<StdListener>, limits: Limits) -> Self {
        let gates = Gates {
            connections: Gate::new(limits.connections),
            scrapes: Turnstile::new(limits.scrapes),
        };
        Self { listeners, limits, access: Arc::default(), gates, reload: None, token_file: None }
    }

    /// Lets clients in as a web configuration says.
    #[must_use]
    pub fn with_access(self, access: Arc<LiveWebConfig>) -> Self {
        Self { access, ..self }
    }

    /// How clients are let in.
    #[must_use]
    pub fn access(&self) -> &Arc<LiveWebConfig> {
        &self.access
    }

    /// Lets clients ask for reloads.
    #[must_use]
    pub fn with_reload(self, handle: ReloadHandle) -> Self {
        Self { reload: Some(handle), ..self }
    }

    /// Lets programs of this host read chains that show this token, whose file goes when the server ends.
    #[must_use]
    pub fn with_token_file(self, token_file: TokenFile) -> Self {
        Self { token_file: Some(token_file), ..self }
    }

    /// Where it is reached from this host.
    #[must_use]
    pub fn url(&self) -> Option<String> {
        let scheme = if self.access.current().is_plain() { "http" } else { "https" };
        let address = self.addresses().into_iter().next()?;
        Some(if address.ip().is_unspecified() {
            format!("{scheme}://localhost:{}", address.port())
        } else {
            format!("{scheme}://{address}")
        })
    }

    /// What can be set while it serves.
    #[must_use]
    pub fn gates(&self) -> Gates {
        self.gates.clone()
    }

    /// The addresses that it listens on, with the real port where 0 was asked for.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// Serves until `shutdown` is done; then the responses under way are finished, as far as the limits allow.
    ///
    /// # Errors
    /// When a listener cannot be handed to the runtime.
    pub async fn serve(
        self,
        source: Arc<dyn Source>,
        telemetry_path: TelemetryPath,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let (stop, stopped) = watch::channel(false);
        let hint = access::hint(self.token_file.as_ref(), &self.url().unwrap_or_default());
        // The file goes when nothing is served any more.
        let token_file = self.token_file;
        let token = token_file.as_ref().map(|file| file.token().clone());
        let Gates { connections, scrapes } = self.gates;
        let wait = self.limits.scrape_wait;
        let following = tokio::spawn(Arc::clone(&self.access).follow());
        let acceptor = Acceptor {
            host: Arc::new(Host {
                routes: Routes::new(source, telemetry_path, (scrapes, wait), self.reload, hint),
                door: Door::new(self.access, token),
                lobby: Arc::new(Lobby::new(self.limits.connections_per_client)),
                limits: self.limits,
            }),
            connections: connections.clone(),
            stopped,
        };
        for listener in self.listeners {
            let listener = TcpListener::from_std(listener)?;
            tokio::spawn(acceptor.clone().accept(listener));
        }
        drop(acceptor);
        shutdown.await;
        // Nobody to tell means that nothing is left to be stopped.
        let _ = stop.send(true);
        following.abort();
        let grace = self.limits.drain + Duration::from_secs(1);
        if timeout(grace, connections.emptied()).await.is_err() {
            tracing::warn!("connections were still busy when the server stopped");
        }
        drop(token_file);
        Ok(())
    }
}

#[derive(Clone)]
struct Acceptor {
    host: Arc<Host>,
    connections: Gate,
    stopped: watch::Receiver<bool>,
}

impl Acceptor {
    async fn accept(self, listener: TcpListener) {
        let mut stopped = self.stopped.clone();
        tokio::select! {
            () = self.accept_all(listener) => {}
            _ = stopped.wait_for(|stopped| *stopped) => {}
        }
    }

    /// A place for one more connection, which others have to leave when there is none.
    async fn place(&self) -> OwnedSemaphorePermit {
        loop {
            if let Some(place) = self.connections.try_enter() {
                return place;
            }
            self.host.lobby.make_room();
            if let Ok(place) = timeout(lobby::MAKE_ROOM_EVERY, self.connections.enter()).await {
                return place;
            }
        }
    }

    async fn accept_all(&self, listener: TcpListener) {
        loop {
            let permit = self.place().await;
            match listener.accept().await {
                Ok((stream, peer)) => {
                    let (host, stopped) = (Arc::clone(&self.host), self.stopped.clone());
                    tokio::spawn(async move {
                        host.connection(stream, peer.ip(), stopped).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}
