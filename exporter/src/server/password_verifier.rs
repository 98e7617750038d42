//! Verifies passwords off the thread that serves, one at a time: bcrypt keeps a CPU busy, and wrong passwords must not take it
//! from the host, or keep others waiting.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::fair_semaphore::{FairSemaphore, Permit};
use super::web_config::WebConfig;
use gpucause_investigations::http::pool::ClientId;

/// How long a request waits for its turn.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// How long after a wrong password the next one of the same client has to wait.
const WRONG_PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Right,
    Wrong,
    /// Too many others are to be verified first.
    Busy,
}

#[derive(Debug)]
pub(super) struct PasswordVerifier(FairSemaphore);

impl Default for PasswordVerifier {
    fn default() -> Self {
        Self(FairSemaphore::new(1))
    }
}

impl PasswordVerifier {
    /// Verifies a password. One that was right before is not hashed.
    pub(super) async fn verify(
        &self,
        config: &Arc<WebConfig>,
        client: ClientId,
        user: String,
        password: Vec<u8>,
    ) -> Verdict {
        if config.users.is_remembered(&user, &password) {
            return Verdict::Right;
        }
        match timeout(MAX_WAIT, self.0.acquire(client)).await {
            // The request before may have had the same credentials.
            Ok(Some(_)) if config.users.is_remembered(&user, &password) => Verdict::Right,
            Ok(Some(permit)) => hash(Arc::clone(config), permit, user, password).await,
            Ok(None) | Err(_) => Verdict::Busy,
        }
    }
}

/// Continues when the client hangs up, which therefore does not spare it the pause.
async fn hash(
    config: Arc<WebConfig>,
    Permit { own, common }: Permit,
    user: String,
    password: Vec<u8>,
) -> Verdict {
    let (sender, receiver) = oneshot::channel();
    tokio::spawn(async move {
        let hashing = tokio::task::spawn_blocking(move || {
            let right = config.users.verify(&user, &password);
            drop(common);
            right
        });
        let right = hashing.await.unwrap_or(false);
        // The client may have hung up.
        let _ = sender.send(right);
        if !right {
            sleep(WRONG_PAUSE).await;
        }
        drop(own);
    });
    if receiver.await.unwrap_or(false) { Verdict::Right } else { Verdict::Wrong }
}
