//! Sends what waits in the spool: one request after the other on one connection, until nothing waits or an attempt fails.

use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use flate2::Compression;
use flate2::write::GzEncoder;
use gpucause_http::client::{Client, Conversation, GetError};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue};
use tokio::sync::watch;
use tokio::time::timeout;

use super::ChainLog;
use super::answer::{Verdict, verdict};
use super::backoff::Backoff;
use super::counts::{Failure, Loss};
use super::settings::OtlpSettings;
use super::spool::{Batch, Spool};

/// Largest answer: one has a sentence at most.
pub(super) const MAX_ANSWER: usize = 64 << 10;

/// Why an attempt failed, for the log, and when the next may be.
struct Failed {
    failure: Failure,
    why: String,
    after: Option<Duration>,
}

impl Failed {
    fn new(failure: Failure, why: &impl ToString) -> Self {
        Self { failure, why: why.to_string(), after: None }
    }
}

impl From<GetError> for Failed {
    fn from(error: GetError) -> Self {
        let failure = match error {
            GetError::Unreachable(_) => Failure::Unreachable,
            GetError::Tls(_) => Failure::Tls,
            GetError::Huge(_) => Failure::Malformed,
            GetError::Broken(_) | GetError::Request(_) | GetError::Write(_) => Failure::Broken,
        };
        Self::new(failure, &error)
    }
}

/// State from one attempt to the next.
pub(super) struct Sender {
    log: Arc<ChainLog>,
    settings: watch::Receiver<OtlpSettings>,
    /// The client for the current settings; to be made when there is none.
    client: Option<Client>,
    backoff: Backoff,
    /// The failure that was last logged.
    failing: Option<Failure>,
}

impl Sender {
    pub(super) fn new(log: Arc<ChainLog>) -> Self {
        let settings = log.settings.subscribe();
        Self { log, settings, client: None, backoff: Backoff::default(), failing: None }
    }

    /// Sends until the log is closed, and what waits then once more.
    pub(super) async fn run(mut self) {
        let log = Arc::clone(&self.log);
        let mut closed = log.closed.subscribe();
        let mut pause = log.pace.send_every;
        loop {
            let is_closed = tokio::select! {
                () = due(&log, pause) => false,
                // Other settings may help at once.
                Ok(()) = self.settings.changed() => {
                    self.settings.mark_changed();
                    false
                }
                _ = closed.wait_for(|closed| *closed) => true,
            };
            pause = match self.send_all().await {
                Ok(()) => {
                    self.backoff.reset();
                    log.pace.send_every
                }
                Err(failed) => {
                    log.counters.add_failure(failed.failure);
                    self.failed(&failed);
                    self.backoff.after_failure(failed.after)
                }
            };
            if is_closed {
                return;
            }
        }
    }

    fn failed(&mut self, failed: &Failed) {
        if self.failing.replace(failed.failure) == Some(failed.failure) {
            return;
        }
        let Some(endpoint) = self.settings.borrow().endpoint.clone() else { return };
        let Failed { why, .. } = failed;
        tracing::warn!(%endpoint, "chains wait in the OTLP spool; the endpoint takes none: {why}");
    }

    fn succeeded(&mut self) {
        if self.failing.take().is_some() {
            tracing::info!("the OTLP endpoint takes chains again");
        }
    }

    async fn send_all(&mut self) -> Result<(), Failed> {
        let (settings, is_other) = {
            let settings = self.settings.borrow_and_update();
            (settings.clone(), settings.has_changed())
        };
        if is_other {
            (self.client, self.failing) = (None, None);
            self.backoff.reset();
        }
        if settings.endpoint.is_none() || self.log.counters.queued_records() == 0 {
            return Ok(());
        }
        let log = Arc::clone(&self.log);
        let client = self.client.take();
        let prepared = {
            let log = Arc::clone(&log);
            // Reads files.
            tokio::task::spawn_blocking(move || {
                let client = match client {
                    Some(client) => Some(client),
                    None => settings.client().map_err(|error| Failed::new(Failure::Tls, &error))?,
                };
                let Some(client) = client else { return Ok(None) };
                let headers = settings.headers();
                let headers = headers.map_err(|error| Failed::new(Failure::Settings, &error))?;
                Ok(Some((client, all_headers(headers), next(&log))))
            })
        };
        let Some((client, headers, first)) = joined(prepared.await)? else { return Ok(()) };
        let mut settled = 0;
        let sent = send_batches(&log, &client, headers, first, &mut settled).await;
        if settled > 0 {
            self.backoff.reset();
        }
        if sent.is_err() {
            // Records that were not settled may make room for newer ones meanwhile.
            let put_back = tokio::task::spawn_blocking(move || {
                log.spool().as_mut().map(Spool::put_back);
                Ok(())
            });
            joined(put_back.await)?;
        } else if settled > 0 {
            self.succeeded();
        }
        // A file of authorities may have changed since it was read.
        if !matches!(&sent, Err(failed) if failed.failure == Failure::Tls) {
            self.client = Some(client);
        }
        sent
    }
}

/// When something waits, and others had time to join it.
async fn due(log: &ChainLog, pause: Duration) {
    loop {
        // Asked for first, so that no record is missed.
        let pushed = log.pushed.notified();
        if log.counters.queued_records() > 0 {
            break;
        }
        pushed.await;
    }
    tokio::time::sleep(pause).await;
}

fn joined<T>(result: Result<Result<T, Failed>, tokio::task::JoinError>) -> Result<T, Failed> {
    result.map_err(|error| Failed::new(Failure::Settings, &error)).flatten()
}

pub(super) fn all_headers(mut headers: HeaderMap) -> HeaderMap {
    let protobuf = HeaderValue::from_static("application/x-protobuf");
    headers.insert(ACCEPT, protobuf.clone());
    headers.insert(CONTENT_TYPE, protobuf);
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    headers
}

/// Sends this batch and those after it. Counts the batches that are settled, also where a later one fails.
async fn send_batches(
    log: &Arc<ChainLog>,
    client: &Client,
    headers: HeaderMap,
    first: Result<Option<Prepared>, Failed>,
    settled: &mut u64,
) -> Result<(), Failed> {
    let mut conversation: Option<Conversation<'_>> = None;
    let mut prepared = first?;
    while let Some((batch, body)) = prepared {
        let is_reused = conversation.is_some();
        let exchange = async {
            let current = match conversation.take() {
                Some(current) => current,
                None => client.connect().await?,
            };
            conversation.insert(current).post(&headers, body.clone(), MAX_ANSWER).await
        };
        let answer = match timeout(log.pace.timeout, exchange).await {
            Ok(Ok(answer)) => answer,
            // The endpoint may close a connection after each answer.
            Ok(Err(GetError::Broken(_))) if is_reused => {
                conversation = None;
                prepared = Some((batch, body));
                continue;
            }
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => {
                let why = format!("no answer within {:?}", log.pace.timeout);
                return Err(Failed::new(Failure::Slow, &why));
            }
        };
        let status = answer.status;
        let verdict = verdict(&answer, batch.records, SystemTime::now());
        let log = Arc::clone(log);
        // Both at once: each call wakes a thread.
        let settling = tokio::task::spawn_blocking(move || {
            settle(&log, &batch, verdict, status)?;
            Ok(next(&log))
        });
        let following = joined(settling.await)?;
        *settled += 1;
        prepared = following?;
    }
    Ok(())
}

/// A batch, and the body of its request.
type Prepared = (Batch, Bytes);

/// The next. Reads a file.
fn next(log: &ChainLog) -> Result<Option<Prepared>, Failed> {
    let Some(batch) = log.spool().as_mut().and_then(Spool::take) else {
        return Ok(None);
    };
    let body = compressed(&batch.body);
    let body = body.map_err(|error| Failed::new(Failure::Settings, &error))?;
    Ok(Some((batch, body)))
}

pub(super) fn compressed(body: &[u8]) -> std::io::Result<Bytes> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(body)?;
    encoder.finish().map(Bytes::from)
}

fn settle(
    log: &ChainLog,
    batch: &Batch,
    verdict: Verdict,
    status: hyper::StatusCode,
) -> Result<(), Failed> {
    let waits = |with: fn(&mut Spool, &Batch) -> bool| {
        log.spool().as_mut().is_some_and(|spool| with(spool, batch))
    };
    let why = format!("its answer has the status {status}");
    let (rejected, message) = match verdict {
        Verdict::Again { failure, after } => return Err(Failed { failure, why, after }),
        Verdict::Doubted { after } if waits(Spool::refused) => {
            return Err(Failed { failure: Failure::Status, why, after });
        }
        Verdict::TooLarge if waits(Spool::halve) => return Ok(()),
        Verdict::TooLarge | Verdict::Doubted { .. } => (batch.records, why),
        Verdict::Taken { rejected, message } => (rejected, message),
        Verdict::Refused { message } => (batch.records, message),
    };
    if let Some(spool) = log.spool().as_mut() {
        spool.done(batch);
    }
    log.counters.add_sent(batch.records - rejected);
    if rejected > 0 {
        log.counters.add_lost(Loss::Rejected, rejected);
        tracing::error!(rejected, message, "the OTLP endpoint rejected chains");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use hyper::StatusCode;

    use super::super::tests::{chain, log_to};
    use super::*;

    #[test]
    fn records_that_are_refused_alone_too_often_are_counted_as_rejected() {
        let log = log_to("http://localhost:4318");
        log.record_at(&[chain("a"), chain("b")], 20.0, |_| None);
        let mut refusals = 0;
        loop {
            let batch = log.spool().as_mut().and_then(Spool::take);
            let Some(batch) = batch else { break };
            let doubted = Verdict::Doubted { after: None };
            refusals += u64::from(settle(&log, &batch, doubted, StatusCode::FORBIDDEN).is_err());
            assert!(refusals < 100);
        }
        let counts = log.counts().unwrap();
        let rejected = counts.lost.into_iter().find(|(reason, _)| *reason == "rejected");
        assert_eq!((rejected, counts.sent), (Some(("rejected", 2)), 0));
        // Both together, then each alone.
        assert_eq!(refusals, 1 + 9 + 9);
    }
}
