//! One connection: it waits for its seat, is encrypted where it has to be, and is served until it ends or has to.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, Interest};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::Limits;
use super::access::Peer;
use super::body::Pieces;
use super::door::{self, Door};
use super::lobby::{Group, Guest, Lobby, Said};
use super::paced::Paced;
use super::routes::Routes;
use super::web_config::Tls;

/// Bytes that a request's line and headers may take.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// What somebody is told who speaks HTTP where TLS is spoken.
const NO_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n\
    This port speaks HTTPS; ask with https://.\n";

/// All that connections have in common.
pub(super) struct Host {
    pub(super) routes: Routes,
    pub(super) door: Door,
    pub(super) lobby: Arc<Lobby>,
    pub(super) limits: Limits,
}

impl Host {
    /// Serves a connection until its end, at the latest a while after `stopped`.
    pub(super) async fn connection(
        self: Arc<Self>,
        stream: TcpStream,
        address: IpAddr,
        mut stopped: watch::Receiver<bool>,
    ) {
        let patience = self.limits.header_timeout;
        let seat = tokio::select! {
            seat = Arc::clone(&self.lobby).enter(Group::of(address), patience, saying(&stream)) => seat,
            _ = stopped.wait_for(|stopped| *stopped) => None,
        };
        let Some(seat) = seat else {
            tracing::debug!(%address, "a connection was closed for want of room");
            return;
        };
        let guest = Arc::clone(seat.guest());
        let stream = Paced::new(stream, Arc::clone(&guest), self.limits.write_timeout);
        let served = async {
            match &self.door.rules().tls {
                None => {
                    let peer = Peer { address, identified: false };
                    Arc::clone(&self).serve(stream, peer, &guest, stopped).await
                }
                Some(tls) => {
                    let shaking = self.shake_hands(tls, stream);
                    let (stream, identified) = tokio::select! {
                        shaken = timeout(self.limits.handshake_timeout, shaking) => {
                            shaken.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?
                        }
                        _ = stopped.wait_for(|stopped| *stopped) => return Ok(()),
                    };
                    let peer = Peer { address, identified };
                    Arc::clone(&self).serve(stream, peer, &guest, stopped).await
                }
            }
        };
        let result = tokio::select! {
            result = served => result,
            () = guest.told_to_leave() => Err(io::Error::other("another connection of the client wants its place")),
        };
        if let Err(error) = result {
            tracing::debug!(%address, %error, "a connection ended early");
        }
    }

    /// The encrypted stream, and whether the client's certificate tells who it is.
    async fn shake_hands(
        &self,
        tls: &Tls,
        stream: Paced,
    ) -> io::Result<(impl AsyncRead + AsyncWrite + Unpin + use<>, bool)> {
        if stream.first_byte().await?.is_some_and(|byte| byte.is_ascii_uppercase()) {
            return Err(refuse_plain(stream).await?);
        }
        let acceptor = TlsAcceptor::from(Arc::clone(&tls.config));
        match acceptor.accept(stream).into_fallible().await {
            Ok(stream) => {
                let shown = stream.get_ref().1.peer_certificates().is_some_and(|c| !c.is_empty());
                Ok((stream, shown && tls.proves_identity))
            }
            Err((error, mut stream)) => {
                // What the client has been told to know must have left before the connection is closed.
                stream.shutdown().await?;
                Err(error)
            }
        }
    }

    pub(super) async fn serve(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        peer: Peer,
        guest: &Arc<Guest>,
        mut stopped: watch::Receiver<bool>,
    ) -> io::Result<()> {
        let limits = self.limits;
        let service = service_fn(|request| {
            let (host, guest) = (Arc::clone(&self), Arc::clone(guest));
            async move { Ok::<_, Infallible>(host.respond(&request, peer, &guest).await) }
        });
        let mut connection = pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(limits.header_timeout)
                .max_buf_size(MAX_HEAD_BYTES)
                .serve_connection(TokioIo::new(stream), service)
        );
        let ended = tokio::select! {
            result = connection.as_mut() => Ok(result),
            () = sleep(limits.connection_life) => Err(()),
            _ = stopped.wait_for(|stopped| *stopped) => Err(()),
        };
        let result = match ended {
            Ok(result) => result,
            Err(()) => {
                connection.as_mut().graceful_shutdown();
                timeout(limits.drain, connection).await.unwrap_or(Ok(()))
            }
        };
        result.map_err(io::Error::other)
    }

    async fn respond(
        &self,
        request: &Request<Incoming>,
        peer: Peer,
        guest: &Guest,
    ) -> Response<Pieces> {
        let rules = self.door.rules();
        if head_bytes(request) > MAX_HEAD_BYTES {
            let mut response = door::dress(door::too_long(), &rules);
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            return response;
        }
        let response = match self.door.admit(&rules, peer, request.headers()).await {
            Ok(peer) => {
                guest.set_busy(true);
                let response = self.routes.respond(request, peer, guest);
                let response = timeout(self.limits.response_timeout, response).await;
                guest.set_busy(false);
                response.unwrap_or_else(|_| door::too_slow())
            }
            Err(refusal) => refusal,
        };
        let mut response = door::dress(response, &rules);
        if guest.is_finishing() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// Bytes of a request's line and headers. The server reads on while there is room in a buffer that may have grown beyond the limit.
fn head_bytes<B>(request: &Request<B>) -> usize {
    let uri = request.uri();
    let target = uri.path_and_query().map_or(0, |target| target.as_str().len());
    let line = request.method().as_str().len() + target + "  HTTP/1.1\r\n".len();
    let headers = request.headers().iter();
    line + headers.map(|(name, value)| name.as_str().len() + value.len() + 4).sum::<usize>()
}

/// Tells that TLS is spoken here, and why the connection ends.
async fn refuse_plain(mut stream: Paced) -> io::Result<io::Error> {
    // Unread, what was sent would have the kernel drop the answer.
    let _ = stream.read(&mut [0; 4096]).await?;
    stream.write_all(NO_TLS).await?;
    stream.shutdown().await?;
    Ok(io::Error::other("plain HTTP where TLS is spoken"))
}

/// Done when a connection has sent something to answer, all of which stays to be read.
async fn saying(stream: &TcpStream) -> Said {
    loop {
        let Ok(ready) = stream.ready(Interest::READABLE).await else { return Said::Goodbye };
        let mut bytes = [0; 2048];
        match stream.peek(&mut bytes).await {
            Ok(0) | Err(_) => return Said::Goodbye,
            // Whatever it is, nothing will follow.
            Ok(_) if ready.is_read_closed() => return Said::Enough,
            Ok(length) if is_whole(&bytes[..length]) => return Said::Enough,
            Ok(_) => {}
        }
        // Has the next round wait until there is more.
        let _ =
            stream.try_io(Interest::READABLE, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
    }
}

/// Whether it has the end of a request's head, the whole of the first message of TLS, or very much of either.
fn is_whole(sent: &[u8]) -> bool {
    match sent {
        // The third number is the length of what follows.
        [0x16, _, _, high, low, rest @ ..] => {
            rest.len() >= usize::from(u16::from_be_bytes([*high, *low])) || sent.len() >= 2048
        }
        _ => sent.len() >= 2048 || sent.windows(4).any(|end| end == b"\r\n\r\n"),
    }
}
