//! Flags of `gpucause replay` and `gpucause view`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

use crate::config::source::{ConfigSource, Overrides};
use crate::flags::{MetricsArgs, WebArgs};
use crate::logging;

/// Flags of `gpucause replay`.
#[derive(Debug, Clone, Args)]
pub struct ReplayArgs {
    /// The recording
    #[arg(long, value_name = "FILE")]
    pub db: PathBuf,
    /// Name of the node to replay; required if the recording has several
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Seconds of the recording that pass in a second, such as 10 or 0.5; rates are multiplied by this
    #[arg(long, value_name = "FACTOR", default_value = "1")]
    pub speed: Speed,
    /// Exit when the recording is over, instead of serving the last page until a signal
    #[arg(long)]
    pub exit: bool,
    /// Flags of the HTTP server.
    #[command(flatten)]
    pub web: WebArgs,
    /// Configuration file of the exporter, for the thresholds of chains
    #[arg(long = "config.file", value_name = "PATH")]
    pub config_file: Option<PathBuf>,
    /// Flags of the page of metrics.
    #[command(flatten)]
    pub metrics: MetricsArgs,
    /// Flags of the log.
    #[command(flatten)]
    pub log: logging::LogArgs,
}

impl ReplayArgs {
    /// Where the configuration comes from.
    #[must_use]
    pub fn config_source(&self) -> ConfigSource {
        let MetricsArgs { level, classic_buckets } = self.metrics;
        let overrides = Overrides { level, classic_buckets, ..Overrides::default() };
        ConfigSource { file: self.config_file.clone(), optional: false, overrides }
    }
}

/// Flags of `gpucause view`.
#[derive(Debug, Clone, Args)]
pub struct ViewArgs {
    /// The trace file
    #[arg(value_name = "FILE")]
    pub db: PathBuf,
    /// Name of the node to show; required if the file has several
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Port on the loopback address, or 0 for any that is free
    #[arg(long, value_name = "PORT", default_value = "0")]
    pub port: u16,
}

/// How many seconds of a recording pass in a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed(pub f64);

/// The least and the highest speed.
const SPEEDS: (f64, f64) = (0.01, 1000.0);

impl FromStr for Speed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (least, most) = SPEEDS;
        match text.parse() {
            Ok(speed) if (least..=most).contains(&speed) => Ok(Self(speed)),
            _ => Err(format!("invalid speed {text:?}; expected a number from {least} to {most}")),
        }
    }
}
