//! The file of `--web.config.file`, in the format of Prometheus's exporter-toolkit, and the errors in it.

pub mod client_cert;
mod document;
mod headers;
mod material;
mod names;
mod rate;
mod reload;
mod tls;
mod users;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpucause_input::complaint::{Complaint, ConfigError};
use gpucause_input::document::typed_in_part;
use gpucause_input::text_file;
use hyper::header::{HeaderName, HeaderValue};

use document::WebDocument;

pub(crate) use rate::Rate;
pub use reload::{LiveWebConfig, WebConfigState};
pub(crate) use tls::Tls;
pub(crate) use users::Users;

/// TLS, authentication, headers and rate limit of a server.
#[derive(Debug, Default)]
pub struct WebConfig {
    pub(crate) tls: Option<Tls>,
    pub(crate) users: Users,
    /// Added to every response.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) rate: Option<Rate>,
}

/// Errors in values, by their keys.
#[derive(Debug, Default)]
struct Complaints(Vec<Complaint>);

impl Complaints {
    fn add(&mut self, key: &str, problem: impl fmt::Display) {
        self.0.push(Complaint { position: None, problem: format!("{key} {problem}") });
    }
}

/// The outcome of reading a file, with the files that it names.
pub(crate) struct Reading {
    /// All files that the outcome depends on, the file itself first.
    pub(crate) files: Vec<PathBuf>,
    pub(crate) outcome: Result<WebConfig, ConfigError>,
}

impl WebConfig {
    /// Loads a file and those that it names.
    ///
    /// # Errors
    /// When one cannot be read, or with all errors in them.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::read(path).outcome
    }

    pub(crate) fn read(path: &Path) -> Reading {
        let mut files = vec![path.to_owned()];
        let outcome = text_file::read(path)
            .map_err(|source| ConfigError::Unreadable { path: path.into(), source })
            .and_then(|text| {
                let folder = path.parent().unwrap_or(Path::new(""));
                Self::parse(&text, folder, &mut files)
                    .map_err(|complaints| ConfigError::Invalid { path: path.into(), complaints })
            });
        Reading { files, outcome }
    }

    /// Parses a text, and adds the files that it names to `files`.
    ///
    /// # Errors
    /// With all errors in it.
    pub fn parse(
        text: &str,
        folder: &Path,
        files: &mut Vec<PathBuf>,
    ) -> Result<Self, Vec<Complaint>> {
        let (document, refusals) = typed_in_part::<WebDocument>(text)?;
        let Some(mut document) = document else { return Err(refusals.into_complaints()) };
        let mut complaints = Complaints::default();
        // A part that is missing in a section may be missing because it was refused.
        let is_whole = |section: &str| !refusals.concern(section);
        document.tls_server_config.take_if(|_| !is_whole("tls_server_config"));
        let section = document.tls_server_config.map(|section| section.resolved(folder));
        let tls = section.as_ref().filter(|section| !section.is_empty()).and_then(|section| {
            files.extend(section.files().map(Path::to_owned));
            tls::build(section, &mut complaints)
        });
        let headers = headers::build(&document.http_server_config.headers, &mut complaints);
        let users = Users::build(document.basic_auth_users, &mut complaints);
        let rate = is_whole("rate_limit").then_some(&document.rate_limit);
        let rate = rate.and_then(|section| rate::build(section, &mut complaints));
        let mut all = refusals.into_complaints();
        all.append(&mut complaints.0);
        if all.is_empty() { Ok(Self { tls, users, headers, rate }) } else { Err(all) }
    }

    /// Returns true if there is no TLS.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    /// The TLS configuration, if any.
    #[must_use]
    pub fn tls_config(&self) -> Option<Arc<rustls::ServerConfig>> {
        self.tls.as_ref().map(|tls| Arc::clone(&tls.config))
    }

    /// Returns true if there are users.
    #[must_use]
    pub fn has_users(&self) -> bool {
        !self.users.is_empty()
    }

    /// The protection, if any, that `self` has and `other` has not.
    pub(crate) fn lost_with(&self, other: &Self) -> Option<&'static str> {
        if self.tls.is_some() && other.tls.is_none() {
            return Some("tls_server_config was removed");
        }
        if !self.users.is_empty() && other.users.is_empty() {
            return Some("basic_auth_users were removed");
        }
        let verified = |config: &Self| config.tls.as_ref().is_some_and(|tls| tls.requires_identity);
        (verified(self) && !verified(other)).then_some("client certificates are no longer required")
    }
}

impl fmt::Display for WebConfig {
    /// A summary without secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.tls {
            Some(tls) => write!(f, "{tls}")?,
            None => f.write_str("no TLS")?,
        }
        match self.users.count() {
            0 => f.write_str(", no users")?,
            1 => f.write_str(", 1 user")?,
            count => write!(f, ", {count} users")?,
        }
        if let Some(rate) = &self.rate {
            write!(f, ", {rate}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
