//! How the calls of a process are observed.

use crate::Nanos;

/// How launches of a process are observed, from the most that can be observed to the least.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum LaunchStep {
    /// Each is timed where it begins.
    #[default]
    Full,
    /// Launches by the runtime are timed in the driver, where each of them ends up: one probe in place of two.
    DriverOnly,
    /// Each is counted, and one in so many is timed.
    Sampled {
        /// How many.
        one_in: u32,
    },
    /// So they are for this share of the time only: the process is partly observed.
    PartTime {
        /// Above 0 and below 1.
        share: f64,
        /// One in so many is timed meanwhile.
        one_in: u32,
    },
}

impl LaunchStep {
    /// Share of launches that are timed.
    pub fn timed_share(self) -> f64 {
        match self {
            Self::Full | Self::DriverOnly => 1.0,
            Self::Sampled { one_in } => 1.0 / f64::from(one_in.max(1)),
            Self::PartTime { one_in, .. } => self.observed_share() / f64::from(one_in.max(1)),
        }
    }

    /// Share of the time for which calls are counted.
    pub const fn observed_share(self) -> f64 {
        match self {
            Self::PartTime { share, .. } => share,
            _ => 1.0,
        }
    }

    /// Value of the `step` label.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::DriverOnly => "driver_only",
            Self::Sampled { .. } => "sampled",
            Self::PartTime { .. } => "part_time",
        }
    }
}

/// A rate that was not counted, with how far it may be off.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RateEstimate {
    /// Launches a second.
    pub per_second: f64,
    /// `per_second` is off by at most this share of it, with a probability of 95 %.
    pub error: f64,
}

/// How calls are observed, and what is known of those that were not timed.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LaunchSampling {
    /// How launches are observed now.
    pub step: LaunchStep,
    /// True while calls that only ask for attributes are left out.
    pub without_queries: bool,
    /// One in so many asynchronous calls is timed, the others are counted; 0 for all.
    pub async_one_in: u32,
    /// Outermost launches that were counted without being timed.
    pub untimed: u64,
    /// For how long calls were counted.
    pub observed: Nanos,
    /// For how long they were not.
    pub unobserved: Nanos,
    /// The rate of the last seconds, while the process is partly observed and where it is known.
    pub rate: Option<RateEstimate>,
}
