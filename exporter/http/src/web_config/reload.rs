//! The web configuration in effect: reloaded when its files change, so that certificates can be renewed without a restart.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gpucause_input::complaint::ConfigError;
use parking_lot::{Mutex, RwLock};
use tokio::time::MissedTickBehavior;

use super::WebConfig;

/// Between two polls of the files. A change is applied when two polls find the same state: then the write is complete.
const POLL_INTERVAL: Duration = Duration::from_millis(400);

/// Device, inode, size, mtime and ctime of each file; `None` for a missing file.
type Fingerprints = Vec<Option<(u64, u64, u64, i128, i128)>>;

/// How reloads of the web configuration went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WebConfigState {
    /// Failed reloads.
    pub failures: u64,
    /// True if the last one succeeded.
    pub last_succeeded: bool,
}

/// The web configuration in effect.
#[derive(Debug, Default)]
pub struct LiveWebConfig {
    path: Option<PathBuf>,
    current: RwLock<Arc<WebConfig>>,
    /// The files of the last attempt, with their fingerprints at that time.
    files: Mutex<(Vec<PathBuf>, Fingerprints)>,
    failures: AtomicU64,
    /// Failures at the last success.
    failures_at_success: AtomicU64,
}

impl LiveWebConfig {
    /// Loads a file for the first time.
    ///
    /// # Errors
    /// When it, or one that it names, cannot be read or is invalid.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        // Taken before the files are read, so that the first poll detects a later change.
        let fingerprints = fingerprints(&WebConfig::read(path).files);
        let reading = WebConfig::read(path);
        let config = reading.outcome?;
        if config.is_plain() && !config.users.is_empty() {
            tracing::warn!(file = %path.display(), "passwords are sent in the clear: basic_auth_users without tls_server_config");
        }
        tracing::info!(file = %path.display(), access = %config, "web configuration");
        Ok(Self {
            path: Some(path.to_owned()),
            current: RwLock::new(Arc::new(config)),
            files: Mutex::new((reading.files, fingerprints)),
            ..Self::default()
        })
    }

    /// The configuration in effect.
    #[must_use]
    pub fn current(&self) -> Arc<WebConfig> {
        Arc::clone(&self.current.read())
    }

    /// The outcome of reloads, if there is a file.
    #[must_use]
    pub fn reload_state(&self) -> Option<WebConfigState> {
        self.path.as_ref()?;
        let failures = self.failures.load(Ordering::Relaxed);
        let last_succeeded = failures == self.failures_at_success.load(Ordering::Relaxed);
        Some(WebConfigState { failures, last_succeeded })
    }

    /// Reloads when files change, until aborted.
    pub async fn follow(self: Arc<Self>) {
        if self.path.is_none() {
            return;
        }
        let mut ticks = tokio::time::interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = None;
        loop {
            ticks.tick().await;
            let live = Arc::clone(&self);
            // Reading files may block.
            let polled = tokio::task::spawn_blocking(move || live.poll(last.as_ref())).await;
            last = polled.unwrap_or_default();
        }
    }

    /// Reloads when the files have changed, and not since the last poll. Returns their fingerprints.
    fn poll(&self, last: Option<&Fingerprints>) -> Option<Fingerprints> {
        let mut files = self.files.lock();
        let now = fingerprints(&files.0);
        if now == files.1 || last != Some(&now) {
            return Some(now);
        }
        let path = self.path.as_deref()?;
        let mut reading = WebConfig::read(path);
        files.1 = now;
        // A file that cannot be parsed names no others: the error may be in those that it named before.
        if reading.files.len() > 1 && reading.files != files.0 {
            files.1 = fingerprints(&reading.files);
            files.0 = reading.files;
            // Taken before the files are read, so that the next poll detects a later change.
            reading = WebConfig::read(path);
        }
        self.apply(path, reading.outcome);
        Some(files.1.clone())
    }

    fn apply(&self, path: &Path, outcome: Result<WebConfig, ConfigError>) {
        let problem = match outcome {
            Ok(config) => match self.current().lost_with(&config) {
                None => {
                    tracing::info!(file = %path.display(), access = %config, "web configuration reloaded");
                    *self.current.write() = Arc::new(config);
                    self.failures_at_success
                        .store(self.failures.load(Ordering::Relaxed), Ordering::Relaxed);
                    return;
                }
                Some(lost) => {
                    format!("{}: {lost}; restart the daemon to apply this", path.display())
                }
            },
            Err(error) => error.to_string(),
        };
        self.failures.fetch_add(1, Ordering::Relaxed);
        tracing::error!(
            problem,
            "web configuration reload failed; the previous web configuration is still active"
        );
    }
}

fn fingerprints(files: &[PathBuf]) -> Fingerprints {
    let nanoseconds =
        |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
    let of = |path: &PathBuf| {
        let m = std::fs::metadata(path).ok()?;
        let changed = nanoseconds(m.ctime(), m.ctime_nsec());
        Some((m.dev(), m.ino(), m.len(), nanoseconds(m.mtime(), m.mtime_nsec()), changed))
    };
    files.iter().map(of).collect()
}
