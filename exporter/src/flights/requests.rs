//! Flight records that clients ask for: one at a time, and not one after the other, or they would replace those of incidents.

use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::FlightFile;

/// Between the begin of two records that clients ask for.
const BETWEEN: Duration = Duration::from_secs(10);

/// Why there is no record.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Nobody records.
    #[error(
        "no flight recorder runs on this node - start the exporter with --flight-recorder.dir; with that flag its log says why it \
         cannot record"
    )]
    Off,
    /// Another client's is being written.
    #[error("another flight record is being written - try again")]
    Busy,
    /// The last one was asked for a moment ago.
    #[error("a flight record was asked for within the last {} s - try again in {} s", BETWEEN.as_secs(), .0.as_secs() + 1)]
    TooSoon(Duration),
    /// It could not be written.
    #[error("cannot write a flight record: {0}")]
    Failed(String),
}

/// The side that asks.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// Set once somebody records.
    recorder: OnceLock<mpsc::Sender<FlightRequest>>,
    /// When the last record was asked for, and what is there until it is written.
    last: Mutex<Option<(Instant, Weak<()>)>>,
}

/// A request whose client waits for the file.
#[derive(Debug)]
pub struct FlightRequest {
    answer: oneshot::Sender<Result<FlightFile, String>>,
    /// Held until the file is written, even if the client hangs up.
    _writing: Arc<()>,
}

impl FlightRequest {
    /// Reports the outcome.
    pub fn answer(self, outcome: Result<FlightFile, String>) {
        // The client may have hung up.
        let _ = self.answer.send(outcome);
    }
}

impl Requests {
    /// The side that records. The first call counts: what the other ones return is never asked.
    pub(super) fn accept(&self) -> mpsc::Receiver<FlightRequest> {
        let (sender, receiver) = mpsc::channel(1);
        self.recorder.get_or_init(|| sender);
        receiver
    }

    /// Has a record written now.
    pub(super) async fn ask(&self) -> Result<FlightFile, RequestError> {
        let recorder = self.recorder.get().ok_or(RequestError::Off)?;
        let writing = self.begin(Instant::now())?;
        let (answer, answered) = oneshot::channel();
        let stopping = || RequestError::Failed("the daemon is stopping".to_owned());
        recorder.send(FlightRequest { answer, _writing: writing }).await.map_err(|_| stopping())?;
        answered.await.map_err(|_| stopping())?.map_err(RequestError::Failed)
    }

    /// Begins a record, which is written until the result is dropped.
    fn begin(&self, now: Instant) -> Result<Arc<()>, RequestError> {
        let mut last = self.last.lock();
        if let Some((begun, writing)) = &*last {
            if writing.strong_count() > 0 {
                return Err(RequestError::Busy);
            }
            if let Some(left) = BETWEEN.checked_sub(now.saturating_duration_since(*begun)) {
                return Err(RequestError::TooSoon(left));
            }
        }
        let writing = Arc::new(());
        *last = Some((now, Arc::downgrade(&writing)));
        drop(last);
        Ok(writing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> FlightFile {
        FlightFile { name: "flight-a.db".to_owned(), bytes: 1, written: 2.0 }
    }

    #[tokio::test]
    async fn a_second_request_waits_for_neither_the_first_nor_its_client() {
        let requests = Requests::default();
        assert_eq!(requests.ask().await, Err(RequestError::Off));
        let mut asked = requests.accept();
        let first = requests.ask();
        tokio::pin!(first);
        let request = tokio::select! {
            _ = &mut first => panic!("nothing was written"),
            request = asked.recv() => request.unwrap(),
        };
        assert_eq!(requests.ask().await, Err(RequestError::Busy));
        request.answer(Ok(file()));
        assert_eq!(first.await, Ok(file()));
        assert!(matches!(requests.ask().await, Err(RequestError::TooSoon(_))));
    }

    #[test]
    fn records_are_begun_ten_seconds_apart() {
        let requests = Requests::default();
        let begin = Instant::now();
        let after = |seconds| requests.begin(begin + Duration::from_secs(seconds)).map(drop);
        assert_eq!(after(0), Ok(()));
        let refused = after(4).unwrap_err();
        assert_eq!(refused, RequestError::TooSoon(Duration::from_secs(6)));
        assert!(refused.to_string().ends_with("try again in 7 s"), "{refused}");
        assert_eq!(after(11), Ok(()), "a refused request is none");
    }
}
