//! The file of `--web.config.file`, in the format of Prometheus's exporter-toolkit, and the errors in it.

pub(super) mod client_cert;
mod document;
mod headers;
mod material;
mod names;
mod rate;
mod tls;
mod users;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper::header::{HeaderName, HeaderValue};

use crate::config::{Complaint, typed};
use document::Document;

pub(super) use rate::Rate;
pub(super) use tls::Tls;
pub(super) use users::Users;

/// TLS, authentication, headers and rate limit of a server.
#[derive(Debug, Default)]
pub struct WebConfig {
    pub(super) tls: Option<Tls>,
    pub(super) users: Users,
    /// Added to every response.
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) rate: Option<Rate>,
}

/// Why a file was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum WebConfigError {
    /// It cannot be read.
    #[error("{path}: {source}", path = .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// It is invalid.
    #[error("{}", lines(.path, .complaints))]
    Wrong {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        complaints: Vec<Complaint>,
    },
}

fn lines(path: &Path, complaints: &[Complaint]) -> String {
    let line = |complaint: &Complaint| match complaint.place {
        Some(place) => format!("{}:{}: {}", path.display(), place.line, complaint.problem),
        None => format!("{}: {}", path.display(), complaint.problem),
    };
    complaints.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Errors in values, by their keys.
#[derive(Debug, Default)]
struct Complaints(Vec<Complaint>);

impl Complaints {
    fn say(&mut self, key: &str, problem: impl fmt::Display) {
        self.0.push(Complaint { place: None, problem: format!("{key} {problem}") });
    }
}

/// A file that was read, with those that it names.
pub(super) struct Reading {
    /// All that the outcome depends on, the file itself first.
    pub(super) files: Vec<PathBuf>,
    pub(super) outcome: Result<WebConfig, WebConfigError>,
}

impl WebConfig {
    /// The configuration of a file and of those that it names.
    ///
    /// # Errors
    /// When one cannot be read, or with all errors in it.
    pub fn load(path: &Path) -> Result<Self, WebConfigError> {
        Self::read(path).outcome
    }

    pub(super) fn read(path: &Path) -> Reading {
        let mut files = vec![path.to_owned()];
        let outcome = material::text(path)
            .map_err(|source| WebConfigError::Unreadable { path: path.into(), source })
            .and_then(|text| {
                let folder = path.parent().unwrap_or(Path::new(""));
                Self::parse(&text, folder, &mut files)
                    .map_err(|complaints| WebConfigError::Wrong { path: path.into(), complaints })
            });
        Reading { files, outcome }
    }

    /// The configuration of a text; the files that it names are added to `files`.
    pub(super) fn parse(
        text: &str,
        folder: &Path,
        files: &mut Vec<PathBuf>,
    ) -> Result<Self, Vec<Complaint>> {
        let document: Document = typed(text).map_err(|complaint| vec![complaint])?;
        let mut complaints = Complaints::default();
        let section = document.tls_server_config.map(|section| section.resolved(folder));
        let tls = section.as_ref().filter(|section| !section.is_empty()).and_then(|section| {
            files.extend(section.files().map(Path::to_owned));
            tls::build(section, &mut complaints)
        });
        let headers = headers::build(&document.http_server_config.headers, &mut complaints);
        let users = Users::build(document.basic_auth_users, &mut complaints);
        let rate = rate::build(&document.rate_limit, &mut complaints);
        if complaints.0.is_empty() {
            Ok(Self { tls, users, headers, rate })
        } else {
            Err(complaints.0)
        }
    }

    /// Whether there is no TLS.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    /// The TLS configuration, if any.
    pub(crate) fn tls_config(&self) -> Option<Arc<rustls::ServerConfig>> {
        self.tls.as_ref().map(|tls| Arc::clone(&tls.config))
    }

    /// Whether there are users.
    pub(crate) fn has_users(&self) -> bool {
        !self.users.is_empty()
    }

    /// The protection that would be lost, if any, with `other` in place of `self`.
    pub(super) fn lost_with(&self, other: &Self) -> Option<&'static str> {
        if self.tls.is_some() && other.tls.is_none() {
            return Some("tls_server_config is gone");
        }
        if !self.users.is_empty() && other.users.is_empty() {
            return Some("basic_auth_users are gone");
        }
        let verified = |config: &Self| config.tls.as_ref().is_some_and(|tls| tls.requires_identity);
        (verified(self) && !verified(other)).then_some("client certificates are no longer required")
    }
}

impl fmt::Display for WebConfig {
    /// In short, without secrets.
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
