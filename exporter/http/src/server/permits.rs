//! Permits of expensive responses.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::fair_semaphore::{FairSemaphore, Permit};
use super::peer::Peer;
use crate::server_pool::ClientId;

/// Permits of expensive responses: a few are made at a time, and clients take turns.
#[derive(Debug, Clone)]
pub struct Permits {
    semaphore: Arc<FairSemaphore>,
    /// How long a request waits at most.
    wait: Duration,
}

impl Permits {
    pub(super) fn new(count: u32, wait: Duration) -> Self {
        Self { semaphore: Arc::new(FairSemaphore::new(count)), wait }
    }

    /// A permit, returned on drop; `None` after a timeout, or when too many newer requests of the client wait.
    pub async fn acquire(&self, peer: Peer) -> Option<Permit> {
        let permit = self.semaphore.acquire(ClientId::of(peer.address));
        timeout(self.wait, permit).await.ok().flatten()
    }

    /// Returns true if a request waits for a permit.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        self.semaphore.has_waiting()
    }

    pub(super) fn resize(&self, count: u32) {
        self.semaphore.resize(count);
    }
}
