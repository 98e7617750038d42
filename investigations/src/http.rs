//! One question over HTTP and its answer, with or without TLS: what `explain` asks nodes by, and the exporter dcgm-exporter.
//! The size of an answer has a bound; the caller bounds the time.

mod address;
mod listeners;
mod login;
pub mod pool;
mod token;
mod trust;

use std::future::Future;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, HOST, HeaderValue, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

pub use address::Address;
pub use login::{Login, LoginError};
pub use token::{Token, TokenError};
pub use trust::{Identity, TrustError, connector};

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
    /// Read with each question: a server that was started again has another token.
    token_files: Vec<PathBuf>,
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
        let tls = address.is_tls().then(|| connector(ca_file, None)).transpose()?;
        Ok(Self { address, tls, login: None, token_files: Vec::new() })
    }

    /// Of the server at this address, as [`new`](Self::new), by what was made ready for several.
    ///
    /// # Errors
    /// When the address wants TLS, and `tls` could not be had.
    pub fn over(
        address: Address,
        tls: &Result<TlsConnector, Arc<TrustError>>,
    ) -> Result<Self, Arc<TrustError>> {
        let tls = address.is_tls().then(|| tls.clone()).transpose()?;
        Ok(Self { address, tls, login: None, token_files: Vec::new() })
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

    /// Shows the token of the first of these files that can be read, where nobody logs in, to a server of the file's owner or of root.
    #[must_use]
    pub fn with_token_files(self, token_files: Vec<PathBuf>) -> Self {
        Self { token_files, ..self }
    }

    /// What is shown, if anything.
    fn authorization(&self) -> Option<HeaderValue> {
        let port = self.address.target().1;
        let token = || {
            self.token_files.iter().find_map(|path| {
                let owner = std::fs::metadata(path).ok()?.uid();
                Token::read(path)
                    .ok()
                    .filter(|_| listeners::belong_to(owner, port).unwrap_or(false))
            })
        };
        self.login.clone().or_else(|| token()?.header().ok())
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
        self.connect().await?.get(path, accept, limit).await
    }

    /// Connects, to ask several times.
    ///
    /// # Errors
    /// When the server cannot be reached, or is not believed.
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

/// A connection, for questions one after the other. It is worked on while a question waits for its answer, and not in a task of
/// its own: so it ends with the question, also when that is given up.
pub struct Conversation<'a> {
    client: &'a Client,
    sender: http1::SendRequest<Empty<Bytes>>,
    /// Until it is over.
    connection: Option<Connection>,
}

type Connection = Pin<Box<dyn Future<Output = Result<(), hyper::Error>> + Send>>;

impl std::fmt::Debug for Conversation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conversation").field("client", self.client).finish_non_exhaustive()
    }
}

impl<'a> Conversation<'a> {
    async fn on(
        client: &'a Client,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Self, GetError> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        Ok(Self { client, sender, connection: Some(Box::pin(connection)) })
    }

    /// Asks for a path, and takes at most `limit` bytes of an answer.
    ///
    /// # Errors
    /// When there is no whole answer.
    pub async fn get(
        &mut self,
        path: &str,
        accept: &str,
        limit: usize,
    ) -> Result<Answer, GetError> {
        let mut request = Request::get(path)
            .header(HOST, self.client.address.authority())
            .header(ACCEPT, accept)
            .header(USER_AGENT, concat!("gpucause/", env!("CARGO_PKG_VERSION")));
        if let Some(authorization) = self.client.authorization() {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request.body(Empty::new())?;
        let sender = &mut self.sender;
        let asked = async {
            sender.ready().await?;
            whole(sender.send_request(request).await?, limit).await
        };
        let Some(connection) = &mut self.connection else { return asked.await };
        tokio::pin!(asked);
        tokio::select! {
            answer = &mut asked => answer,
            // What went wrong is told by the question, as is what had come before the end.
            _ = connection => {
                self.connection = None;
                asked.await
            }
        }
    }
}

async fn whole(response: Response<Incoming>, limit: usize) -> Result<Answer, GetError> {
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
}
