//! The web configuration in effect: taken again when its files change, so that certificates can be renewed without a restart.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::web_config::{WebConfig, WebConfigError};

/// Between two looks at the files. A change is taken when it was seen twice and is the same: then nobody is still writing.
const LOOK_EVERY: Duration = Duration::from_millis(400);

/// What tells that a file is another, or has other content. None when there is no such file.
type Seen = Vec<Option<(u64, u64, u64, i128, i128)>>;

/// How clients are let in now.
#[derive(Debug, Default)]
pub struct LiveWebConfig {
    path: Option<PathBuf>,
    current: RwLock<Arc<WebConfig>>,
    /// Those that decided about the last outcome.
    files: Mutex<(Vec<PathBuf>, Seen)>,
    failures: AtomicU64,
    /// Failures at the last success.
    forgiven: AtomicU64,
}

/// How taking a changed file went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReloadState {
    /// Times that a change was not taken.
    pub failures: u64,
    /// Whether what the file says is in effect.
    pub last_succeeded: bool,
}

impl LiveWebConfig {
    /// Reads a file for the first time.
    ///
    /// # Errors
    /// When it, or one that it names, cannot be read or says something wrong.
    pub fn load(path: &Path) -> Result<Self, WebConfigError> {
        // Seen before they are read, so that a change after that is a look's.
        let seen = seen(&WebConfig::read(path).files);
        let reading = WebConfig::read(path);
        let config = reading.outcome?;
        if config.is_plain() && !config.users.is_empty() {
            tracing::warn!(file = %path.display(), "passwords are sent in the clear: basic_auth_users without tls_server_config");
        }
        tracing::info!(file = %path.display(), access = %config, "web configuration");
        Ok(Self {
            path: Some(path.to_owned()),
            current: RwLock::new(Arc::new(config)),
            files: Mutex::new((reading.files, seen)),
            ..Self::default()
        })
    }

    /// How clients are let in now.
    #[must_use]
    pub fn current(&self) -> Arc<WebConfig> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// How taking changes went, if there is a file.
    #[must_use]
    pub fn reload_state(&self) -> Option<ReloadState> {
        self.path.as_ref()?;
        let failures = self.failures.load(Ordering::Relaxed);
        let last_succeeded = failures == self.forgiven.load(Ordering::Relaxed);
        Some(ReloadState { failures, last_succeeded })
    }

    /// Takes changes, for ever.
    pub(crate) async fn follow(self: Arc<Self>) {
        if self.path.is_none() {
            return;
        }
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = None;
        loop {
            ticks.tick().await;
            let live = Arc::clone(&self);
            // Files may be on a disk that has to be waited for.
            let looked = tokio::task::spawn_blocking(move || live.look(last.as_ref())).await;
            last = looked.unwrap_or_default();
        }
    }

    /// Takes what is in the files when they are not what they were, but are what they were at the last look. Returns what is seen.
    fn look(&self, last: Option<&Seen>) -> Option<Seen> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let now = seen(&files.0);
        if now == files.1 || last != Some(&now) {
            return Some(now);
        }
        let path = self.path.as_deref()?;
        let mut reading = WebConfig::read(path);
        files.1 = now;
        // A file that cannot be understood names no others: those it named before may be what is to be put right.
        if reading.files.len() > 1 && reading.files != files.0 {
            files.1 = seen(&reading.files);
            files.0 = reading.files;
            // Seen before they are read, so that a change after that is another look's.
            reading = WebConfig::read(path);
        }
        self.take(path, reading.outcome);
        Some(files.1.clone())
    }

    fn take(&self, path: &Path, outcome: Result<WebConfig, WebConfigError>) {
        let problem = match outcome {
            Ok(config) => match self.current().lost_with(&config) {
                None => {
                    tracing::info!(file = %path.display(), access = %config, "web configuration taken");
                    *self.current.write().unwrap_or_else(PoisonError::into_inner) =
                        Arc::new(config);
                    self.forgiven.store(self.failures.load(Ordering::Relaxed), Ordering::Relaxed);
                    return;
                }
                Some(lost) => format!("{}: {lost}; that takes a restart", path.display()),
            },
            Err(error) => error.to_string(),
        };
        self.failures.fetch_add(1, Ordering::Relaxed);
        tracing::error!(problem, "web configuration not taken; the one before stays");
    }
}

fn seen(files: &[PathBuf]) -> Seen {
    let moment = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
    let of = |path: &PathBuf| {
        let m = std::fs::metadata(path).ok()?;
        let changed = moment(m.ctime(), m.ctime_nsec());
        Some((m.dev(), m.ino(), m.len(), moment(m.mtime(), m.mtime_nsec()), changed))
    };
    files.iter().map(of).collect()
}
