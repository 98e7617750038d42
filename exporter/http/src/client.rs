//! An HTTP client, with or without TLS, for gpucause's nodes and dcgm-exporter. Answers have a size limit; the caller sets a
//! timeout.

mod address;
mod login;
mod retry_after;
mod trust;

use std::future::Future;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, HOST, HeaderMap, HeaderValue, USER_AGENT};
use hyper::http::request::Builder;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::listeners;
use crate::token::Token;

pub use address::Address;
pub use login::{Login, LoginError};
pub use retry_after::retry_after;
pub use trust::{Identity, TrustError, connector, connector_also_trusting, tls_advice};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum GetError {
    /// The server cannot be reached.
    #[error("cannot connect ({0})")]
    Unreachable(#[source] io::Error),
    /// TLS failed, such as for an untrusted certificate.
    #[error("TLS failed ({0})")]
    Tls(#[source] io::Error),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(#[from] hyper::Error),
    /// The request could not be made.
    #[error("the request could not be made: {0}")]
    Request(#[from] hyper::http::Error),
    /// The answer exceeds the size limit in bytes.
    #[error("the answer is larger than {}", size(.0))]
    Huge(usize),
    /// The received data cannot be written to a file here.
    #[error("cannot write the answer to a file: {0}")]
    Write(#[source] io::Error),
}

/// A limit in its largest whole unit.
fn size(bytes: &usize) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let whole = units.iter().find(|(bits, _)| *bytes > 0 && bytes.trailing_zeros() >= *bits);
    whole.map_or_else(
        || format!("{bytes} bytes"),
        |(bits, unit)| format!("{} {unit}", bytes >> bits),
    )
}

/// An answer, whatever its status.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Vec<u8>,
}

/// A client of one server.
#[derive(Clone)]
pub struct Client {
    address: Address,
    tls: Option<TlsConnector>,
    login: Option<HeaderValue>,
    /// Read with each request: the token changes when the server restarts.
    token_files: Vec<PathBuf>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Client {
    /// A client of this server. With TLS, its certificate must be from an authority in `ca_file`, else from one that this host
    /// trusts.
    ///
    /// # Errors
    /// When the authorities cannot be read.
    pub fn new(address: Address, ca_file: Option<&std::path::Path>) -> Result<Self, TrustError> {
        let tls = address.is_tls().then(|| connector(ca_file, None)).transpose()?;
        Ok(Self { address, tls, login: None, token_files: Vec::new() })
    }

    /// Makes a client like [`new`](Self::new), with a connector shared by several clients.
    ///
    /// # Errors
    /// When the address requires TLS and `tls` is an error.
    pub fn over(
        address: Address,
        tls: &Result<TlsConnector, Arc<TrustError>>,
    ) -> Result<Self, Arc<TrustError>> {
        let tls = address.is_tls().then(|| tls.clone()).transpose()?;
        Ok(Self { address, tls, login: None, token_files: Vec::new() })
    }

    /// Sends this login with each request.
    ///
    /// # Errors
    /// When the login does not fit into a header.
    pub fn with_login(mut self, login: &Login) -> Result<Self, hyper::http::Error> {
        let coded = STANDARD.encode(format!("{}:{}", login.user, login.password));
        let mut value = HeaderValue::try_from(format!("Basic {coded}"))?;
        value.set_sensitive(true);
        self.login = Some(value);
        Ok(self)
    }

    /// Without a login, sends the token of the first readable file, if the server belongs to the file's owner or to root.
    #[must_use]
    pub fn with_token_files(self, token_files: Vec<PathBuf>) -> Self {
        Self { token_files, ..self }
    }

    fn authorization(&self) -> Option<HeaderValue> {
        let port = self.address.target().1;
        let token = |path: &PathBuf| {
            let owner = std::fs::metadata(path).ok()?.uid();
            let token = Token::read(path).ok()?;
            // If the sockets on the port cannot be read, others may listen there, too.
            listeners::of_others(owner, port).is_ok_and(|others| others.is_empty()).then_some(token)
        };
        let header = || self.token_files.iter().find_map(token)?.header().ok();
        self.login.clone().or_else(header)
    }

    /// Programs of other users that listen on the server's port, for which its token is not sent.
    fn strangers(&self) -> Vec<listeners::Socket> {
        let port = self.address.target().1;
        let of_file = |path: &PathBuf| {
            let owner = std::fs::metadata(path).ok()?.uid();
            Token::read(path).ok().and_then(|_| listeners::of_others(owner, port).ok())
        };
        self.token_files.iter().find_map(of_file).unwrap_or_default()
    }

    /// The server's address.
    pub const fn address(&self) -> &Address {
        &self.address
    }

    /// Adds what every request has.
    fn request(&self, request: Builder) -> Builder {
        let agent = concat!("gpucause/", env!("CARGO_PKG_VERSION"));
        request.header(HOST, self.address.authority()).header(USER_AGENT, agent)
    }

    /// Fetches a path. The answer may have at most `limit` bytes.
    ///
    /// # Errors
    /// When there is no complete answer.
    pub async fn get(&self, path: &str, accept: &str, limit: usize) -> Result<Answer, GetError> {
        self.connect().await?.get(path, accept, limit).await
    }

    /// Opens a connection for several requests.
    ///
    /// # Errors
    /// When the server cannot be reached, or TLS fails.
    pub async fn connect(&self) -> Result<Conversation<'_>, GetError> {
        let stream =
            TcpStream::connect(self.address.target()).await.map_err(GetError::Unreachable)?;
        let Some(tls) = &self.tls else { return Conversation::on(self, stream).await };
        let name = ServerName::try_from(self.address.target().0.to_owned());
        let name = name.map_err(|error| GetError::Tls(io::Error::other(error)))?;
        let stream = tls.connect(name, stream).await.map_err(GetError::Tls)?;
        Conversation::on(self, stream).await
    }
}

/// A connection for consecutive requests. It is driven by the request, not by a task of its own, and so ends when a request is
/// cancelled.
pub struct Conversation<'a> {
    client: &'a Client,
    sender: http1::SendRequest<Full<Bytes>>,
    /// `None` when closed.
    connection: Option<Connection>,
}

type Connection = Pin<Box<dyn Future<Output = Result<(), hyper::Error>> + Send>>;

impl std::fmt::Debug for Conversation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conversation").field("client", self.client).finish_non_exhaustive()
    }
}

impl<'a> Conversation<'a> {
    /// Returns true if requests have a user and a password.
    pub const fn has_login(&self) -> bool {
        self.client.login.is_some()
    }

    /// Programs of other users for which the server's token is not sent.
    pub fn strangers(&self) -> Vec<listeners::Socket> {
        self.client.strangers()
    }

    async fn on(
        client: &'a Client,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Self, GetError> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        Ok(Self { client, sender, connection: Some(Box::pin(connection)) })
    }

    /// Sends a request like [`Client::get`].
    ///
    /// # Errors
    /// When there is no complete answer.
    pub async fn get(
        &mut self,
        path: &str,
        accept: &str,
        limit: usize,
    ) -> Result<Answer, GetError> {
        self.ask(Method::GET, path, accept, limit).await
    }

    /// Sends a request like [`get`](Self::get), with another method and without a body.
    pub async fn ask(
        &mut self,
        method: Method,
        path: &str,
        accept: &str,
        limit: usize,
    ) -> Result<Answer, GetError> {
        let request = self.authorized(method, path, accept)?;
        self.send(request, limit, None).await
    }

    /// Sends a request like [`get`](Self::get), and writes the body of a success to `out`.
    pub async fn download(
        &mut self,
        path: &str,
        limit: usize,
        out: &mut (dyn io::Write + Send),
    ) -> Result<Answer, GetError> {
        let request = self.authorized(Method::GET, path, "*/*")?;
        self.send(request, limit, Some(out)).await
    }

    fn authorized(
        &self,
        method: Method,
        path: &str,
        accept: &str,
    ) -> Result<Request<Full<Bytes>>, GetError> {
        let request = Request::builder().method(method).uri(path);
        let mut request = self.client.request(request).header(ACCEPT, accept);
        if let Some(authorization) = self.client.authorization() {
            request = request.header(AUTHORIZATION, authorization);
        }
        Ok(request.body(Full::default())?)
    }

    /// Posts a body to the address of the client, with these headers and no login. The answer may have at most `limit` bytes.
    ///
    /// # Errors
    /// When there is no complete answer.
    pub async fn post(
        &mut self,
        headers: &HeaderMap,
        body: Bytes,
        limit: usize,
    ) -> Result<Answer, GetError> {
        let path = self.client.address.path();
        let mut request = self.client.request(Request::post(path)).body(Full::new(body))?;
        request.headers_mut().extend(headers.clone());
        self.send(request, limit, None).await
    }

    async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
        limit: usize,
        out: Option<&mut (dyn io::Write + Send)>,
    ) -> Result<Answer, GetError> {
        let sender = &mut self.sender;
        let asked = async {
            sender.ready().await?;
            whole(sender.send_request(request).await?, limit, out).await
        };
        let Some(connection) = &mut self.connection else { return asked.await };
        tokio::pin!(asked);
        tokio::select! {
            answer = &mut asked => answer,
            // The request itself returns the error, or the answer received before the close.
            _ = connection => {
                self.connection = None;
                asked.await
            }
        }
    }
}

/// The answer; the body of a success is written to `out`, if there is one.
async fn whole(
    response: Response<Incoming>,
    limit: usize,
    out: Option<&mut (dyn io::Write + Send)>,
) -> Result<Answer, GetError> {
    let (head, mut body) = response.into_parts();
    if body.size_hint().lower() > limit as u64 {
        return Err(GetError::Huge(limit));
    }
    let mut out = out.filter(|_| head.status.is_success());
    let (mut left, mut bytes) = (limit, Vec::new());
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        left = left.checked_sub(data.len()).ok_or(GetError::Huge(limit))?;
        match &mut out {
            Some(out) => out.write_all(&data).map_err(GetError::Write)?,
            None => bytes.extend_from_slice(&data),
        }
    }
    Ok(Answer { status: head.status, headers: head.headers, body: bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_shown_as_it_is() {
        let shown = |limit| GetError::Huge(limit).to_string();
        assert_eq!(shown(64 << 10), "the answer is larger than 64 KiB");
        assert_eq!(shown(512 << 10), "the answer is larger than 512 KiB");
        assert_eq!(shown(8 << 20), "the answer is larger than 8 MiB");
        assert_eq!(shown(1000), "the answer is larger than 1000 bytes");
    }
}
