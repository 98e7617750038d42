//! Flags of `gpucause check`.

use clap::Args;

use crate::flags::ExporterArgs;
use crate::store_url::{PrometheusLogin, PrometheusUrl};

/// Exit status of `gpucause check`.
pub(crate) const STATUS: &str = "\
States:
  ok           Passed
  unsupported  This kernel or library does not have it; the exporter runs without it
  disabled     Off, or not permitted; the exporter runs without it
  failed       Has to be fixed; the line says how

Exit status:
  0   No point failed
  1   A point failed
  64  Invalid command line
  78  The configuration, the web configuration, or a file that either or a flag names cannot be used";

/// Flags of `gpucause check`: those of the exporter, and its own.
#[derive(Debug, Clone, Args)]
pub struct CheckArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Check whether the Prometheus at this address scrapes this host and has the rules, such as http://prometheus:9090
    #[arg(long, value_name = "URL")]
    pub prometheus: Option<PrometheusUrl>,
    /// Flags of the login at that Prometheus.
    #[command(flatten)]
    pub prometheus_login: PrometheusLogin,
    /// Flags of the exporter.
    #[command(flatten)]
    pub exporter: ExporterArgs,
}
