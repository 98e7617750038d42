//! How the calls of a process are observed.

use gpucause_abi::snapshot::LaunchStep;

/// Sampling: one in so many launches is timed.
pub(crate) const ONE_IN: u32 = 64;

/// How calls are observed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Rung {
    /// Each is timed.
    Full,
    /// But for queries.
    WithoutQueries,
    /// Launches of the runtime are timed in the driver.
    DriverOnly,
    /// Launches are counted, and sampled.
    Sampled,
    /// So are asynchronous calls.
    AsyncsSampled,
    /// For this share of the time.
    PartTime(f64),
}

impl Rung {
    /// How it observes launches.
    pub(crate) const fn step(self) -> LaunchStep {
        match self {
            Self::Full | Self::WithoutQueries => LaunchStep::Full,
            Self::DriverOnly => LaunchStep::DriverOnly,
            Self::Sampled | Self::AsyncsSampled => LaunchStep::Sampled { one_in: ONE_IN },
            Self::PartTime(share) => LaunchStep::PartTime { share, one_in: ONE_IN },
        }
    }

    /// The first that observes launches so.
    pub(crate) const fn of(step: LaunchStep) -> Self {
        match step {
            LaunchStep::Full => Self::Full,
            LaunchStep::DriverOnly => Self::DriverOnly,
            LaunchStep::Sampled { .. } => Self::Sampled,
            LaunchStep::PartTime { share, .. } => Self::PartTime(share),
        }
    }

    /// Higher for less.
    pub(crate) const fn rank(self) -> u8 {
        match self {
            Self::Full => 0,
            Self::WithoutQueries => 1,
            Self::DriverOnly => 2,
            Self::Sampled => 3,
            Self::AsyncsSampled => 4,
            Self::PartTime(_) => 5,
        }
    }

    pub(crate) const fn has_queries(self) -> bool {
        matches!(self, Self::Full)
    }

    pub(crate) const fn samples_launches(self) -> bool {
        self.rank() >= Self::Sampled.rank()
    }

    pub(crate) const fn samples_asyncs(self) -> bool {
        self.rank() >= Self::AsyncsSampled.rank()
    }
}
