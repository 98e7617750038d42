//! The configuration file: its keys, their defaults, and the errors in it.

mod launch_ops;
pub mod source;

use std::path::Path;

use gpucause_engine::settings::Settings;
use gpucause_input::complaint::{Complaint, ConfigError};
use gpucause_input::document::Document;
use gpucause_input::duration::Span;
use gpucause_input::text_file;
use gpucause_observe::series::groups::GroupLabels;
use gpucause_observe::series::process_filter::ProcessFilter;
use gpucause_observe::series::retention::Policy;
use gpucause_observe::series::settings::SeriesSettings;
use gpucause_page::exposition::classic_buckets;
use gpucause_page::metric::Level;
use serde::{Deserialize, Serialize};

use crate::budget::Budget;
use crate::otlp::OtlpSettings;
use crate::peers::PeersSettings;

pub use launch_ops::OpNames;

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Thresholds of causal chains; includes [`launch_ops`](Self::launch_ops).
    pub chains: Settings,
    /// The ops that count as launches.
    pub launch_ops: OpNames,
    /// The processes that are exported.
    pub processes: ProcessFilter,
    /// How long the series of an exited process are kept.
    pub retention: Span,
    /// Cardinality and client limits.
    pub limits: Limits,
    /// The probes.
    pub probe: ProbeSettings,
    /// The page of metrics.
    pub metrics: MetricsSettings,
    /// Chains as log records.
    pub otlp: OtlpSettings,
    /// The Prometheus that compares ranks on other hosts.
    pub peers: PeersSettings,
}

/// The page of metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MetricsSettings {
    /// How much it has of each process, where a scrape does not say.
    pub level: Level,
    /// Who gets classic buckets.
    pub classic_buckets: classic_buckets::Policy,
    /// The labels of processes that are exported as one; none for each on its own.
    pub group_by: GroupLabels,
}

/// The probes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProbeSettings {
    /// True if probes are to be attached; without them nothing is observed.
    pub enabled: bool,
    /// Share of a thread's time that call probes may take.
    pub budget: Budget,
    /// Share that they may take while they only count calls; above it a process is partly observed.
    pub counting_limit: Budget,
    /// On arm64, functions get probes also where the kernel must single-step an instruction: real processors go on at a wrong
    /// address at times. Read at start.
    pub risky_single_steps: bool,
}

impl Default for ProbeSettings {
    fn default() -> Self {
        let (budget, counting_limit) = (Budget::default(), Budget(Some(0.03)));
        Self { enabled: true, budget, counting_limit, risky_single_steps: false }
    }
}

impl ProbeSettings {
    /// Single-stepped functions get no probe. On x86-64 a step is slow, and no risk.
    pub(crate) const fn leaves_single_steps_out(&self) -> bool {
        cfg!(target_arch = "aarch64") && !self.risky_single_steps
    }

    /// The counting limit as a share; without one calls are counted whatever that costs.
    pub(crate) fn counting_share(&self) -> f64 {
        self.counting_limit.0.unwrap_or(f64::INFINITY)
    }
}

/// Cardinality limits, and limits on clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Live processes with series of their own.
    pub live_processes: usize,
    /// Exited processes with series of their own.
    pub exited_processes: usize,
    /// Series of a process's calls at the full level, about.
    pub series_per_process: usize,
    /// Culprits, or wakers, with series of their own, per process and metric.
    pub wait_names: usize,
    /// Concurrent scrapes.
    pub scrapes: u32,
    /// Open connections.
    pub connections: u32,
}

impl Default for Limits {
    fn default() -> Self {
        let series = SeriesSettings::default();
        Self {
            live_processes: series.live_processes,
            exited_processes: series.retention.max_ended,
            series_per_process: series.series_per_process,
            wait_names: series.wait_names,
            scrapes: 2,
            connections: 512,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            chains: Settings::default(),
            launch_ops: OpNames::default(),
            processes: ProcessFilter::default(),
            retention: Span(Policy::default().keep_for),
            limits: Limits::default(),
            probe: ProbeSettings::default(),
            metrics: MetricsSettings::default(),
            otlp: OtlpSettings::default(),
            peers: PeersSettings::default(),
        }
    }
}

impl Config {
    /// Parses a text.
    ///
    /// # Errors
    /// With all errors in it, in its order, or with the first one when it prevents the rest from being parsed.
    pub fn parse(text: &str) -> Result<Self, Vec<Complaint>> {
        let mut document = Document::parse(text).map_err(|complaint| vec![complaint])?;
        let (config, refusals) = document.read::<Self>();
        let mut complaints = Vec::new();
        if let Some(mut config) = config {
            config.chains.launch_ops = config.launch_ops.0;
            let own = config.complaints().into_iter().map(|(key, problem)| {
                let (key, position) = document.locate(&key);
                (Complaint { position, problem: format!("{key} {problem}") }, key)
            });
            let own = own.filter(|(_, key)| !refusals.concern(key));
            complaints.extend(own.map(|(complaint, _)| complaint));
            if complaints.is_empty() && refusals.is_empty() {
                return Ok(config);
            }
        }
        complaints.extend(refusals.into_complaints());
        complaints.sort_by_key(|complaint| complaint.position);
        Err(complaints)
    }

    /// Keys, with the errors in their values.
    fn complaints(&self) -> Vec<(String, String)> {
        let chains = self.chains.complaints().into_iter();
        let mut complaints: Vec<_> =
            chains.map(|c| (format!("chains.{}", c.key), c.problem)).collect();
        complaints.extend(self.processes.empty_entries().map(|key| {
            let form = "must have at least one of comm, exe, cgroup and user";
            (key, format!("is empty, and {form}"))
        }));
        let Limits {
            live_processes,
            exited_processes,
            series_per_process,
            wait_names,
            scrapes,
            connections,
        } = self.limits;
        let bounds = [
            ("limits.live_processes", live_processes as u64, 1..=8_192),
            ("limits.exited_processes", exited_processes as u64, 0..=2_048),
            ("limits.series_per_process", series_per_process as u64, 40..=100_000),
            ("limits.wait_names", wait_names as u64, 1..=100),
            ("limits.scrapes", scrapes.into(), 1..=16),
            ("limits.connections", connections.into(), 1..=65_536),
            // At least a few segments; at most what a daemon reads when it starts.
            ("otlp.spool_bytes", self.otlp.spool_bytes, 1 << 20..=1 << 30),
        ];
        for (key, value, accepted) in bounds {
            if !accepted.contains(&value) {
                let (least, most) = accepted.into_inner();
                let problem = format!("is {value}, and must be from {least} to {most}");
                complaints.push((key.to_owned(), problem));
            }
        }
        complaints
    }

    /// Why files that it names cannot be used: of headers, passwords and authorities.
    #[must_use]
    pub fn file_errors(&self) -> Vec<String> {
        let otlp = self.otlp.check().err().map(|error| error.to_string());
        let peers = self.peers.check().err().map(|error| error.to_string());
        otlp.into_iter().chain(peers).collect()
    }

    /// The defaults with a tenth of the budget, for a view beside an exporter on the host: both together keep to its budget and a tenth.
    #[must_use]
    pub fn beside_another() -> Self {
        let tenth = Budget(Budget::default().0.map(|share| share / 10.0));
        let probe =
            ProbeSettings { budget: tenth, counting_limit: tenth, ..ProbeSettings::default() };
        Self { probe, ..Self::default() }
    }

    /// The defaults without a probe budget, for the demonstration and recordings.
    #[must_use]
    pub fn without_budget() -> Self {
        let probe = ProbeSettings { budget: Budget(None), ..ProbeSettings::default() };
        Self { probe, ..Self::default() }
    }

    /// Which processes have series.
    #[must_use]
    pub fn series(&self) -> SeriesSettings {
        let Limits { live_processes, exited_processes, series_per_process, wait_names, .. } =
            self.limits;
        SeriesSettings {
            processes: self.processes.clone(),
            retention: Policy { keep_for: self.retention.0, max_ended: exited_processes },
            group_by: self.metrics.group_by.clone(),
            live_processes,
            series_per_process,
            wait_names,
        }
    }
}

fn read(path: &Path) -> Result<String, ConfigError> {
    text_file::read(path).map_err(|source| ConfigError::Unreadable { path: path.into(), source })
}

/// Loads a file.
///
/// # Errors
/// When it cannot be read, or is invalid.
pub fn load(path: &Path) -> Result<Config, ConfigError> {
    parse(path, &read(path)?)
}

fn parse(path: &Path, text: &str) -> Result<Config, ConfigError> {
    let invalid = |complaints| ConfigError::Invalid { path: path.into(), complaints };
    Config::parse(text).map_err(invalid)
}

#[cfg(test)]
mod tests;
