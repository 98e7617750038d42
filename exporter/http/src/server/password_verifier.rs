//! Verifies passwords on a blocking thread, one at a time: bcrypt is expensive, and wrong passwords must neither load the host
//! nor delay other clients.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::fair_semaphore::{FairSemaphore, Permit};
use crate::server_pool::ClientId;
use crate::web_config::WebConfig;

/// How long a request waits for its permit.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// How long the next password of a client waits after a wrong one.
const WRONG_PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Right,
    Wrong,
    /// Too many others wait.
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
    /// Verifies a password. A remembered one is not hashed.
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
            // The previous request may have had the same credentials.
            Ok(Some(_)) if config.users.is_remembered(&user, &password) => Verdict::Right,
            Ok(Some(permit)) => hash(Arc::clone(config), permit, user, password).await,
            Ok(None) | Err(_) => Verdict::Busy,
        }
    }
}

/// Continues when the client hangs up, which therefore does not skip the pause.
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
