//! Which histograms of a page have finite classic buckets. All have `_sum` and `_count`: their rates and means. A family without finite
//! buckets is a summary without quantiles in the text formats: there `+Inf` would only repeat the count of every series.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Format;
use crate::family::{Family, Sample};
use crate::metric::{ALL_REASONS, Kind, LAUNCH_DURATION, Level, Metric, OFFCPU_DURATION};
use gpucause_abi::state::Role;

/// When classic buckets are exposed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Policy {
    /// To clients that do not accept native histograms.
    #[default]
    Auto,
    /// To every client.
    Always,
}

impl Policy {
    /// Every policy.
    pub const ALL: [Self; 2] = [Self::Auto, Self::Always];

    /// The word for it in flags and configuration.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Always => "always",
        }
    }
}

/// Why text is not a [`Policy`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown value {0:?}; known values: auto, always")]
pub struct PolicyError(String);

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let known = Self::ALL.into_iter().find(|policy| policy.label() == text);
        known.ok_or_else(|| PolicyError(text.to_owned()))
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.label())
    }
}

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|_| {
            serde::de::Error::custom(format!("is {text:?}, and must be auto or always"))
        })
    }
}

/// The histograms of a page that have finite classic buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClassicBuckets {
    /// None.
    None,
    /// Launches, and off-CPU time of dispatchers over all reasons: rules and alerts evaluate their tails.
    Tails,
    /// Every one.
    All,
}

impl ClassicBuckets {
    /// Returns the histograms with finite classic buckets on a page at this level and in this format.
    #[must_use]
    pub const fn of(format: Format, level: Level, policy: Policy) -> Self {
        match (format, policy, level) {
            (Format::Protobuf, Policy::Auto, _) | (_, _, Level::Fleet) => Self::None,
            (_, _, Level::Standard) => Self::Tails,
            (_, _, Level::Full) => Self::All,
        }
    }

    /// Returns true if any histogram of a family has finite classic buckets.
    #[must_use]
    pub fn has_any(self, metric: &Metric) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Tails => [LAUNCH_DURATION.name, OFFCPU_DURATION.name].contains(&metric.name),
        }
    }

    /// The type of a family in the text formats.
    #[must_use]
    pub fn type_name(self, metric: &Metric) -> &'static str {
        match metric.kind {
            Kind::Histogram if !self.has_any(metric) => "summary",
            kind => kind.type_name(),
        }
    }

    /// Returns true if a histogram has finite classic buckets.
    #[must_use]
    pub fn has(self, family: &Family, sample: &Sample) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Tails if family.metric.name == LAUNCH_DURATION.name => true,
            Self::Tails => {
                let is_all = || {
                    let labels = sample.labels.get(2..).unwrap_or_default();
                    let expected = [Role::Dispatcher.label(), ALL_REASONS];
                    labels.iter().map(crate::family::LabelValue::as_str).eq(expected)
                };
                family.metric.name == OFFCPU_DURATION.name && is_all()
            }
        }
    }
}
