//! How the launches of a process are observed.

use crate::Nanos;

/// How launches of a process are observed, from the most that can be observed to the least.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum LaunchStep {
    /// Each is timed where it begins.
    #[default]
    Full,
    /// Those of the runtime are timed in the driver, where each of them ends up: one probe in place of two.
    DriverOnly,
    /// Each is counted, and one in so many is timed.
    Sampled {
        /// How many.
        one_in: u32,
    },
    /// So they are for this share of the time only; launches of the other time are estimated.
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
            Self::PartTime { share, one_in } => share / f64::from(one_in.max(1)),
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

/// What is known of launches that were not timed.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LaunchSampling {
    /// How launches are observed now.
    pub step: LaunchStep,
    /// Launches that were counted without being timed.
    pub untimed: u64,
    /// Launches while they were not observed, as many as there would be at the rate before. Never decreases.
    pub estimated: u64,
    /// For how long they were not observed.
    pub unobserved: Nanos,
}
