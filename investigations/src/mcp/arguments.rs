//! Arguments of the tools. Unknown fields are refused.

use std::time::Duration;

use rmcp::model::ErrorData;
use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::answer::Page;

/// Default and largest number of rows.
const LIMITS: (usize, usize) = (10, 200);
/// Longest time that costs are added up over, and chains are listed of: 31 days.
const MAX_HOURS: u64 = 24 * 31;
/// Longest demonstration.
pub(super) const MAX_DEMO: Duration = Duration::from_secs(60);

fn page(detail: bool, limit: Option<usize>, offset: usize) -> Page {
    let limit = limit.unwrap_or(LIMITS.0).clamp(1, LIMITS.1);
    Page { offset, limit, detail }
}

/// Nothing.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

/// Which rows of a list.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Rows {
    /// Only of the process with this PID.
    pub(super) pid: Option<u32>,
    /// Only of processes with this name, such as train.py.
    pub(super) comm: Option<String>,
    /// Only of the node with this name.
    pub(super) node: Option<String>,
    /// More of each row, and more bytes in all.
    #[serde(default)]
    detail: bool,
    /// Rows at most; 10 unless given, 200 at most.
    limit: Option<usize>,
    /// Rows to skip.
    #[serde(default)]
    offset: usize,
}

impl Rows {
    pub(super) fn page(&self) -> Page {
        page(self.detail, self.limit, self.offset)
    }

    pub(super) fn includes(&self, node: &str, pid: u32, comm: &str) -> bool {
        self.pid.is_none_or(|asked| asked == pid)
            && self.comm.as_deref().is_none_or(|asked| asked == comm)
            && self.node.as_deref().is_none_or(|asked| asked == node)
    }
}

/// Which stacks.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StackRows {
    /// Only of the process with this PID.
    pub(super) pid: Option<u32>,
    /// Only of calls of this function, such as cudaLaunchKernel.
    pub(super) op: Option<String>,
    /// Only of calls that took at least so many microseconds.
    #[serde(default)]
    pub(super) at_least_us: u64,
    /// All frames, and more bytes in all.
    #[serde(default)]
    detail: bool,
    /// Stacks at most; 10 unless given, 200 at most.
    limit: Option<usize>,
    /// Stacks to skip.
    #[serde(default)]
    offset: usize,
}

impl StackRows {
    pub(super) fn page(&self) -> Page {
        page(self.detail, self.limit, self.offset)
    }
}

/// A question in SQL.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Sql {
    /// One SELECT statement in SQLite's dialect.
    pub(super) sql: String,
    /// Longer texts, and more bytes in all.
    #[serde(default)]
    detail: bool,
    /// Rows at most; 10 unless given, 200 at most.
    limit: Option<usize>,
    /// Rows to skip.
    #[serde(default)]
    offset: usize,
}

impl Sql {
    pub(super) fn page(&self) -> Page {
        page(self.detail, self.limit, self.offset)
    }
}

/// Period and grouping of the costs.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Costs {
    /// Over so many last hours, 1 to 744; 24 unless given.
    #[serde(default = "a_day")]
    pub(super) hours: u64,
    /// A row for each: cause, namespace, user, slurm_job or comm, the name of the process; cause unless given.
    #[serde(default)]
    pub(super) by: By,
    /// More bytes in all.
    #[serde(default)]
    detail: bool,
    /// Rows at most; 10 unless given, 200 at most.
    limit: Option<usize>,
    /// Rows to skip.
    #[serde(default)]
    offset: usize,
}

impl Costs {
    pub(super) fn page(&self) -> Page {
        page(self.detail, self.limit, self.offset)
    }
}

const fn a_day() -> u64 {
    24
}

/// Label by which costs are added up.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum By {
    #[default]
    Cause,
    Namespace,
    User,
    SlurmJob,
    Comm,
}

impl By {
    /// The label.
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Cause => "cause",
            Self::Namespace => "namespace",
            Self::User => "user",
            Self::SlurmJob => "slurm_job",
            Self::Comm => "comm",
        }
    }
}

/// Which ranks are compared.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Outliers {
    /// Only of the Slurm job with this number, or of this Kubernetes namespace.
    pub(super) job: Option<String>,
    /// Only of processes with this name, such as train.py.
    pub(super) comm: Option<String>,
    /// All measures of each outlier, and more bytes in all.
    #[serde(default)]
    detail: bool,
    /// Rows at most; 10 unless given, 200 at most.
    limit: Option<usize>,
    /// Rows to skip.
    #[serde(default)]
    offset: usize,
}

impl Outliers {
    pub(super) fn page(&self) -> Page {
        page(self.detail, self.limit, self.offset)
    }
}

/// Which chains of the past.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct History {
    /// Only what lasted within so many hours before until, 1 to 744; 24 unless given.
    #[serde(default = "a_day")]
    pub(super) hours: u64,
    /// Seconds since the Unix epoch; now unless given.
    pub(super) until: Option<f64>,
    /// Only of the node with this name.
    pub(super) node: Option<String>,
    /// Only of the Slurm job with this number, or of this Kubernetes namespace or user.
    pub(super) job: Option<String>,
    /// Only of victims with this name, such as train.py.
    pub(super) comm: Option<String>,
    /// Only of this cause, such as cpu_preemption.
    pub(super) cause: Option<String>,
    /// The fix and the evidence of each chain, and more bytes in all.
    #[serde(default)]
    detail: bool,
    /// Rows at most; 10 unless given, 200 at most.
    limit: Option<usize>,
    /// Rows to skip.
    #[serde(default)]
    offset: usize,
}

impl History {
    pub(super) fn page(&self) -> Page {
        page(self.detail, self.limit, self.offset)
    }
}

/// Which demonstration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Demo {
    /// The fault to demonstrate, such as cpu-contention.
    pub(super) scenario: String,
    /// For how long, 10 to 60; 45 unless given.
    #[serde(default = "usual")]
    pub(super) seconds: u64,
}

const fn usual() -> u64 {
    45
}

/// Arguments of a tool.
pub(super) fn parse<T: DeserializeOwned>(arguments: Value) -> Result<T, ErrorData> {
    serde_json::from_value(arguments).map_err(|error| {
        let text = super::answer::text(&error.to_string(), 300);
        ErrorData::invalid_params(text, None)
    })
}

pub(super) fn none(arguments: Value) -> Result<(), ErrorData> {
    parse(arguments).map(|Nothing {}| ())
}

/// Costs of a valid time.
pub(super) fn costs(arguments: Value) -> Result<Costs, ErrorData> {
    let costs: Costs = parse(arguments)?;
    valid_hours(costs.hours).map(|()| costs)
}

/// Chains of a valid time.
pub(super) fn history(arguments: Value) -> Result<History, ErrorData> {
    let history: History = parse(arguments)?;
    valid_hours(history.hours)?;
    match history.until {
        // Until the year 2100.
        Some(until) if !(1.0..4_102_444_800.0).contains(&until) => {
            let text = format!("until is {until}; expected seconds since the Unix epoch");
            Err(ErrorData::invalid_params(text, None))
        }
        _ => Ok(history),
    }
}

fn valid_hours(hours: u64) -> Result<(), ErrorData> {
    if (1..=MAX_HOURS).contains(&hours) {
        return Ok(());
    }
    let text = format!("hours is {hours}; expected 1 to {MAX_HOURS}");
    Err(ErrorData::invalid_params(text, None))
}

/// A demonstration of valid length.
pub(super) fn demo(arguments: Value) -> Result<Demo, ErrorData> {
    let demo: Demo = parse(arguments)?;
    if (10..=MAX_DEMO.as_secs()).contains(&demo.seconds) {
        return Ok(demo);
    }
    let text = format!("seconds is {}; expected 10 to {}", demo.seconds, MAX_DEMO.as_secs());
    Err(ErrorData::invalid_params(text, None))
}
