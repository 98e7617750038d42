//! The interface to systemd: readiness, reloads, watchdog, and socket activation.

mod progress;
mod sockets;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::MissedTickBehavior;

pub use progress::{Progress, Task};
pub use sockets::{SocketError, sockets};

/// The minimum time without progress after which a task is stuck, however short the watchdog's timeout is.
const MIN_STUCK: Duration = Duration::from_secs(10);
/// Keep-alive pings per watchdog timeout.
const PINGS: u32 = 4;

/// Notifies the service manager, if there is one.
#[derive(Debug, Clone, Default)]
pub struct ServiceManager {
    /// Between the notifications `READY=1` and `STOPPING=1`.
    ready: Arc<AtomicBool>,
}

/// A reload in progress; its end is notified on drop.
#[derive(Debug)]
pub struct Reload<'a> {
    manager: &'a ServiceManager,
    status: String,
}

impl ServiceManager {
    /// Reports that the daemon is ready.
    pub fn ready(&self) {
        self.ready.store(true, Ordering::Relaxed);
        notify(&[NotifyState::Ready]);
    }

    /// Reports that a reload begins.
    pub fn reload(&self) -> Reload<'_> {
        if self.is_ready() {
            // Systemd 253 and newer require the time.
            let now = NotifyState::monotonic_usec_now().unwrap_or(NotifyState::MonotonicUsec(0));
            notify(&[NotifyState::Reloading, now]);
        }
        Reload { manager: self, status: String::new() }
    }

    /// Reports that the daemon is stopping.
    pub fn stopping(&self) {
        self.ready.store(false, Ordering::Relaxed);
        notify(&[NotifyState::Stopping]);
    }

    fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// Sends keep-alive pings while the daemon is ready and every task makes progress. Returns at once without a watchdog.
    pub async fn keep_alive(self, progress: Progress) {
        let Some(allowed) = sd_notify::watchdog_enabled().filter(|allowed| !allowed.is_zero())
        else {
            return;
        };
        let mut ticks = tokio::time::interval((allowed / PINGS).max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reported = None;
        loop {
            ticks.tick().await;
            let stuck = progress.stuck(allowed.max(MIN_STUCK));
            match stuck {
                // The manager counts from readiness on. Until it reads, a full socket blocks, and must not keep scrapes waiting.
                None if self.is_ready() => {
                    let ping = tokio::task::spawn_blocking(|| notify(&[NotifyState::Watchdog]));
                    let _ = ping.await;
                }
                None => {}
                Some(task) if reported != stuck => {
                    tracing::error!(
                        task = task.label(),
                        "a background task is stuck; the service manager will restart the daemon"
                    );
                }
                Some(_) => {}
            }
            reported = stuck;
        }
    }
}

impl Reload<'_> {
    /// Reports that the reload failed, and why.
    pub fn failed(&mut self, why: &str) {
        self.status = format!(
            "configuration reload failed; the previous configuration is still active: {}",
            why.replace('\n', "; ")
        );
    }
}

impl Drop for Reload<'_> {
    fn drop(&mut self) {
        if self.manager.is_ready() {
            notify(&[NotifyState::Ready, NotifyState::Status(&self.status)]);
        }
    }
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "cannot notify the service manager");
    }
}
