//! Where passwords are checked, one at a time: bcrypt takes a CPU for as long as it is told to, and nobody may take it from
//! the host, or keep others from being served, by sending wrong ones.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{sleep, timeout};

use super::lobby::Group;
use super::web_config::WebConfig;

/// How long a request waits for its turn.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long after a wrong password the next one of the same client has to wait.
const PAUSE: Duration = Duration::from_millis(500);
/// Clients that are told apart before those that wait for nothing are forgotten.
const MANY: usize = 1024;

/// What came of credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Right,
    Wrong,
    /// Too many others are to be checked first.
    Busy,
}

#[derive(Debug)]
pub(super) struct Desk {
    turn: Arc<Semaphore>,
    clients: Mutex<HashMap<Group, Arc<Semaphore>>>,
}

impl Default for Desk {
    fn default() -> Self {
        Self { turn: Arc::new(Semaphore::new(1)), clients: Mutex::default() }
    }
}

impl Desk {
    /// Checks a password. One that was right before takes no time and no turn.
    pub(super) async fn check(
        &self,
        config: &Arc<WebConfig>,
        client: Group,
        user: String,
        password: Vec<u8>,
    ) -> Verdict {
        if config.users.remember(&user, &password) {
            return Verdict::Right;
        }
        let waiting = async {
            let seat = self.line(client).acquire_owned().await.ok()?;
            // The one before may have had the same credentials.
            if config.users.remember(&user, &password) {
                return Some(None);
            }
            let turn = Arc::clone(&self.turn).acquire_owned().await.ok()?;
            Some(Some((seat, turn)))
        };
        match timeout(PATIENCE, waiting).await {
            Ok(Some(None)) => Verdict::Right,
            Ok(Some(Some(places))) => hash(Arc::clone(config), places, user, password).await,
            Ok(None) | Err(_) => Verdict::Busy,
        }
    }

    /// The line in which requests of one client stand.
    fn line(&self, client: Group) -> Arc<Semaphore> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if clients.len() >= MANY {
            clients.retain(|_, line| Arc::strong_count(line) > 1);
        }
        Arc::clone(clients.entry(client).or_insert_with(|| Arc::new(Semaphore::new(1))))
    }
}

/// Goes on when the request is gone, so that to hang up does not spare the pause.
async fn hash(
    config: Arc<WebConfig>,
    (seat, turn): (OwnedSemaphorePermit, OwnedSemaphorePermit),
    user: String,
    password: Vec<u8>,
) -> Verdict {
    let (tell, told) = oneshot::channel();
    tokio::spawn(async move {
        let hashing = tokio::task::spawn_blocking(move || {
            let right = config.users.verify(&user, &password);
            drop(turn);
            right
        });
        let right = hashing.await.unwrap_or(false);
        // The request may be gone.
        let _ = tell.send(right);
        if !right {
            sleep(PAUSE).await;
        }
        drop(seat);
    });
    if told.await.unwrap_or(false) { Verdict::Right } else { Verdict::Wrong }
}
