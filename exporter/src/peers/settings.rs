//! Which Prometheus is asked.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use gpucause_http::client::Client;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::store_url::{PrometheusUrl, StoreUrlError};

const HINT: &str = "set it with --peers.password-file or peers.password_file";

/// The section of the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PeersSettings {
    /// Its address; none: nobody is asked.
    pub url: Option<PeersUrl>,
    /// The file of the password of the user in the address.
    pub password_file: Option<PathBuf>,
    /// The file of authorities that its certificate may come from; none for those that this host trusts.
    pub ca_file: Option<PathBuf>,
}

/// Why it cannot be asked.
#[derive(Debug, thiserror::Error)]
#[error("peers: {0}")]
pub struct PeersError(anyhow::Error);

/// An address of a Prometheus without a password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeersUrl(PrometheusUrl);

impl PeersSettings {
    /// Checks whether its files can be used.
    ///
    /// # Errors
    /// When they cannot.
    pub fn check(&self) -> Result<(), PeersError> {
        self.client().map(drop).map_err(PeersError)
    }

    /// Returns a warning about settings that can be used but have a problem.
    pub(crate) fn warning(&self) -> Option<&'static str> {
        let has_files = self.password_file.is_some() || self.ca_file.is_some();
        let Some(PeersUrl(url)) = &self.url else {
            let unused = "peers.password_file and peers.ca_file are not used without peers.url";
            return has_files.then_some(unused);
        };
        let address = url.address();
        let is_exposed = address.user().is_some() && !address.is_tls() && !address.is_loopback();
        is_exposed.then_some("the password of peers.url is sent in clear text - use https")
    }

    /// A client, if there is an address.
    pub(crate) fn client(&self) -> anyhow::Result<Option<Client>> {
        let Some(PeersUrl(url)) = &self.url else { return Ok(None) };
        let (password, ca_file) = (self.password_file.as_deref(), self.ca_file.as_deref());
        url.client_with(password, ca_file, HINT).map(Some)
    }
}

impl FromStr for PeersUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refusal = |error| match error {
            StoreUrlError::Invalid(..) => error.to_string(),
            StoreUrlError::Password(_) => format!(
                "other users of this host can see a password in an address - write https://USER@HOST:PORT, and {HINT}"
            ),
        };
        text.parse().map(Self).map_err(refusal)
    }
}

impl fmt::Display for PeersUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for PeersUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PeersUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        // Without its value: a password in it must not be in the log.
        let refusal = |error| serde::de::Error::custom(format!("is refused: {error}"));
        text.parse().map_err(refusal)
    }
}
