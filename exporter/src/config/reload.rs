//! Taking another configuration while the daemon runs: when its file changes, on SIGHUP, and when asked over HTTP. One that
//! is not valid changes nothing.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::MissedTickBehavior;

use super::watch::FolderWatch;
use super::{Config, ConfigError, parse, read};
use crate::budget::Budget;
use crate::daemon::Daemon;
use crate::duration::Span;
use crate::server::{LimitsHandle, ReloadRequests};
use crate::service_manager::ServiceManager;

/// How often the file is looked at although nothing told of a change, as on network file systems nothing does.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// What the command line sets whatever the file says.
#[derive(Debug, Clone, Copy, Default)]
pub struct Overrides {
    /// That of `--retention`.
    pub retention: Option<Duration>,
    /// That of `--probe.budget`.
    pub budget: Option<Budget>,
}

/// Where the configuration comes from.
#[derive(Debug, Clone, Default)]
pub struct ConfigSource {
    /// The file.
    pub file: Option<PathBuf>,
    /// Whether the defaults do while there is no such file.
    pub optional: bool,
    /// What wins over it.
    pub overrides: Overrides,
}

/// The text of a file, or why there is none.
type Found = Result<String, Arc<ConfigError>>;

impl ConfigSource {
    /// The configuration to start with.
    ///
    /// # Errors
    /// When the file cannot be read or says something wrong.
    pub fn load(&self) -> Result<Config, Arc<ConfigError>> {
        self.judge(&self.find())
    }

    fn find(&self) -> Found {
        match &self.file {
            Some(file) => read(file).map_err(Arc::new),
            None => Ok(String::new()),
        }
    }

    fn judge(&self, found: &Found) -> Result<Config, Arc<ConfigError>> {
        let mut config = match (found, &self.file) {
            (Ok(text), Some(file)) => parse(file, text)?,
            (Ok(_), None) => Config::default(),
            (Err(error), _) if error.is_missing() && self.optional => Config::default(),
            (Err(error), _) => return Err(Arc::clone(error)),
        };
        if let Some(retention) = self.overrides.retention {
            config.retention = Span(retention);
        }
        if let Some(budget) = self.overrides.budget {
            config.probe.budget = budget;
        }
        Ok(config)
    }
}

/// Takes configurations into effect.
#[derive(Debug)]
pub struct Reloader {
    source: ConfigSource,
    daemon: Arc<Daemon>,
    limits: LimitsHandle,
    manager: ServiceManager,
    hangup: Signal,
    /// What the file was when last looked at, as far as it matters whether it is another now.
    seen: Result<String, String>,
}

fn seen(found: &Found) -> Result<String, String> {
    found.clone().map_err(|error| error.to_string())
}

impl Reloader {
    /// Catches SIGHUP from now on.
    ///
    /// # Errors
    /// When the signal cannot be caught.
    pub fn new(
        source: ConfigSource,
        daemon: Arc<Daemon>,
        limits: LimitsHandle,
        manager: ServiceManager,
    ) -> io::Result<Self> {
        let hangup = signal(SignalKind::hangup())?;
        // No file is like this, so the first look is at something new.
        let seen = Err(String::new());
        Ok(Self { source, daemon, limits, manager, hangup, seen })
    }

    /// Reloads whenever there is reason to, for ever.
    pub async fn run(mut self, mut requests: ReloadRequests) {
        let mut watch = FolderWatch::new();
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if let Some(file) = &self.source.file {
                watch.follow(file);
            }
            tokio::select! {
                () = watch.changed() => self.look().await,
                _ = ticks.tick() => self.look().await,
                _ = self.hangup.recv() => {
                    tracing::info!(signal = "SIGHUP", "reloading the configuration");
                    // The log and the metrics tell how it went.
                    let _ = self.reload().await;
                }
                request = requests.next() => request.answer(self.reload().await),
            }
        }
    }

    /// Reloads if the file is not what it was.
    async fn look(&mut self) {
        let found = self.find().await;
        if seen(&found) == self.seen {
            return;
        }
        let running = self.daemon.config();
        // The file that the daemon has started with is no news.
        if self.seen == Err(String::new())
            && self.source.judge(&found).is_ok_and(|config| config == *running)
        {
            self.seen = seen(&found);
            return;
        }
        // A file that vanishes leaves the running configuration in place, even where it need not exist.
        if let Err(error) = &found
            && error.is_missing()
        {
            self.seen = seen(&found);
            self.refuse(error);
            return;
        }
        let _ = self.take(found).await;
    }

    async fn reload(&mut self) -> Result<(), String> {
        let found = self.find().await;
        self.take(found).await
    }

    async fn take(&mut self, found: Found) -> Result<(), String> {
        let manager = self.manager.clone();
        let mut telling = manager.reload();
        let taken = self.judge_and_take(found).await;
        if let Err(error) = &taken {
            telling.refused(error);
        }
        taken
    }

    async fn judge_and_take(&mut self, found: Found) -> Result<(), String> {
        self.seen = seen(&found);
        let config = match self.source.judge(&found) {
            Ok(config) => config,
            Err(error) => {
                self.refuse(&error);
                return Err(error.to_string());
            }
        };
        self.limits.resize(config.limits.connections, config.limits.scrapes);
        let (daemon, config) = (Arc::clone(&self.daemon), Arc::new(config));
        // It changes a kernel map.
        let configured = tokio::task::spawn_blocking(move || daemon.configure(config)).await;
        if let Err(error) = configured {
            tracing::error!(%error, "the configuration was not taken");
            return Err("the configuration was not taken; the log says why".into());
        }
        match &self.source.file {
            Some(file) => tracing::info!(file = %file.display(), "configuration reloaded"),
            None => tracing::info!("there is no configuration file; --config.file names one"),
        }
        Ok(())
    }

    fn refuse(&self, error: &ConfigError) {
        // One line, however much is wrong.
        let error = error.to_string().replace('\n', "; ");
        tracing::error!(error, "the configuration was not reloaded; the running one stays");
        self.daemon.config_rejected();
    }

    /// Reads on another thread: a network file system may take its time.
    async fn find(&self) -> Found {
        let source = self.source.clone();
        tokio::task::spawn_blocking(move || source.find()).await.unwrap_or_else(|_| {
            let path = self.source.file.clone().unwrap_or_default();
            Err(Arc::new(ConfigError::NoText { path, problem: "reading it failed" }))
        })
    }
}
