//! Questions to a Prometheus, or to what answers as it does. It is not trusted: time and size of answers are limited.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use gpucause_http::client::{Address, Client, GetError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tokio::time::timeout;

/// Time for a request, with connecting.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer in bytes: some 20,000 series.
const MAX_ANSWER: usize = 4 << 20;
/// Characters shown of an error.
const MAX_REASON: usize = 300;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum PrometheusError {
    /// It took too long.
    #[error("{0} did not answer within {1:?}")]
    Silent(Address, Duration),
    /// It cannot be reached, or the answer is too large.
    #[error("{0}: {1}")]
    Broken(Address, GetError),
    /// It answered with an error status, and why.
    #[error("{0} answered {1}: {2}")]
    Refused(Address, u16, String),
    /// The answer is not of the API of Prometheus.
    #[error("{0} does not answer as Prometheus does: {1}")]
    Foreign(Address, serde_json::Error),
}

/// A server, asked for what holds now.
#[derive(Debug, Clone)]
pub struct Prometheus {
    client: Client,
    timeout: Duration,
}

/// A series and its value.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Sample {
    /// Its labels.
    #[serde(rename = "metric")]
    pub labels: BTreeMap<String, String>,
    /// Its value.
    #[serde(deserialize_with = "value")]
    pub value: f64,
}

/// A time, and the value as text.
fn value<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let (_, text) = <(f64, String)>::deserialize(deserializer)?;
    text.parse().map_err(serde::de::Error::custom)
}

#[derive(Debug, Deserialize)]
struct Answer<T> {
    data: T,
}

#[derive(Debug, Deserialize)]
struct Data {
    result: Vec<Sample>,
}

#[derive(Debug, Default, Deserialize)]
struct Refusal {
    #[serde(default)]
    error: String,
}

impl Prometheus {
    /// The server of this client, whose address may have a path.
    #[must_use]
    pub const fn new(client: Client) -> Self {
        Self { client, timeout: TIMEOUT }
    }

    /// With another time for a request.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Its address.
    #[must_use]
    pub const fn address(&self) -> &Address {
        self.client.address()
    }

    /// The series of an expression, now.
    ///
    /// # Errors
    /// When there is no complete answer.
    pub async fn query(&self, expression: &str) -> Result<Vec<Sample>, PrometheusError> {
        self.query_within(expression, MAX_ANSWER).await
    }

    /// Returns the series like [`query`](Self::query), from an answer of at most so many bytes.
    ///
    /// # Errors
    /// When there is no complete answer.
    pub async fn query_within(
        &self,
        expression: &str,
        most: usize,
    ) -> Result<Vec<Sample>, PrometheusError> {
        let path = format!("/api/v1/query?query={}&timeout=10s", encoded(expression));
        Ok(self.data::<Data>(&path, most).await?.result)
    }

    /// The data of an answer of its API of at most so many bytes.
    ///
    /// # Errors
    /// When there is no complete answer.
    pub async fn data<T: DeserializeOwned>(
        &self,
        path: &str,
        most: usize,
    ) -> Result<T, PrometheusError> {
        let address = self.address();
        let path = format!("{}{path}", address.path().trim_end_matches('/'));
        let answer = timeout(self.timeout, self.client.get(&path, "application/json", most)).await;
        let answer = answer
            .map_err(|_| PrometheusError::Silent(address.clone(), self.timeout))?
            .map_err(|error| PrometheusError::Broken(address.clone(), error))?;
        if !answer.status.is_success() {
            let said: Refusal = serde_json::from_slice(&answer.body).unwrap_or_default();
            let why = match said.error.is_empty() {
                true => answer.status.canonical_reason().unwrap_or_default().to_owned(),
                false => said.error.chars().take(MAX_REASON).collect(),
            };
            return Err(PrometheusError::Refused(address.clone(), answer.status.as_u16(), why));
        }
        data(&answer.body).map_err(|error| PrometheusError::Foreign(address.clone(), error))
    }
}

/// The series of an answer.
///
/// # Errors
/// When it is not of the API of Prometheus.
pub fn samples(body: &[u8]) -> Result<Vec<Sample>, serde_json::Error> {
    data::<Data>(body).map(|data| data.result)
}

fn data<T: DeserializeOwned>(body: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(body).map(|answer: Answer<T>| answer.data)
}

/// Quotes a text as a string of PromQL. Its escapes are a superset of JSON's.
#[must_use]
pub fn string_literal(text: &str) -> String {
    Value::from(text).to_string()
}

/// Encodes a text as a part of a URL, such as the value of a parameter.
#[must_use]
pub fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len() * 2);
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_a_parameter_whatever_it_has() {
        assert_eq!(
            encoded("sum by (a) (x{y=\"é\"}[1h])&"),
            "sum%20by%20%28a%29%20%28x%7By%3D%22%C3%A9%22%7D%5B1h%5D%29%26"
        );
    }

    #[test]
    fn a_string_ends_where_its_text_does() {
        assert_eq!(string_literal("train-é.py"), r#""train-é.py""#);
        assert_eq!(string_literal("a\"} or up{x=\"\\\n\0"), r#""a\"} or up{x=\"\\\n\u0000""#);
    }

    #[test]
    fn samples_have_labels_and_a_value_and_all_else_is_no_answer() {
        let text = r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{"cause":"lock_wait"},"value":[1.5,"2.25"]}]}}"#;
        let labels = BTreeMap::from([("cause".to_owned(), "lock_wait".to_owned())]);
        assert_eq!(samples(text.as_bytes()).unwrap(), [Sample { labels, value: 2.25 }]);
        for text in [
            "",
            "{}",
            r#"{"data":{"result":[{"metric":{},"value":[1,"x"]}]}}"#,
            r#"{"data":{"result":[{"metric":{"a":1},"value":[1,"1"]}]}}"#,
            r#"{"data":{"result":[1,"2"]}}"#,
            &"[".repeat(100_000),
        ] {
            assert!(samples(text.as_bytes()).is_err(), "{text:.40}");
        }
    }
}
