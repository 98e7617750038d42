//! Where log records are sent.

use std::fmt;
use std::str::FromStr;

use gpucause_http::client::Address;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The path of logs below that of an endpoint, by OTLP/HTTP.
const LOGS: &str = "/v1/logs";
/// The accepted form, for messages.
const FORM: &str = "http://HOST:PORT or https://HOST:PORT, without user and password: a login is a line in the file of \
                    otlp.headers_file or --otlp.headers-file";

/// The address of a receiver of OTLP/HTTP. Its path ends in `/v1/logs`, unless it has a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint(Address);

impl Endpoint {
    /// Its address.
    pub(super) const fn address(&self) -> &Address {
        &self.0
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let address = Address::parse(text, [80, 443]).filter(|address| address.user().is_none());
        let address = address.ok_or_else(|| format!("invalid OTLP endpoint; expected {FORM}"))?;
        let path = address.path().trim_end_matches('/');
        if path.contains('?') || path.ends_with(LOGS) {
            return Ok(Self(address));
        }
        let path = format!("{path}{LOGS}");
        Ok(Self(address.with_path(&path)))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Endpoint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Endpoint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        // Without its value: a password in it must not be in the log.
        let refusal = |_| serde::de::Error::custom(format!("is invalid, and must be {FORM}"));
        text.parse().map_err(refusal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_logs_is_added_where_it_is_missing() {
        for (text, full) in [
            ("http://collector:4318", "http://collector:4318/v1/logs"),
            ("https://otel.example/", "https://otel.example:443/v1/logs"),
            ("http://h:9428/insert/opentelemetry", "http://h:9428/insert/opentelemetry/v1/logs"),
            ("http://[::1]:4318/v1/logs", "http://[::1]:4318/v1/logs"),
            ("http://h:1/x?stream=a", "http://h:1/x?stream=a"),
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), full);
        }
    }

    #[test]
    fn invalid_addresses_are_refused() {
        for text in ["", "collector:4318", "grpc://h:4317", "http://me:secret@h:1", "http://h:0"] {
            let error = text.parse::<Endpoint>().unwrap_err();
            assert!(error.contains("--otlp.headers-file") && !error.contains("secret"), "{error}");
        }
    }
}
