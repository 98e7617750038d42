//! Configuration reloads over HTTP.

use tokio::sync::{mpsc, oneshot};

/// The outcome of a reload.
type Outcome = Result<(), String>;

/// The side that requests reloads.
#[derive(Debug, Clone)]
pub struct ReloadHandle(mpsc::Sender<oneshot::Sender<Outcome>>);

/// The side that carries them out.
#[derive(Debug)]
pub struct ReloadRequests(mpsc::Receiver<oneshot::Sender<Outcome>>);

/// A request whose client waits for the reload.
#[derive(Debug)]
pub struct ReloadRequest(oneshot::Sender<Outcome>);

/// Both sides.
#[must_use]
pub fn reload_channel() -> (ReloadHandle, ReloadRequests) {
    let (sender, receiver) = mpsc::channel(1);
    (ReloadHandle(sender), ReloadRequests(receiver))
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
    /// The next request; pending forever when there is no handle.
    pub async fn next(&mut self) -> ReloadRequest {
        match self.0.recv().await {
            Some(answer) => ReloadRequest(answer),
            None => std::future::pending().await,
        }
    }
}

impl ReloadRequest {
    /// Reports the outcome.
    pub fn answer(self, outcome: Outcome) {
        // The client may have hung up.
        let _ = self.0.send(outcome);
    }
}
