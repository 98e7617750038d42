//! Reloads the configuration when its file changes, on SIGHUP, and on HTTP request. An invalid one changes nothing.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use gpucause_http::server::LimitsHandle;
use gpucause_input::complaint::ConfigError;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::MissedTickBehavior;

use super::watch::FolderWatch;
use crate::config::source::{ConfigSource, Found};
use crate::daemon::Daemon;
use crate::routes::ReloadRequests;
use crate::service_manager::ServiceManager;

/// How often the file is polled: network file systems report no changes.
const POLL_INTERVAL: Duration = Duration::from_secs(10);

/// Applies configurations.
#[derive(Debug)]
pub(super) struct Reloader {
    source: ConfigSource,
    daemon: Arc<Daemon>,
    limits: LimitsHandle,
    manager: ServiceManager,
    hangup: Signal,
    /// The file at the last poll or reload, to detect changes.
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
    pub(super) fn new(
        source: ConfigSource,
        daemon: Arc<Daemon>,
        limits: LimitsHandle,
        manager: ServiceManager,
    ) -> io::Result<Self> {
        let hangup = signal(SignalKind::hangup())?;
        // Differs from any file, so that the first poll evaluates it.
        let seen = Err(String::new());
        Ok(Self { source, daemon, limits, manager, hangup, seen })
    }

    /// Reloads until aborted.
    pub(super) async fn run(mut self, mut requests: ReloadRequests) {
        let mut watch = FolderWatch::new();
        let mut ticks = tokio::time::interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if let Some(file) = &self.source.file {
                watch.follow(file);
            }
            tokio::select! {
                () = watch.changed() => self.poll().await,
                _ = ticks.tick() => self.poll().await,
                _ = self.hangup.recv() => {
                    tracing::info!(signal = "SIGHUP", "reloading the configuration");
                    // The log and the metrics report the outcome.
                    let _ = self.reload().await;
                }
                request = requests.next() => request.answer(self.reload().await),
            }
        }
    }

    /// Reloads if the file has changed.
    async fn poll(&mut self) {
        let found = self.read().await;
        if seen(&found) == self.seen {
            return;
        }
        let running = self.daemon.config();
        // The daemon was started with this configuration.
        if self.seen == Err(String::new())
            && self.source.parse(&found).is_ok_and(|config| config == *running)
        {
            self.seen = seen(&found);
            return;
        }
        // Deleting the file does not restore the defaults, even where it is optional.
        if let Err(error) = &found
            && error.is_missing()
        {
            self.seen = seen(&found);
            self.refuse(error);
            return;
        }
        let _ = self.apply(found).await;
    }

    async fn reload(&mut self) -> Result<(), String> {
        let found = self.read().await;
        self.apply(found).await
    }

    async fn apply(&mut self, found: Found) -> Result<(), String> {
        let manager = self.manager.clone();
        let mut reload = manager.reload();
        let applied = self.try_apply(found).await;
        if let Err(error) = &applied {
            reload.failed(error);
        }
        applied
    }

    async fn try_apply(&mut self, found: Found) -> Result<(), String> {
        self.seen = seen(&found);
        let config = match self.source.parse(&found) {
            Ok(config) => config,
            Err(error) => {
                self.refuse(&error);
                return Err(error.to_string());
            }
        };
        self.limits.resize(config.limits.connections, config.limits.scrapes);
        let (daemon, config) = (Arc::clone(&self.daemon), Arc::new(config));
        // Blocks: it changes a kernel map.
        let configured = tokio::task::spawn_blocking(move || daemon.configure(config)).await;
        if let Err(error) = configured {
            tracing::error!(%error, "the configuration could not be applied");
            return Err("the configuration could not be applied; see the log".into());
        }
        match &self.source.file {
            Some(file) => tracing::info!(file = %file.display(), "configuration reloaded"),
            None => tracing::info!("no configuration file; set one with --config.file"),
        }
        Ok(())
    }

    fn refuse(&self, error: &ConfigError) {
        // One log line, however many errors there are.
        let error = error.to_string().replace('\n', "; ");
        tracing::error!(
            error,
            "configuration reload failed; the previous configuration is still active"
        );
        self.daemon.config_rejected();
    }

    /// Reads on a blocking thread: a network file system may be slow.
    async fn read(&self) -> Found {
        let source = self.source.clone();
        tokio::task::spawn_blocking(move || source.read()).await.unwrap_or_else(|_| {
            let path = self.source.file.clone().unwrap_or_default();
            let source = io::Error::other("reading it failed");
            Err(Arc::new(ConfigError::Unreadable { path, source }))
        })
    }
}
