//! One question over HTTP and its answer, with or without TLS: what `explain` asks nodes by, and the exporter dcgm-exporter.
//! The size of an answer has a bound; the caller bounds the time.

mod address;
mod login;
mod trust;

use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Body as _, Bytes};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, HOST, HeaderValue, USER_AGENT};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

pub use address::Address;
pub use login::{Login, LoginError};
pub use trust::{TrustError, connector};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum GetError {
    /// Nobody listens, or it cannot be reached.
    #[error("cannot connect ({0})")]
    Unreachable(#[source] io::Error),
    /// The other side is not who it should be, or speaks no TLS.
    #[error("no connection by TLS ({0})")]
    Tls(#[source] io::Error),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(#[from] hyper::Error),
    /// The request could not be made.
    #[error("the request could not be made: {0}")]
    Request(#[from] hyper::http::Error),
    /// The answer has more bytes than are taken.
    #[error("the answer is larger than {} MiB", .0 >> 20)]
    Huge(usize),
}

/// An answer, whatever its status.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// All of its body.
    pub body: Vec<u8>,
}

/// How one server is asked.
#[derive(Clone)]
pub struct Client {
    address: Address,
    tls: Option<TlsConnector>,
    login: Option<HeaderValue>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Client {
    /// Of the server at this address; over TLS it must have a certificate from one of the authorities in `ca_file`, or from
    /// one that this host trusts.
    ///
    /// # Errors
    /// When the authorities cannot be read.
    pub fn new(address: Address, ca_file: Option<&std::path::Path>) -> Result<Self, TrustError> {
        let tls = address.is_tls().then(|| connector(ca_file)).transpose()?;
        Ok(Self { address, tls, login: None })
    }

    /// Logs in with each question.
    ///
    /// # Errors
    /// Never with a name and password that are text.
    pub fn with_login(mut self, login: &Login) -> Result<Self, hyper::http::Error> {
        let coded = STANDARD.encode(format!("{}:{}", login.user, login.password));
        let mut value = HeaderValue::try_from(format!("Basic {coded}"))?;
        value.set_sensitive(true);
        self.login = Some(value);
        Ok(self)
    }

    /// Who is asked.
    #[must_use]
    pub const fn address(&self) -> &Address {
        &self.address
    }

    /// Asks for a path, and takes at most `limit` bytes of an answer.
    ///
    /// # Errors
    /// When there is no whole answer.
    pub async fn get(&self, path: &str, accept: &str, limit: usize) -> Result<Answer, GetError> {
        let mut request = Request::get(path)
            .header(HOST, self.address.authority())
            .header(ACCEPT, accept)
            .header(USER_AGENT, concat!("gpucause/", env!("CARGO_PKG_VERSION")));
        if let Some(login) = &self.login {
            request = request.header(AUTHORIZATION, login);
        }
        let request = request.body(Empty::new())?;
        let stream =
            TcpStream::connect(self.address.target()).await.map_err(GetError::Unreachable)?;
        let Some(tls) = &self.tls else { return ask(stream, request, limit).await };
        let name = ServerName::try_from(self.address.target().0.to_owned());
        let name = name.map_err(|error| GetError::Tls(io::Error::other(error)))?;
        let stream = tls.connect(name, stream).await.map_err(GetError::Tls)?;
        ask(stream, request, limit).await
    }
}

async fn ask(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    request: Request<Empty<Bytes>>,
    limit: usize,
) -> Result<Answer, GetError> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let asked = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let mut body = response.into_body();
        if body.size_hint().lower() > limit as u64 {
            return Err(GetError::Huge(limit));
        }
        let mut bytes = Vec::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame?.into_data() else { continue };
            if bytes.len() + data.len() > limit {
                return Err(GetError::Huge(limit));
            }
            bytes.extend_from_slice(&data);
        }
        Ok(Answer { status, body: bytes })
    };
    tokio::pin!(asked);
    // The connection is worked on here and not in a task of its own: it ends with the question, also when that is given up.
    tokio::select! {
        answer = &mut asked => answer,
        // What went wrong is told by the question, as is what had come before the end.
        _ = connection => asked.await,
    }
}
