//! A connection: TLS handshake, requests, shutdown.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::Limits;
use super::auth::{self, AuthMiddleware};
use super::body::Pieces;
use super::peer::Peer;
use super::permits::Permits;
use super::reply::Reply;
use crate::server_pool::Connection;
use crate::token::Token;
use crate::web_config::{LiveWebConfig, Tls};

/// Bytes that a request's line and headers may take.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// Bytes of a response that a client must receive in the time that a connection lives, to be sent more after that.
const MIN_PROGRESS: u64 = 64 * 1024;

/// The response to HTTP on a port with TLS.
const NO_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n\
    This port requires HTTPS; use https://.\n";

/// Answers requests that have passed the authentication.
pub trait Respond: Send + Sync + 'static {
    /// The response to a request.
    fn respond(
        &self,
        request: &Request<Incoming>,
        peer: Peer,
    ) -> impl Future<Output = Reply> + Send;
}

/// Serves connections. Public for fuzz targets; a [`Server`](super::Server) has its own.
#[derive(Debug)]
pub struct Handler<R> {
    routes: R,
    auth: AuthMiddleware,
    limits: Limits,
    permits: Permits,
}

impl<R: Respond> Handler<R> {
    /// A handler of connections whose clients are authenticated by a web configuration, or by the token.
    pub fn new(
        routes: R,
        (access, token): (Arc<LiveWebConfig>, Option<Token>),
        limits: Limits,
        permits: Permits,
    ) -> Self {
        Self { routes, auth: AuthMiddleware::new(access, token), limits, permits }
    }

    /// Serves a connection until its end, at the latest a while after `stopped`.
    pub(super) async fn connection(
        self: Arc<Self>,
        stream: TcpStream,
        connection: Arc<Connection>,
        mut stopped: watch::Receiver<bool>,
    ) -> io::Result<()> {
        // The kernel closes a connection whose client stops reading.
        SockRef::from(&stream).set_tcp_user_timeout(Some(self.limits.write_timeout))?;
        let peer = Peer { address: connection.address, identified: false };
        let config = self.auth.config();
        let Some(tls) = &config.tls else {
            return self.serve(stream, peer, &connection, stopped).await;
        };
        let (stream, identified) = tokio::select! {
            accepted = timeout(self.limits.handshake_timeout, accept_tls(tls, stream)) => {
                accepted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?
            }
            _ = stopped.wait_for(|stopped| *stopped) => return Ok(()),
        };
        self.serve(stream, Peer { identified, ..peer }, &connection, stopped).await
    }

    /// Serves a connection whose handshake is done.
    ///
    /// # Errors
    /// When the connection breaks, or a request is malformed.
    pub async fn serve(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        peer: Peer,
        connection: &Arc<Connection>,
        mut stopped: watch::Receiver<bool>,
    ) -> io::Result<()> {
        let limits = self.limits;
        let service = service_fn(|request| {
            let (handler, connection) = (Arc::clone(&self), Arc::clone(connection));
            async move { Ok::<_, Infallible>(handler.respond(&request, peer, &connection).await) }
        });
        let mut serving = pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(limits.header_timeout)
                .max_buf_size(MAX_HEAD_BYTES)
                .serve_connection(TokioIo::new(stream), service)
        );
        loop {
            let before = connection.bytes_sent();
            tokio::select! {
                result = serving.as_mut() => return result.map_err(io::Error::other),
                () = sleep(limits.connection_life) => serving.as_mut().graceful_shutdown(),
                _ = stopped.wait_for(|stopped| *stopped) => break,
            }
            // A download over a slow network may take longer than connections live, and is not cut while it goes on.
            if connection.bytes_sent() - before < MIN_PROGRESS {
                break;
            }
        }
        serving.as_mut().graceful_shutdown();
        let ended = timeout(limits.drain, serving).await.unwrap_or(Ok(()));
        ended.map_err(io::Error::other)
    }

    async fn respond(
        &self,
        request: &Request<Incoming>,
        peer: Peer,
        connection: &Arc<Connection>,
    ) -> Response<Pieces> {
        let config = self.auth.config();
        if head_bytes(request) > MAX_HEAD_BYTES {
            return closing(auth::add_headers(auth::too_long(), &config));
        }
        let response = match self.auth.authenticate(&config, peer, request.headers()).await {
            Ok(peer) => {
                let _busy = connection.busy();
                let response =
                    timeout(self.limits.response_timeout, self.routes.respond(request, peer));
                response.await.unwrap_or_else(|_| auth::too_slow())
            }
            Err(refusal) => refusal,
        };
        let mut response = auth::add_headers(response, &config);
        response.body_mut().send_over(connection);
        // Clients that send request after request lose their connections while others wait.
        if self.permits.has_waiting() || connection.is_slot_wanted() {
            closing(response)
        } else {
            response
        }
    }
}

/// Closes the connection after this response.
fn closing(mut response: Response<Pieces>) -> Response<Pieces> {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// The encrypted stream, and whether the client's certificate identifies it.
async fn accept_tls(
    tls: &Tls,
    stream: TcpStream,
) -> io::Result<(impl AsyncRead + AsyncWrite + Unpin + use<>, bool)> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 1 && first[0].is_ascii_uppercase() {
        return Err(refuse_plain(stream).await?);
    }
    let acceptor = TlsAcceptor::from(Arc::clone(&tls.config));
    match acceptor.accept(stream).into_fallible().await {
        Ok(stream) => {
            let has_certificate =
                stream.get_ref().1.peer_certificates().is_some_and(|c| !c.is_empty());
            Ok((stream, has_certificate && tls.proves_identity))
        }
        Err((error, mut stream)) => {
            // The TLS alert must be sent before the connection is closed.
            stream.shutdown().await?;
            Err(error)
        }
    }
}

/// Bytes of a request's line and headers. Hyper's buffer may have grown beyond the limit.
fn head_bytes<B>(request: &Request<B>) -> usize {
    let uri = request.uri();
    let target = uri.path_and_query().map_or(0, |target| target.as_str().len());
    let line = request.method().as_str().len() + target + "  HTTP/1.1\r\n".len();
    let headers = request.headers().iter();
    line + headers.map(|(name, value)| name.as_str().len() + value.len() + 4).sum::<usize>()
}

/// Responds to plain HTTP, and returns the error of the connection.
async fn refuse_plain(mut stream: TcpStream) -> io::Result<io::Error> {
    // The kernel would drop the response if the request were not read.
    let _ = stream.read(&mut [0; 4096]).await?;
    stream.write_all(NO_TLS).await?;
    stream.shutdown().await?;
    Ok(io::Error::other("plain HTTP on a TLS port"))
}
