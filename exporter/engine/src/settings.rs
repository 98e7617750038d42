//! User settings: thresholds, enabled rules, and which ops count as launches.

use std::collections::BTreeMap;
use std::fmt;

use gpucause_abi::op::LaunchOps;
use serde::{Deserialize, Serialize};

use crate::chain::{Cause, Severity};

/// Bound on [`Settings::max_chains`].
const MAX_CHAINS: usize = 100_000;

/// Settings of the engine. Every field has a default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Share of an effect that a cause must explain to be reported, 0 to 1. Default 0: every cause that costs enough.
    pub explained_share: f64,
    /// Least calls for a tail.
    pub min_calls: u64,
    /// Least p99 / p50 of a tail.
    pub min_spread: f64,
    /// Least p99 of a tail, in seconds.
    pub min_launch_p99_seconds: f64,
    /// Least drop of the launch rate, as a share of the process's usual rate.
    pub min_rate_drop: f64,
    /// Age at which a call counts as hung, in seconds.
    pub hang_seconds: f64,
    /// Age at which a call that waits for the GPU counts as hung, in seconds.
    pub hang_in_sync_seconds: f64,
    /// Longest warm-up of a process, in seconds: evaluation begins once it launches without loading kernels, building graphs or
    /// filling memory, and after this time at the latest.
    pub warm_up_seconds: f64,
    /// How long device memory must grow to count as a leak, in seconds.
    pub leak_seconds: f64,
    /// Least growth that counts as a leak, in bytes.
    pub leak_bytes: u64,
    /// How long a chain stays open after it was last seen, in seconds: a detection within this time extends it.
    pub keep_open_seconds: f64,
    /// Limit of chains in memory; the oldest are removed first.
    pub max_chains: usize,
    /// See [`Severities`].
    pub severities: Severities,
    /// Ops that count as launches. Set in another section of the configuration, since the kernel programs use them too.
    #[serde(skip)]
    pub launch_ops: LaunchOps,
    /// Settings per cause.
    pub rules: BTreeMap<Cause, RuleSettings>,
}

/// Settings of one rule.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RuleSettings {
    /// True if the rule is evaluated.
    pub enabled: bool,
    /// Overrides [`Settings::explained_share`].
    pub explained_share: Option<f64>,
    /// Least lost share of a chain, 0 to 1; overrides the rule's default, usually severity `low`.
    pub min_lost_share: Option<f64>,
}

impl Default for RuleSettings {
    fn default() -> Self {
        Self { enabled: true, explained_share: None, min_lost_share: None }
    }
}

/// Least lost share of the victim thread's time for each severity, 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Severities {
    /// Chains below this are not reported.
    pub low: f64,
    /// Threshold of medium.
    pub medium: f64,
    /// Threshold of high.
    pub high: f64,
    /// Threshold of critical.
    pub critical: f64,
}

impl Default for Severities {
    fn default() -> Self {
        Self { low: 0.02, medium: 0.1, high: 0.25, critical: 0.5 }
    }
}

impl Severities {
    /// The severity of a lost share that is at least [`low`](Self::low).
    pub fn of(&self, taken_share: f64) -> Severity {
        match taken_share {
            share if share >= self.critical => Severity::Critical,
            share if share >= self.high => Severity::High,
            share if share >= self.medium => Severity::Medium,
            _ => Severity::Low,
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            explained_share: 0.0,
            min_calls: 100,
            min_spread: 5.0,
            min_launch_p99_seconds: 100e-6,
            min_rate_drop: 0.2,
            hang_seconds: 10.0,
            hang_in_sync_seconds: 60.0,
            warm_up_seconds: 60.0,
            leak_seconds: 300.0,
            leak_bytes: 64 << 20,
            keep_open_seconds: 60.0,
            max_chains: 1_000,
            severities: Severities::default(),
            launch_ops: LaunchOps::default(),
            rules: BTreeMap::new(),
        }
    }
}

impl Settings {
    /// Settings of the rule for a cause.
    pub fn rule(&self, cause: Cause) -> RuleSettings {
        self.rules.get(&cause).copied().unwrap_or_default()
    }

    /// Invalid values.
    pub fn complaints(&self) -> Vec<Complaint> {
        let mut complaints = Vec::new();
        let mut complain = |key: &str, problem: String| {
            complaints.push(Complaint { key: key.into(), problem });
        };
        for (key, value) in self.shares() {
            if !(0.0..=1.0).contains(&value) {
                complain(&key, format!("is {value}, and must be from 0 to 1"));
            }
        }
        let seconds = [
            ("min_launch_p99_seconds", self.min_launch_p99_seconds),
            ("hang_seconds", self.hang_seconds),
            ("hang_in_sync_seconds", self.hang_in_sync_seconds),
            ("warm_up_seconds", self.warm_up_seconds),
            ("leak_seconds", self.leak_seconds),
            ("keep_open_seconds", self.keep_open_seconds),
        ];
        for (key, value) in seconds {
            if !(value > 0.0 && value < 1e6) {
                complain(
                    key,
                    format!(
                        "is {value}, and must be a number of seconds above 0 and below a million"
                    ),
                );
            }
        }
        if !(1.0..1e6).contains(&self.min_spread) {
            complain("min_spread", format!("is {}, and must be at least 1", self.min_spread));
        }
        if !(1..=MAX_CHAINS).contains(&self.max_chains) {
            let problem = format!("is {}, and must be from 1 to {MAX_CHAINS}", self.max_chains);
            complain("max_chains", problem);
        }
        let Severities { low, medium, high, critical } = self.severities;
        if low > medium || medium > high || high > critical {
            let problem = format!(
                "are low {low}, medium {medium}, high {high} and critical {critical}, and must not descend"
            );
            complain("severities", problem);
        }
        complaints
    }

    /// Every share, by key.
    fn shares(&self) -> Vec<(String, f64)> {
        let mut shares = vec![
            ("explained_share".to_owned(), self.explained_share),
            ("min_rate_drop".to_owned(), self.min_rate_drop),
            ("severities.low".to_owned(), self.severities.low),
            ("severities.medium".to_owned(), self.severities.medium),
            ("severities.high".to_owned(), self.severities.high),
            ("severities.critical".to_owned(), self.severities.critical),
        ];
        for (cause, rule) in &self.rules {
            let own = [
                ("explained_share", rule.explained_share),
                ("min_lost_share", rule.min_lost_share),
            ];
            let own = own.into_iter().filter_map(|(key, value)| Some((key, value?)));
            shares.extend(own.map(|(key, value)| (format!("rules.{cause}.{key}"), value)));
        }
        shares
    }
}

/// An invalid setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complaint {
    /// The key with its sections, separated by dots.
    pub key: String,
    /// Its value and the accepted form, as in `is 2, and must be from 0 to 1`.
    pub problem: String,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.key, self.problem)
    }
}
