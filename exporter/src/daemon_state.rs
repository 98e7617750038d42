//! The daemon itself, beside what it observes: its files, and where it sends chains.

use gpucause_http::web_config::WebConfigState;

use crate::otlp::OtlpCounts;
use crate::peers::PeersState;

/// State of the daemon when a page is written.
#[derive(Debug, Clone, Default)]
pub struct DaemonState {
    /// How the last reload of the configuration went.
    pub config: ConfigState,
    /// How reloads of the web configuration went, if there is one.
    pub web_config: Option<WebConfigState>,
    /// Files of the flight recorder by outcome, where there is one.
    pub flights: Option<[(&'static str, u64); 3]>,
    /// Counts of the records of logged chains, where chains are logged.
    pub otlp: Option<OtlpCounts>,
    /// Outcomes of requests about ranks on other hosts, where a Prometheus is asked.
    pub peers: Option<PeersState>,
}

impl DaemonState {
    /// State of a daemon without files and receivers.
    pub const PLAIN: Self = Self {
        config: ConfigState { successful: true, taken_at: 0.0 },
        web_config: None,
        flights: None,
        otlp: None,
        peers: None,
    };
}

/// How the last reload of the configuration went.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ConfigState {
    /// True if the new configuration is active.
    pub successful: bool,
    /// When a configuration was last loaded, in seconds since the Unix epoch.
    pub taken_at: f64,
}

impl Default for ConfigState {
    fn default() -> Self {
        DaemonState::PLAIN.config
    }
}
