//! A check that an endpoint takes records: it sends a request without any, which receivers answer like others.

use std::time::{Duration, SystemTime};

use hyper::StatusCode;
use tokio::time::timeout;

use super::answer::{Verdict, verdict};
use super::counts::Failure;
use super::sender::{MAX_ANSWER, all_headers, compressed};
use super::settings::OtlpSettings;

/// Asks the endpoint, if there is one.
///
/// # Errors
/// When it takes no records, or does not answer in this time.
pub(crate) async fn probe(settings: &OtlpSettings, time: Duration) -> anyhow::Result<()> {
    let Some(client) = settings.client()? else { return Ok(()) };
    let (headers, body) = (all_headers(settings.headers()?), compressed(&[])?);
    let exchange = async { client.connect().await?.post(&headers, body, MAX_ANSWER).await };
    let Ok(answer) = timeout(time, exchange).await else {
        anyhow::bail!("no answer within {time:?} - check that a receiver of OTLP/HTTP runs there");
    };
    let answer = answer?;
    let status = answer.status;
    match verdict(&answer, 0, SystemTime::now()) {
        Verdict::Taken { .. } => Ok(()),
        // Loki refuses a request only for having no records.
        _ if status == StatusCode::UNPROCESSABLE_ENTITY => Ok(()),
        Verdict::Refused { .. } => anyhow::bail!(
            "it refuses an empty request with the status {status} - check otlp.endpoint and what otlp.headers_file has"
        ),
        Verdict::Again { failure: Failure::Malformed, .. } => {
            anyhow::bail!("what answers is no receiver of OTLP/HTTP - check otlp.endpoint")
        }
        _ if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
            anyhow::bail!(
                "its answer has the status {status} - check the login in otlp.headers_file"
            )
        }
        _ => anyhow::bail!("its answer has the status {status} - check otlp.endpoint"),
    }
}
