//! The server over HTTP: one path, stateless. Who asks must have the token, name this host, and be no web page.

mod door;

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, TcpListener as StdListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    CONNECTION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, ORIGIN, WWW_AUTHENTICATE,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rustls::ServerConfig as TlsConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::Assistant;
use crate::http::Token;
use door::{Door, Waiter};

/// Where the server is.
pub const PATH: &str = "/mcp";
/// Bytes of a question.
const MAX_BODY: usize = 256 << 10;
/// Bytes of its line and headers.
const MAX_HEAD: usize = 32 << 10;
/// Connections of those who were let in, at a time.
const MAX_CONNECTIONS: usize = 64;
/// Time for a question's headers, also that for which a connection may idle, and for a handshake.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for the whole of a question and its answer: a demonstration takes longest.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// Age at which a connection ends.
const LIFE: Duration = Duration::from_secs(900);
/// How long to wait when no connection can be accepted.
const PAUSE: Duration = Duration::from_millis(100);
/// What to do without the token.
const UNAUTHORIZED: &str = "The token is missing or wrong. Send the header Authorization: Bearer TOKEN with the token of \
    --token-file or GPUCAUSE_MCP_TOKEN, or without these with that of the file that the server's log names, such as \
    /run/gpucause/9402.token.\n";

type Answer = Response<BoxBody<Bytes, Infallible>>;
type Service = StreamableHttpService<Assistant, LocalSessionManager>;

/// The certificate in effect, which may be another one with each connection; `None` for no TLS.
pub type Tls = Arc<dyn Fn() -> Option<Arc<TlsConfig>> + Send + Sync>;

/// Who is let in, and how.
#[derive(Clone)]
pub struct Access {
    /// What clients must show.
    pub token: Token,
    /// Names of this host, beside `localhost` and addresses.
    pub hosts: Vec<String>,
    /// Encryption.
    pub tls: Tls,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { token, hosts, tls: _ } = self;
        f.debug_struct("Access").field("token", token).field("hosts", hosts).finish_non_exhaustive()
    }
}

/// Serves until `stop` is done.
///
/// # Errors
/// When the listener cannot be used.
pub async fn serve(
    assistant: Assistant,
    listener: StdListener,
    access: Access,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let desk = Arc::new(Desk { service: service(assistant), access, places });
    tokio::select! {
        () = accept(&listener, desk) => {}
        () = stop => {}
    }
    Ok(())
}

fn service(assistant: Assistant) -> Service {
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(MAX_BODY)
        // The names are checked here, before a body is read.
        .disable_allowed_hosts()
        .enforce_origin_validation();
    StreamableHttpService::new(move || Ok(assistant.clone()), Arc::default(), config)
}

async fn accept(listener: &TcpListener, desk: Arc<Desk>) {
    let door = Arc::new(Door::default());
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let (desk, waiter) = (Arc::clone(&desk), door.wait(peer.ip()));
                tokio::spawn(async move {
                    let sent_away = waiter.sent_away();
                    let guest = Arc::new(Guest(Mutex::new(Standing::Waits(waiter))));
                    let ended = tokio::select! {
                        ended = desk.connection(stream, guest) => ended,
                        () = sent_away.notified() => Err(io::Error::other("others want to ask")),
                    };
                    if let Err(error) = ended {
                        tracing::debug!(%error, "a connection ended early");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(PAUSE).await;
            }
        }
    }
}

/// Whoever is at the other end of a connection.
struct Guest(Mutex<Standing>);

enum Standing {
    /// It has shown nothing yet.
    Waits(#[expect(dead_code, reason = "it waits until this is dropped")] Waiter),
    /// It has shown the token, and nobody sends it away.
    IsKnown,
    /// It was let in.
    Has(
        #[expect(dead_code, reason = "it has its place until this is dropped")]
        OwnedSemaphorePermit,
    ),
}

impl Guest {
    fn has_place(&self) -> bool {
        matches!(*self.0.lock().unwrap_or_else(PoisonError::into_inner), Standing::Has(_))
    }

    fn stand(&self, standing: Standing) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = standing;
    }
}

struct Desk {
    service: Service,
    access: Access,
    places: Arc<Semaphore>,
}

impl Desk {
    async fn connection(self: Arc<Self>, stream: TcpStream, guest: Arc<Guest>) -> io::Result<()> {
        match (self.access.tls)() {
            None => self.talk(stream, guest).await,
            Some(tls) => {
                let shaken = timeout(HEADER_TIMEOUT, TlsAcceptor::from(tls).accept(stream)).await;
                let stream = shaken.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
                self.talk(stream, guest).await
            }
        }
    }

    async fn talk(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        guest: Arc<Guest>,
    ) -> io::Result<()> {
        let service = service_fn(|request| {
            let (desk, guest) = (Arc::clone(&self), Arc::clone(&guest));
            async move { Ok::<_, Infallible>(desk.respond(request, &guest).await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_buf_size(MAX_HEAD)
            .serve_connection(TokioIo::new(stream), service);
        timeout(LIFE, connection).await.unwrap_or(Ok(())).map_err(io::Error::other)
    }

    async fn respond(&self, request: Request<Incoming>, guest: &Guest) -> Answer {
        if let Some(refusal) = self.refusal(request.headers()) {
            return last(refusal);
        }
        if !guest.has_place() {
            guest.stand(Standing::IsKnown);
            let Ok(Ok(place)) =
                timeout(HEADER_TIMEOUT, Arc::clone(&self.places).acquire_owned()).await
            else {
                return last(told(StatusCode::SERVICE_UNAVAILABLE, "Too many others ask.\n"));
            };
            guest.stand(Standing::Has(place));
        }
        if request.uri().path() != PATH {
            return told(StatusCode::NOT_FOUND, "MCP is spoken at /mcp.\n");
        }
        match timeout(ANSWER_TIMEOUT, self.service.handle(request)).await {
            Ok(answer) => answer,
            Err(_) => told(StatusCode::SERVICE_UNAVAILABLE, "The answer took too long.\n"),
        }
    }

    /// Why a request with these headers is refused, if it is.
    fn refusal(&self, headers: &HeaderMap) -> Option<Answer> {
        let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
        if headers.contains_key(ORIGIN) || site.is_some_and(|site| site != b"none") {
            return Some(told(StatusCode::FORBIDDEN, "Web pages are told nothing.\n"));
        }
        let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        if !is_own_name(host, &self.access.hosts) {
            let text = "Ask by address, localhost, or a name given with --allow-host.\n";
            return Some(told(StatusCode::FORBIDDEN, text));
        }
        if self.access.token.is_shown(headers) {
            return None;
        }
        let mut answer = told(StatusCode::UNAUTHORIZED, UNAUTHORIZED);
        let challenge = HeaderValue::from_static("Bearer realm=\"gpucause\"");
        answer.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        Some(answer)
    }
}

/// Nothing more is answered on the connection.
fn last(mut answer: Answer) -> Answer {
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}

fn told(status: StatusCode, text: &'static str) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from_static(text.as_bytes())).boxed());
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

/// Whether a `Host` header is an address, `localhost`, or one of these names. A page can have a name of its own point here, but
/// no address.
fn is_own_name(host: &str, names: &[String]) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    bare.eq_ignore_ascii_case("localhost")
        || bare.parse::<IpAddr>().is_ok()
        || names.iter().any(|own| !bare.is_empty() && own.eq_ignore_ascii_case(bare))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_anybody_can_point_here_is_not_this_hosts() {
        let names = ["gpu-1".to_owned()];
        for own in ["localhost:9402", "127.0.0.1", "[::1]:1", "GPU-1:9402"] {
            assert!(is_own_name(own, &names), "{own}");
        }
        for other in ["", ":80", "evil.example", "localhost.evil.example:80", "gpu-1.evil"] {
            assert!(!is_own_name(other, &names), "{other}");
        }
    }
}
