//! The address of a dcgm-exporter's page.

use std::fmt;
use std::str::FromStr;

use gpucause_http::client::Address;

/// An address such as `http://localhost:9401/metrics`; `/metrics` is the default path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageUrl(Address);

/// Why text is not a [`PageUrl`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid address of a dcgm-exporter; expected http://HOST:PORT/metrics or https://HOST:PORT/metrics, without user and password: it must need no login"
)]
pub struct UrlError;

impl FromStr for PageUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let address = Address::parse(text, [80, 443]).filter(|address| address.user().is_none());
        let address = address.ok_or(UrlError)?;
        Ok(Self(if address.path() == "/" { address.with_path("/metrics") } else { address }))
    }
}

impl fmt::Display for PageUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<PageUrl> for Address {
    fn from(url: PageUrl) -> Self {
        url.0
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
            ("https://gpu1", "https://gpu1:443/metrics"),
            ("http://[::1]:9401/dcgm?x=1", "http://[::1]:9401/dcgm?x=1"),
        ] {
            let url: PageUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), full);
        }
    }

    #[test]
    fn invalid_addresses_are_rejected() {
        for text in ["", "localhost:9401", "/metrics", "http://u:p@h:1", "http://h:0", "ftp://h"] {
            assert!(text.parse::<PageUrl>().is_err(), "{text}");
        }
    }
}
