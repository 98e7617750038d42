//! How log records are sent.

use std::path::{Path, PathBuf};

use gpucause_http::client::{Client, TrustError};
use serde::{Deserialize, Serialize};

use super::endpoint::Endpoint;
use super::headers::{self, HeadersError};

/// The section of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OtlpSettings {
    /// Where to; none for nowhere.
    pub endpoint: Option<Endpoint>,
    /// The file of headers.
    pub headers_file: Option<PathBuf>,
    /// The file of authorities that the endpoint's certificate may come from; none for those that this host trusts.
    pub ca_file: Option<PathBuf>,
    /// Size limit of what waits to be sent.
    pub spool_bytes: u64,
}

impl Default for OtlpSettings {
    fn default() -> Self {
        Self { endpoint: None, headers_file: None, ca_file: None, spool_bytes: 64 << 20 }
    }
}

/// Why nothing can be sent with these settings.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// TLS cannot be set up.
    #[error("otlp.ca_file: {0}")]
    Trust(#[from] TrustError),
    /// The headers cannot be used.
    #[error("otlp.headers_file: {0}")]
    Headers(#[from] HeadersError),
}

impl OtlpSettings {
    /// Checks whether its files can be used.
    ///
    /// # Errors
    /// When they cannot.
    pub fn check(&self) -> Result<(), SettingsError> {
        self.client()?;
        self.headers()?;
        Ok(())
    }

    /// A client of the endpoint, if there is one.
    pub(super) fn client(&self) -> Result<Option<Client>, TrustError> {
        let Some(endpoint) = &self.endpoint else { return Ok(None) };
        Client::new(endpoint.address().clone(), self.ca_file.as_deref()).map(Some)
    }

    pub(super) fn headers(&self) -> Result<hyper::HeaderMap, HeadersError> {
        let file = self.headers_file.as_deref().filter(|path| !is_empty(path));
        file.map(headers::read).transpose().map(Option::unwrap_or_default)
    }

    /// Returns a warning about settings that can be used but have a problem.
    pub(crate) fn warning(&self) -> Option<&'static str> {
        let Some(endpoint) = &self.endpoint else {
            let has_files = self.headers_file.is_some() || self.ca_file.is_some();
            let unused = "otlp.headers_file and otlp.ca_file are not used without otlp.endpoint";
            return has_files.then_some(unused);
        };
        let address = endpoint.address();
        let is_exposed = self.headers_file.is_some() && !address.is_tls() && !address.is_loopback();
        is_exposed.then_some("the headers of otlp.headers_file are sent without TLS - use https")
    }
}

fn is_empty(path: &Path) -> bool {
    path.as_os_str().is_empty()
}
