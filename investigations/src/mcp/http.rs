//! The server over HTTP: one path, stateless. Clients must send the token, name this host, and not be web pages. When a client hangs up,
//! its calls are cancelled.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;

use gpucause_http::server_pool::{Connection, Pool};
use gpucause_http::token::Token;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited, combinators::BoxBody};
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
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::Assistant;

/// The endpoint.
pub const PATH: &str = "/mcp";
/// Bytes of a request's body.
const MAX_BODY: usize = 256 << 10;
/// Bytes of its line and headers.
const MAX_HEAD: usize = 32 << 10;
/// Open connections.
const MAX_CONNECTIONS: u32 = 192;
/// Requests in progress at a time.
const MAX_REQUESTS: usize = 64;
/// Time for a request's headers and for a TLS handshake; longest idle time of a connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a request's body.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for a request and its response: a demonstration takes longest.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// Age at which a connection is closed.
const LIFE: Duration = Duration::from_secs(900);
const UNAUTHORIZED: &str = "The token is missing or wrong. Send the header Authorization: Bearer TOKEN with the token of \
    --token-file or GPUCAUSE_MCP_TOKEN, or, if the server has neither, of the file that its log names, such as \
    /run/gpucause/9402.token.\n";

type Answer = Response<BoxBody<Bytes, Infallible>>;
type Service = StreamableHttpService<Assistant, LocalSessionManager>;

/// The certificate in effect, which may change between connections; `None` for no TLS.
pub type Tls = Arc<dyn Fn() -> Option<Arc<TlsConfig>> + Send + Sync>;

/// Who may connect, and how.
#[derive(Clone)]
pub struct Access {
    /// Token that clients must send.
    pub token: Token,
    /// Names of this host, besides `localhost` and addresses.
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
    let requests = Semaphore::new(MAX_REQUESTS);
    let handler = Arc::new(Handler { service: service(assistant), access, requests });
    let pool = Pool::new(MAX_CONNECTIONS);
    tokio::select! {
        () = pool.accept(listener, |stream, connection| {
            Arc::clone(&handler).connection(stream, connection)
        }) => {}
        () = stop => {}
    }
    Ok(())
}

fn service(assistant: Assistant) -> Service {
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(MAX_BODY)
        // `Handler::refusal` checks the names, before a body is read.
        .disable_allowed_hosts()
        .enforce_origin_validation();
    StreamableHttpService::new(move || Ok(assistant.clone()), Arc::default(), config)
}

struct Handler {
    service: Service,
    access: Access,
    requests: Semaphore,
}

impl Handler {
    async fn connection(
        self: Arc<Self>,
        stream: TcpStream,
        connection: Arc<Connection>,
    ) -> io::Result<()> {
        match (self.access.tls)() {
            None => self.serve(stream, connection).await,
            Some(tls) => {
                let accepted = timeout(HEADER_TIMEOUT, TlsAcceptor::from(tls).accept(stream)).await;
                let stream = accepted.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
                self.serve(stream, connection).await
            }
        }
    }

    async fn serve(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        connection: Arc<Connection>,
    ) -> io::Result<()> {
        let service = service_fn(|request| {
            let (handler, connection) = (Arc::clone(&self), Arc::clone(&connection));
            async move { Ok::<_, Infallible>(handler.respond(request, &connection).await) }
        });
        let serving = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_buf_size(MAX_HEAD)
            .serve_connection(TokioIo::new(stream), service);
        timeout(LIFE, serving).await.unwrap_or(Ok(())).map_err(io::Error::other)
    }

    async fn respond(&self, request: Request<Incoming>, connection: &Connection) -> Answer {
        if let Some(refusal) = self.refusal(request.headers()) {
            return closing(refusal);
        }
        // Until all of it is there, the connection may be evicted, and it has no part of the requests in progress.
        let request = match whole(request).await {
            Ok(request) => request,
            Err(refusal) => return closing(refusal),
        };
        let _busy = connection.busy();
        let Ok(Ok(_permit)) = timeout(HEADER_TIMEOUT, self.requests.acquire()).await else {
            let text = "Too many concurrent requests; retry later.\n";
            return closing(plain(StatusCode::SERVICE_UNAVAILABLE, text));
        };
        if request.uri().path() != PATH {
            return plain(StatusCode::NOT_FOUND, "Not found; the MCP endpoint is /mcp.\n");
        }
        match timeout(ANSWER_TIMEOUT, self.service.handle(request)).await {
            Ok(answer) => answer,
            Err(_) => plain(StatusCode::SERVICE_UNAVAILABLE, "The request timed out.\n"),
        }
    }

    /// Why a request with these headers is refused, if it is.
    fn refusal(&self, headers: &HeaderMap) -> Option<Answer> {
        let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
        if headers.contains_key(ORIGIN) || site.is_some_and(|site| site != b"none") {
            return Some(plain(StatusCode::FORBIDDEN, "Requests from web pages are refused.\n"));
        }
        let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        if !is_own_name(host, &self.access.hosts) {
            let text =
                "Unknown host name; use an IP address, localhost, or a name of --allow-host.\n";
            return Some(plain(StatusCode::FORBIDDEN, text));
        }
        if self.access.token.is_in(headers) {
            return None;
        }
        let mut answer = plain(StatusCode::UNAUTHORIZED, UNAUTHORIZED);
        let challenge = HeaderValue::from_static("Bearer realm=\"gpucause\"");
        answer.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        Some(answer)
    }
}

/// A request with its body, or why it is refused.
async fn whole(request: Request<Incoming>) -> Result<Request<Full<Bytes>>, Answer> {
    let (head, body) = request.into_parts();
    match timeout(BODY_TIMEOUT, Limited::new(body, MAX_BODY).collect()).await {
        Ok(Ok(body)) => Ok(Request::from_parts(head, Full::new(body.to_bytes()))),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(plain(StatusCode::PAYLOAD_TOO_LARGE, "The body is larger than 256 KiB.\n"))
        }
        Ok(Err(_)) => Err(plain(StatusCode::BAD_REQUEST, "The body is incomplete.\n")),
        Err(_) => {
            Err(plain(StatusCode::REQUEST_TIMEOUT, "The body was not received within 5 s.\n"))
        }
    }
}

/// The connection ends with this response.
fn closing(mut answer: Answer) -> Answer {
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}

fn plain(status: StatusCode, text: &'static str) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from_static(text.as_bytes())).boxed());
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

/// Returns true if a `Host` header is an address, `localhost`, or one of these names. A web page can make its own name resolve to
/// this host, but not an address.
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
