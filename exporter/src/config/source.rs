//! Where the configuration comes from: its file, and the flags that override it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gpucause_input::complaint::ConfigError;
use gpucause_input::duration::Span;
use gpucause_page::exposition::classic_buckets;
use gpucause_page::metric::Level;

use super::{Config, parse, read};
use crate::budget::Budget;
use crate::otlp::OtlpArgs;
use crate::peers::PeersArgs;

/// Flags that override the file.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// `--retention`.
    pub retention: Option<Duration>,
    /// `--probe.budget`.
    pub budget: Option<Budget>,
    /// `--probe.counting-limit`.
    pub counting_limit: Option<Budget>,
    /// `--probe.risky-single-steps`.
    pub risky_single_steps: bool,
    /// `--metrics.level`.
    pub level: Option<Level>,
    /// `--metrics.classic-buckets`.
    pub classic_buckets: Option<classic_buckets::Policy>,
    /// `--otlp.endpoint` and its kin.
    pub otlp: OtlpArgs,
    /// `--peers.url` and its kin.
    pub peers: PeersArgs,
}

impl Overrides {
    fn apply(&self, config: &mut Config) {
        if let Some(retention) = self.retention {
            config.retention = Span(retention);
        }
        if let Some(budget) = self.budget {
            config.probe.budget = budget;
        }
        if let Some(limit) = self.counting_limit {
            config.probe.counting_limit = limit;
        }
        config.probe.risky_single_steps |= self.risky_single_steps;
        if let Some(level) = self.level {
            config.metrics.level = level;
        }
        if let Some(policy) = self.classic_buckets {
            config.metrics.classic_buckets = policy;
        }
        self.otlp.apply(&mut config.otlp);
        self.peers.apply(&mut config.peers);
    }
}

/// The source of the configuration.
#[derive(Debug, Clone, Default)]
pub struct ConfigSource {
    /// The file.
    pub file: Option<PathBuf>,
    /// True if the defaults apply while there is no such file.
    pub optional: bool,
    /// Override it.
    pub overrides: Overrides,
}

/// The text of the file, or why there is none.
pub(crate) type Found = Result<String, Arc<ConfigError>>;

impl ConfigSource {
    /// The configuration to start with.
    ///
    /// # Errors
    /// When the file cannot be read or is invalid.
    pub fn load(&self) -> Result<Config, Arc<ConfigError>> {
        self.parse(&self.read())
    }

    pub(crate) fn read(&self) -> Found {
        match &self.file {
            Some(file) => read(file).map_err(Arc::new),
            None => Ok(String::new()),
        }
    }

    pub(crate) fn parse(&self, found: &Found) -> Result<Config, Arc<ConfigError>> {
        let mut config = match (found, &self.file) {
            (Ok(text), Some(file)) => parse(file, text)?,
            (Ok(_), None) => Config::default(),
            (Err(error), _) if error.is_missing() && self.optional => Config::default(),
            (Err(error), _) => return Err(Arc::clone(error)),
        };
        self.overrides.apply(&mut config);
        Ok(config)
    }
}
