//! The keys of the file. None of these types can be printed: they hold secrets.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WebDocument {
    pub(super) tls_server_config: Option<TlsSection>,
    pub(super) http_server_config: HttpSection,
    pub(super) basic_auth_users: BTreeMap<String, String>,
    pub(super) rate_limit: RateSection,
}

#[derive(Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TlsSection {
    pub(super) cert: Option<String>,
    pub(super) key: Option<String>,
    pub(super) client_ca: Option<String>,
    pub(super) cert_file: Option<PathBuf>,
    pub(super) key_file: Option<PathBuf>,
    pub(super) client_ca_file: Option<PathBuf>,
    pub(super) client_auth_type: Option<String>,
    pub(super) client_allowed_sans: Option<Vec<String>>,
    pub(super) min_version: Option<String>,
    pub(super) max_version: Option<String>,
    pub(super) cipher_suites: Option<Vec<String>>,
    pub(super) prefer_server_cipher_suites: Option<bool>,
    pub(super) curve_preferences: Option<Vec<String>>,
}

impl TlsSection {
    /// Returns true if nothing is set.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Empty texts become unset, and paths are resolved against the folder of the file.
    pub(super) fn resolved(mut self, folder: &Path) -> Self {
        for text in [
            &mut self.cert,
            &mut self.key,
            &mut self.client_ca,
            &mut self.client_auth_type,
            &mut self.min_version,
            &mut self.max_version,
        ] {
            if text.as_ref().is_some_and(String::is_empty) {
                *text = None;
            }
        }
        for path in [&mut self.cert_file, &mut self.key_file, &mut self.client_ca_file] {
            *path = path.take().filter(|p| !p.as_os_str().is_empty()).map(|p| folder.join(p));
        }
        self
    }

    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        [&self.cert_file, &self.key_file, &self.client_ca_file]
            .into_iter()
            .filter_map(Option::as_deref)
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct HttpSection {
    /// Accepted for compatibility: only HTTP/1.1 is offered, which every HTTP/2 client speaks too.
    pub(super) http2: Option<bool>,
    pub(super) headers: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RateSection {
    pub(super) interval: Option<String>,
    pub(super) burst: Option<u32>,
}
