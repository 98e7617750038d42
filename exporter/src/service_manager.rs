//! What systemd is told of the daemon, and what it hands over: readiness, reloads, signs of life, and sockets.

mod progress;
mod sockets;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::MissedTickBehavior;

pub use progress::{Chore, Progress};
pub use sockets::{SocketError, sockets};

/// The least time without signs of progress that means that a chore is stuck, however short the watchdog's is.
const PATIENCE: Duration = Duration::from_secs(10);
/// Signs of life in the time that the watchdog allows.
const PINGS: u32 = 4;

/// Tells the service manager. Without one it does nothing.
#[derive(Debug, Clone, Default)]
pub struct ServiceManager {
    /// Whether it was told that the daemon is ready, and not yet that it is stopping.
    ready: Arc<AtomicBool>,
}

/// A reload under way; the end of it is told when this is dropped.
#[derive(Debug)]
pub struct Reload<'a> {
    manager: &'a ServiceManager,
    status: String,
}

impl ServiceManager {
    /// The daemon is up.
    pub fn ready(&self) {
        self.ready.store(true, Ordering::Relaxed);
        tell(&[NotifyState::Ready]);
    }

    /// The configuration is being reloaded.
    pub fn reload(&self) -> Reload<'_> {
        if self.is_ready() {
            // The clock cannot fail; systemd needs its reading from version 253 on.
            let now = NotifyState::monotonic_usec_now().unwrap_or(NotifyState::MonotonicUsec(0));
            tell(&[NotifyState::Reloading, now]);
        }
        Reload { manager: self, status: String::new() }
    }

    /// The daemon ends.
    pub fn stopping(&self) {
        self.ready.store(false, Ordering::Relaxed);
        tell(&[NotifyState::Stopping]);
    }

    fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// Gives signs of life for as long as every chore makes progress. Ends at once where the service manager wants none.
    pub async fn keep_alive(self, progress: Progress) {
        let Some(allowed) = sd_notify::watchdog_enabled().filter(|allowed| !allowed.is_zero())
        else {
            return;
        };
        let mut ticks = tokio::time::interval((allowed / PINGS).max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut told = None;
        loop {
            ticks.tick().await;
            let stuck = progress.stuck(allowed.max(PATIENCE));
            match stuck {
                None => tell(&[NotifyState::Watchdog]),
                Some(chore) if told != stuck => {
                    tracing::error!(
                        chore = chore.label(),
                        "no progress; the service manager will restart the daemon"
                    );
                }
                Some(_) => {}
            }
            told = stuck;
        }
    }
}

impl Reload<'_> {
    /// The earlier configuration stays; why.
    pub fn refused(&mut self, why: &str) {
        self.status = format!("an earlier configuration is in effect: {}", why.replace('\n', "; "));
    }
}

impl Drop for Reload<'_> {
    fn drop(&mut self) {
        if self.manager.is_ready() {
            tell(&[NotifyState::Ready, NotifyState::Status(&self.status)]);
        }
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "the service manager was not told");
    }
}
