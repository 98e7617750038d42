//! Arguments that several tools have. Unknown fields are refused.

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

/// The page for these arguments, within the limits of rows.
pub(super) fn page(detail: bool, limit: Option<usize>, offset: usize) -> Page {
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

/// Reads the arguments of a tool.
pub(super) fn parse<T: DeserializeOwned>(arguments: Value) -> Result<T, ErrorData> {
    serde_json::from_value(arguments).map_err(|error| {
        let text = super::answer::text(&error.to_string(), 300);
        ErrorData::invalid_params(text, None)
    })
}

/// A day, as a number of hours.
pub(super) const fn a_day() -> u64 {
    24
}

/// Checks a number of hours.
pub(super) fn check_hours(hours: u64) -> Result<(), String> {
    if (1..=MAX_HOURS).contains(&hours) {
        return Ok(());
    }
    Err(format!("hours is {hours}; expected 1 to {MAX_HOURS}"))
}
