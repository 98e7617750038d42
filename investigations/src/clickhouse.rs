//! Questions to a ClickHouse over its HTTP interface. They only read, within limits that the server enforces; it is not trusted,
//! so time and size of answers are limited here too.

use std::fmt::Write as _;
use std::time::Duration;

use gpucause_http::client::{Address, Client, GetError};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::prometheus::encoded;

/// Time for a request, with connecting. The server gets two seconds less.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer in bytes.
const MAX_ANSWER: usize = 4 << 20;
/// Rows of an answer at most.
pub const MAX_ROWS: usize = 100;
/// Limits of a query on the server: the query is `readonly`, and fails where a limit is exceeded.
const SETTINGS: &str = "readonly=2&max_execution_time=8&max_result_rows=100&max_result_bytes=4194304&result_overflow_mode=throw\
    &max_memory_usage=1073741824&max_threads=4&output_format_json_quote_64bit_integers=0&wait_end_of_query=1";
/// Characters shown of an error.
const MAX_REASON: usize = 300;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClickHouseError {
    /// It took too long.
    #[error("{0} did not answer within {TIMEOUT:?}")]
    Silent(Address),
    /// It cannot be reached, or the answer is too large.
    #[error("{0}: {1}")]
    Broken(Address, GetError),
    /// It answered with an error status, and why.
    #[error("{0} answered {1}: {2}{3}")]
    Refused(Address, u16, String, &'static str),
    /// The answer is not that of a ClickHouse.
    #[error("{0} does not answer as ClickHouse does: {1}")]
    Foreign(Address, serde_json::Error),
}

/// A server.
#[derive(Debug, Clone)]
pub struct ClickHouse {
    client: Client,
    database: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Answer<T> {
    data: Vec<T>,
}

impl ClickHouse {
    /// The server of this client, and the database of the tables unless it is that of the user.
    #[must_use]
    pub const fn new(client: Client, database: Option<String>) -> Self {
        Self { client, database }
    }

    /// Its address.
    #[must_use]
    pub const fn address(&self) -> &Address {
        self.client.address()
    }

    /// The rows of a SELECT, in which `{name:Type}` is replaced by a parameter.
    ///
    /// # Errors
    /// When there is no complete answer.
    pub async fn rows<T: DeserializeOwned>(
        &self,
        sql: &str,
        parameters: &[(&str, &str)],
    ) -> Result<Vec<T>, ClickHouseError> {
        let address = || self.address().clone();
        let path = path(self.database.as_deref(), sql, parameters);
        let answer = timeout(TIMEOUT, self.client.get(&path, "application/json", MAX_ANSWER)).await;
        let answer = answer
            .map_err(|_| ClickHouseError::Silent(address()))?
            .map_err(|error| ClickHouseError::Broken(address(), error))?;
        if !answer.status.is_success() {
            let text = String::from_utf8_lossy(&answer.body);
            let why: String = text.trim().chars().take(MAX_REASON).collect();
            let advice = advice(answer.status.as_u16(), &why);
            return Err(ClickHouseError::Refused(address(), answer.status.as_u16(), why, advice));
        }
        rows(&answer.body).map_err(|error| ClickHouseError::Foreign(address(), error))
    }
}

/// The rows of an answer.
///
/// # Errors
/// When it is not one of ClickHouse's in the format `JSON`, of rows of this form.
pub fn rows<T: DeserializeOwned>(body: &[u8]) -> Result<Vec<T>, serde_json::Error> {
    serde_json::from_slice(body).map(|answer: Answer<T>| answer.data)
}

fn path(database: Option<&str>, sql: &str, parameters: &[(&str, &str)]) -> String {
    let mut path = format!("/?{SETTINGS}&default_format=JSON");
    let mut add = |name: &str, value: &str| {
        // Writing to a String cannot fail.
        let _ = write!(path, "&{name}={}", encoded(value));
    };
    if let Some(database) = database {
        add("database", database);
    }
    for (name, value) in parameters {
        add(&format!("param_{name}"), &escaped(value));
    }
    add("query", sql);
    path
}

/// Escapes the text of a parameter in the format that ClickHouse expects.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\0' => out.push_str("\\0"),
            other => out.push(other),
        }
    }
    out
}

fn advice(status: u16, why: &str) -> &'static str {
    let code = why.strip_prefix("Code: ").and_then(|rest| rest.split('.').next());
    match (status, code) {
        (401, _) | (_, Some("516" | "193" | "192")) => {
            " - name the user in the URL, https://USER@HOST:PORT, and the password with --clickhouse-password-file"
        }
        (_, Some("164")) => " - its user must be allowed to lower limits: readonly = 2, not 1",
        (_, Some("60" | "81")) => {
            " - create the tables of clickhouse.sql, or name their database: URL/DATABASE"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_parameters_and_the_server_is_asked_to_keep_limits() {
        let path = path(Some("otel"), "SELECT {a:String}", &[("a", "x'&\\\n")]);
        assert!(path.starts_with("/?readonly=2&max_execution_time=8&"), "{path}");
        assert!(
            path.ends_with(
                "&database=otel&param_a=x%27%26%5C%5C%5Cn&query=SELECT%20%7Ba%3AString%7D"
            )
        );
        assert!(path.contains(&format!("max_result_rows={MAX_ROWS}&")));
        assert!(path.contains(&format!("max_result_bytes={MAX_ANSWER}&")));
    }

    #[test]
    fn an_error_says_what_to_do() {
        for (status, why, part) in [
            (401, "", "--clickhouse-password-file"),
            (
                403,
                "Code: 516. DB::Exception: me: Authentication failed",
                "--clickhouse-password-file",
            ),
            (500, "Code: 164. DB::Exception: Cannot modify", "readonly = 2"),
            (404, "Code: 60. DB::Exception: Unknown table", "clickhouse.sql"),
        ] {
            assert!(advice(status, why).contains(part), "{why}");
        }
        assert_eq!(advice(500, "Code: 159. DB::Exception: Timeout exceeded"), "");
    }
}
