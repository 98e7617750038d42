//! The meaning of an endpoint's answer for the records of a request. Endpoints are not trusted: an answer can neither end the sender nor
//! make it believe more than it sent.

use std::time::{Duration, SystemTime};

use gpucause_http::client::{Answer, retry_after};
use hyper::StatusCode;
use hyper::header::CONTENT_TYPE;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceResponse;
use prost::Message as _;
use serde::Deserialize;

use super::counts::Failure;

/// Characters of an endpoint's message that are logged.
const MAX_MESSAGE: usize = 200;

/// Outcome of a request for its records.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// They were taken, but for so many.
    Taken { rejected: u64, message: String },
    /// All were refused, and would be again.
    Refused { message: String },
    /// The request was too large.
    TooLarge,
    /// The request was refused, perhaps for one of its records: they are to be sent again, fewer at a time.
    Doubted { after: Option<Duration> },
    /// They are to be sent again, not before this time has passed.
    Again { failure: Failure, after: Option<Duration> },
}

/// `google.rpc.Status`, in which OTLP says why it refuses a request.
#[derive(Clone, PartialEq, prost::Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

/// Some endpoints answer in JSON, whatever they are asked in.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct JsonAnswer {
    partial_success: Option<JsonPartialSuccess>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct JsonPartialSuccess {
    rejected_log_records: Option<JsonInteger>,
    error_message: String,
}

/// 64-bit integers are text in protobuf's JSON.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum JsonInteger {
    Number(i64),
    Text(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Protobuf,
    Json,
    Other,
}

/// The verdict of an answer to a request of so many records.
pub(crate) fn verdict(answer: &Answer, records: u64, now: SystemTime) -> Verdict {
    let after = retry_after(&answer.headers, now);
    let again = |failure| Verdict::Again { failure, after };
    let doubted = || Verdict::Doubted { after };
    let status = answer.status;
    if status.is_success() {
        return taken(answer, records).unwrap_or_else(|| again(Failure::Malformed));
    }
    match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            again(Failure::Throttled)
        }
        StatusCode::PAYLOAD_TOO_LARGE => Verdict::TooLarge,
        // Only an answer in OTLP's own form is surely about the records; others may be of a wrong address or of a proxy.
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => {
            refusal(answer).map_or_else(doubted, |message| Verdict::Refused { message })
        }
        // Neither an expired token nor a wrong path is a fault of the records, nor what is behind a proxy that is away.
        StatusCode::UNAUTHORIZED
        | StatusCode::NOT_FOUND
        | StatusCode::METHOD_NOT_ALLOWED
        | StatusCode::PROXY_AUTHENTICATION_REQUIRED
        | StatusCode::REQUEST_TIMEOUT
        | StatusCode::BAD_GATEWAY
        | StatusCode::GATEWAY_TIMEOUT => again(Failure::Status),
        _ if status.is_redirection() => again(Failure::Status),
        // Such as a firewall that refuses what a record contains.
        _ => doubted(),
    }
}

fn form(answer: &Answer) -> Form {
    let kind = answer.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim();
    match kind.to_ascii_lowercase().as_str() {
        "application/x-protobuf" => Form::Protobuf,
        "application/json" => Form::Json,
        _ => Form::Other,
    }
}

/// `None` where it is no answer of OTLP.
fn taken(answer: &Answer, records: u64) -> Option<Verdict> {
    let body = answer.body.as_slice();
    let (rejected, message) = match form(answer) {
        _ if body.is_empty() => (0, String::new()),
        Form::Protobuf => {
            let said = ExportLogsServiceResponse::decode(body).ok()?.partial_success;
            let said = said.unwrap_or_default();
            (said.rejected_log_records, said.error_message)
        }
        Form::Json => {
            let said: JsonAnswer = serde_json::from_slice(body).ok()?;
            let said = said.partial_success.unwrap_or_default();
            let rejected = match said.rejected_log_records {
                Some(JsonInteger::Number(number)) => number,
                Some(JsonInteger::Text(text)) => text.parse().ok()?,
                None => 0,
            };
            (rejected, said.error_message)
        }
        Form::Other => return None,
    };
    let rejected = u64::try_from(rejected).unwrap_or_default().min(records);
    Some(Verdict::Taken { rejected, message: printable(&message) })
}

/// Returns the message of OTLP about records that it refuses.
fn refusal(answer: &Answer) -> Option<String> {
    let body = answer.body.as_slice();
    let message = match form(answer) {
        Form::Protobuf => Status::decode(body).ok()?.message,
        Form::Json => {
            let said: serde_json::Value = serde_json::from_slice(body).ok()?;
            said.get("message")?.as_str()?.to_owned()
        }
        Form::Other => return None,
    };
    Some(printable(&message))
}

/// Without what controls a terminal.
fn printable(message: &str) -> String {
    let printable = |c: char| if c.is_control() { '?' } else { c };
    message.chars().take(MAX_MESSAGE).map(printable).collect()
}

#[cfg(test)]
mod tests;
