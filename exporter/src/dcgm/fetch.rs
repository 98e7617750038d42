//! Getting a dcgm-exporter's page: once, within limits of time and size.

use std::time::Duration;

use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Body as _, Bytes};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, HOST, USER_AGENT};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::page::{self, PageError};
use super::url::PageUrl;
use crate::foreign::Family;

/// Time for all of it.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a page.
pub(super) const MAX_BYTES: usize = 16 << 20;

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error("cannot connect ({0}); is dcgm-exporter running there?")]
    Unreachable(std::io::Error),
    #[error("no whole page within {PATIENCE:?}")]
    Slow,
    #[error("the connection broke: {0}")]
    Broken(#[from] hyper::Error),
    #[error("the request could not be made: {0}")]
    Request(#[from] hyper::http::Error),
    #[error("the answer is {0}")]
    Status(StatusCode),
    #[error("the page is larger than {} MiB", MAX_BYTES >> 20)]
    Huge,
    #[error("the page is not one of dcgm-exporter: {0}")]
    Page(#[from] PageError),
    #[error("reading the page failed: {0}")]
    Reader(tokio::task::JoinError),
}

/// Every reason for a failure, as label values.
pub(super) const REASONS: [&str; 6] =
    ["unreachable", "slow", "broken", "status", "huge", "malformed"];

impl FetchError {
    /// Its place in [`REASONS`].
    pub(super) const fn reason(&self) -> usize {
        match self {
            Self::Unreachable(_) => 0,
            Self::Slow => 1,
            Self::Broken(_) | Self::Request(_) => 2,
            Self::Status(_) => 3,
            Self::Huge => 4,
            Self::Page(_) | Self::Reader(_) => 5,
        }
    }
}

/// DCGM's metrics at this moment.
pub(super) async fn families(url: &PageUrl) -> Result<Vec<Family>, FetchError> {
    let page = timeout(PATIENCE, page(url)).await.map_err(|_| FetchError::Slow)??;
    // Of a large page this takes longer than other clients are to wait.
    let parsed = tokio::task::spawn_blocking(move || page::parse(&page));
    Ok(parsed.await.map_err(FetchError::Reader)??)
}

async fn page(url: &PageUrl) -> Result<Vec<u8>, FetchError> {
    let stream = TcpStream::connect(url.target()).await.map_err(FetchError::Unreachable)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get(url.path())
        .header(HOST, url.authority())
        .header(ACCEPT, "text/plain;version=0.0.4")
        .header(USER_AGENT, concat!("gpucause/", env!("CARGO_PKG_VERSION")))
        .body(Empty::<Bytes>::new())?;
    let asked = async {
        let response = sender.send_request(request).await?;
        if response.status() != StatusCode::OK {
            return Err(FetchError::Status(response.status()));
        }
        let mut body = response.into_body();
        if body.size_hint().lower() > MAX_BYTES as u64 {
            return Err(FetchError::Huge);
        }
        let mut page = Vec::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame?.into_data() else { continue };
            if page.len() + data.len() > MAX_BYTES {
                return Err(FetchError::Huge);
            }
            page.extend_from_slice(&data);
        }
        Ok(page)
    };
    tokio::pin!(asked);
    // The connection is worked on here and not in a task of its own: it ends with the question, also when that is given up.
    tokio::select! {
        page = &mut asked => page,
        // What went wrong is told by the question, as is what had come before the end.
        _ = connection => asked.await,
    }
}
