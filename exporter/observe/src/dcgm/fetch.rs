//! Fetches a dcgm-exporter's page within limits of time and size.

use std::time::Duration;

use gpucause_http::client::{Client, GetError};
use gpucause_page::foreign::ForeignFamily;
use hyper::StatusCode;
use tokio::time::timeout;

use super::page::{self, PageError};

/// Time to fetch a page.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a page.
const MAX_BYTES: usize = 16 << 20;

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The request failed.
    #[error("{0}{hint}", hint = hint(.0))]
    Get(#[from] GetError),
    /// It takes too long.
    #[error("no complete page within {TIMEOUT:?}")]
    Slow,
    /// The server refuses.
    #[error("HTTP status {0}")]
    Status(StatusCode),
    /// It is not a page of metrics.
    #[error("the page is not one of dcgm-exporter: {0}")]
    Page(#[from] PageError),
    /// Parsing it panicked.
    #[error("reading the page failed: {0}")]
    Reader(tokio::task::JoinError),
}

/// Returns advice for a failed connection.
const fn hint(error: &GetError) -> &'static str {
    match error {
        GetError::Unreachable(_) => " - is dcgm-exporter running there?",
        GetError::Tls(_) => {
            " - a certificate of an authority of your own is trusted with --dcgm.ca-file"
        }
        _ => "",
    }
}

/// Every reason for a failure, as label values.
pub(super) const REASONS: [&str; 7] =
    ["unreachable", "slow", "broken", "status", "huge", "malformed", "tls"];

impl FetchError {
    /// Its index in [`REASONS`].
    pub(super) const fn reason(&self) -> usize {
        match self {
            Self::Get(GetError::Unreachable(_)) => 0,
            Self::Slow => 1,
            Self::Get(GetError::Broken(_) | GetError::Request(_) | GetError::Write(_)) => 2,
            Self::Status(_) => 3,
            Self::Get(GetError::Huge(_)) => 4,
            Self::Page(_) | Self::Reader(_) => 5,
            Self::Get(GetError::Tls(_)) => 6,
        }
    }
}

/// Fetches DCGM's metrics.
pub(super) async fn families(client: &Client) -> Result<Vec<ForeignFamily>, FetchError> {
    let accept = "text/plain;version=0.0.4";
    let request = client.get(client.address().path(), accept, MAX_BYTES);
    let response = timeout(TIMEOUT, request).await.map_err(|_| FetchError::Slow)??;
    if response.status != StatusCode::OK {
        return Err(FetchError::Status(response.status));
    }
    // Parsing a large page would block other clients.
    let parsed = tokio::task::spawn_blocking(move || page::parse(&response.body));
    Ok(parsed.await.map_err(FetchError::Reader)??)
}
