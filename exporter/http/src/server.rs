//! The HTTP server, and its limits per client.
//!
//! It runs on one thread. Expensive responses are made on blocking threads, a few at a time, so that neither a slow one nor a slow
//! client delays the others. Connections have a bounded lifetime; a scraper opens another one.

mod auth;
pub mod body;
mod connection;
mod fair_semaphore;
mod listen;
mod password_verifier;
mod peer;
mod permits;
pub mod reply;

pub use connection::{Handler, Respond};
pub use fair_semaphore::Permit;
pub use listen::{AddressError, BindError, ListenAddress};
pub use peer::Peer;
pub use permits::Permits;

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::server_pool::Pool;
use crate::token_file::TokenFile;
use crate::web_config::LiveWebConfig;

/// Limits on clients.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Open connections. Another one evicts one that is idle, or waits.
    pub connections: u32,
    /// Expensive responses that are made at the same time, such as scrapes; more wait, and clients take turns.
    pub permits: u32,
    /// How long such a request waits for its permit before it is refused.
    pub permit_wait: Duration,
    /// Time for a request's headers to arrive, also the time that an idle connection stays open.
    pub header_timeout: Duration,
    /// Time for a TLS handshake.
    pub handshake_timeout: Duration,
    /// Time to produce a response, the wait for a permit included.
    pub response_timeout: Duration,
    /// How long a client may read nothing of a response.
    pub write_timeout: Duration,
    /// Age at which a connection is closed after its current response, which may go on for as long again while it makes progress.
    pub connection_life: Duration,
    /// Time for a response that makes none, and for all responses when the server stops.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 512,
            permits: 2,
            permit_wait: Duration::from_secs(5),
            header_timeout: Duration::from_secs(5),
            handshake_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(10),
            connection_life: Duration::from_secs(120),
            drain: Duration::from_secs(5),
        }
    }
}

/// The limits that can be changed while the server runs.
#[derive(Debug, Clone)]
pub struct LimitsHandle {
    connections: Pool,
    permits: Permits,
}

impl LimitsHandle {
    /// Sets both limits. Must be called within the runtime that serves.
    pub fn resize(&self, connections: u32, permits: u32) {
        self.connections.resize(connections);
        self.permits.resize(permits);
    }
}

/// A server that listens, and does not serve yet.
#[derive(Debug)]
pub struct Server {
    listeners: Vec<StdListener>,
    limits: Limits,
    access: Arc<LiveWebConfig>,
    live_limits: LimitsHandle,
    token_file: Option<TokenFile>,
}

impl Server {
    /// Binds the addresses. Connections queue until [`serve`](Self::serve).
    ///
    /// # Errors
    /// When one of the addresses cannot be bound.
    pub fn bind(addresses: &[ListenAddress], limits: Limits) -> Result<Self, BindError> {
        let listeners = addresses.iter().map(ListenAddress::bind).collect::<Result<_, _>>()?;
        Ok(Self::on(listeners, limits))
    }

    /// On non-blocking sockets that already listen.
    #[must_use]
    pub fn on(listeners: Vec<StdListener>, limits: Limits) -> Self {
        let live_limits = LimitsHandle {
            connections: Pool::new(limits.connections),
            permits: Permits::new(limits.permits, limits.permit_wait),
        };
        let access = Arc::default();
        Self { listeners, limits, access, live_limits, token_file: None }
    }

    /// Authenticates clients by a web configuration.
    #[must_use]
    pub fn with_access(self, access: Arc<LiveWebConfig>) -> Self {
        Self { access, ..self }
    }

    /// The web configuration.
    #[must_use]
    pub fn access(&self) -> &Arc<LiveWebConfig> {
        &self.access
    }

    /// Authenticates programs of this host by this token. Its file is removed when the server ends.
    #[must_use]
    pub fn with_token_file(self, token_file: TokenFile) -> Self {
        Self { token_file: Some(token_file), ..self }
    }

    /// Returns true if it has a token for programs of this host.
    #[must_use]
    pub const fn has_token(&self) -> bool {
        self.token_file.is_some()
    }

    /// The file of that token, if there is one.
    #[must_use]
    pub fn token_path(&self) -> Option<&Path> {
        self.token_file.as_ref().and_then(TokenFile::path)
    }

    /// The permits of its expensive responses.
    #[must_use]
    pub fn permits(&self) -> Permits {
        self.live_limits.permits.clone()
    }

    /// Its URL on this host.
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

    /// A handle that changes limits while it serves.
    #[must_use]
    pub fn limits_handle(&self) -> LimitsHandle {
        self.live_limits.clone()
    }

    /// The addresses that it listens on, with the real port for port 0.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// Serves until `shutdown` is done, then finishes responses under way within the limits.
    ///
    /// # Errors
    /// When a listener cannot be handed to the runtime.
    pub async fn serve(
        self,
        routes: impl Respond,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let (stop, stopped) = watch::channel(false);
        // Dropped, and so removed, when nothing is served any more.
        let token_file = self.token_file;
        let token = token_file.as_ref().map(|file| file.token().clone());
        let LimitsHandle { connections, permits } = self.live_limits;
        let following = tokio::spawn(Arc::clone(&self.access).follow());
        let handler = Arc::new(Handler::new(routes, (self.access, token), self.limits, permits));
        for listener in self.listeners {
            let listener = TcpListener::from_std(listener)?;
            let (pool, handler, mut stopped) =
                (connections.clone(), Arc::clone(&handler), stopped.clone());
            tokio::spawn(async move {
                let until = stopped.clone();
                tokio::select! {
                    () = pool.accept(listener, |stream, connection| {
                        Arc::clone(&handler).connection(stream, connection, until.clone())
                    }) => {}
                    _ = stopped.wait_for(|stopped| *stopped) => {}
                }
            });
        }
        shutdown.await;
        // Without a receiver nothing is left to be stopped.
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
