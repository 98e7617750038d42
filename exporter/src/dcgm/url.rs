//! The address of a dcgm-exporter's page.

use std::fmt;
use std::str::FromStr;

use hyper::Uri;

/// An address such as `http://localhost:9401/metrics`; `/metrics` need not be said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageUrl {
    host: String,
    port: u16,
    path: String,
}

/// Why text is no [`PageUrl`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no address of a dcgm-exporter; write http://HOST:PORT/metrics, without TLS or a password"
)]
pub struct UrlError(String);

impl FromStr for PageUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let wrong = || UrlError(text.to_owned());
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let authority = uri.authority().ok_or_else(wrong)?;
        if uri.scheme_str() != Some("http") || authority.as_str().contains('@') {
            return Err(wrong());
        }
        let host = Some(authority.host()).filter(|host| !host.is_empty()).ok_or_else(wrong)?;
        let path = match uri.path_and_query().map_or("/", |path| path.as_str()) {
            "/" => "/metrics",
            path => path,
        };
        let port = match authority.port() {
            Some(port) => Some(port.as_u16()).filter(|&port| port != 0).ok_or_else(wrong)?,
            None => 80,
        };
        Ok(Self { host: host.to_owned(), port, path: path.to_owned() })
    }
}

impl fmt::Display for PageUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}{}", self.host, self.port, self.path)
    }
}

impl PageUrl {
    /// Where to connect to.
    pub(super) fn target(&self) -> (&str, u16) {
        (self.host.trim_start_matches('[').trim_end_matches(']'), self.port)
    }

    /// The `Host` header.
    pub(super) fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// What to ask for.
    pub(super) fn path(&self) -> &str {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_completed() {
        for (text, full) in [
            ("http://localhost:9401", "http://localhost:9401/metrics"),
            ("http://gpu1/", "http://gpu1:80/metrics"),
            ("http://[::1]:9401/dcgm?x=1", "http://[::1]:9401/dcgm?x=1"),
        ] {
            let url: PageUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), full);
        }
        assert_eq!("http://[::1]:9401".parse::<PageUrl>().unwrap().target(), ("::1", 9401));
    }

    #[test]
    fn what_cannot_be_asked_is_refused() {
        for text in [
            "",
            "localhost:9401",
            "/metrics",
            "https://h:1",
            "http://u:p@h:1",
            "http://h:0",
            "ftp://h",
        ] {
            assert!(text.parse::<PageUrl>().is_err(), "{text}");
        }
    }
}
