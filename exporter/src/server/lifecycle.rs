//! Asking the daemon over HTTP to reload its configuration.

use tokio::sync::{mpsc, oneshot};

/// Whether the reload was good, or why not.
type Outcome = Result<(), String>;

/// Where reloads are asked for.
#[derive(Debug, Clone)]
pub struct ReloadHandle(mpsc::Sender<oneshot::Sender<Outcome>>);

/// Where they are asked for to be made.
#[derive(Debug)]
pub struct ReloadRequests(mpsc::Receiver<oneshot::Sender<Outcome>>);

/// Somebody who waits for a reload.
#[derive(Debug)]
pub struct ReloadRequest(oneshot::Sender<Outcome>);

/// Both ends.
#[must_use]
pub fn reload_channel() -> (ReloadHandle, ReloadRequests) {
    let (asking, asked) = mpsc::channel(1);
    (ReloadHandle(asking), ReloadRequests(asked))
}

impl ReloadHandle {
    pub(super) async fn reload(&self) -> Outcome {
        let (answer, answered) = oneshot::channel();
        let stopping = || "the daemon is stopping".to_owned();
        self.0.send(answer).await.map_err(|_| stopping())?;
        answered.await.map_err(|_| stopping())?
    }
}

impl ReloadRequests {
    /// The next request; none ever comes when nobody can ask.
    pub async fn next(&mut self) -> ReloadRequest {
        match self.0.recv().await {
            Some(answer) => ReloadRequest(answer),
            None => std::future::pending().await,
        }
    }
}

impl ReloadRequest {
    /// Tells how the reload went.
    pub fn answer(self, outcome: Outcome) {
        // Whoever asked may have gone.
        let _ = self.0.send(outcome);
    }
}
