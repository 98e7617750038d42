//! Where launches by the runtime are counted.

use std::time::{Duration, Instant};

use gpucause_abi::record::{DRIVER_ONLY, DRIVER_ONLY_BEGINS};

/// A thread that lost its CPU between a launch in the runtime and its part in the driver has it again within this time: also one whose
/// cgroup used up its CPU limit, which is that of 100 ms.
pub(super) const HANDOVER: Duration = Duration::from_millis(150);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LaunchLayer {
    /// Where they begin.
    Runtime,
    /// In the driver from now on. The runtime's probes stay for launches that they counted and whose part in the driver is yet to come.
    DriverBegins {
        until: Instant,
    },
    Driver,
}

impl LaunchLayer {
    /// The layer once they are to be counted in the driver, or in the runtime again.
    pub(super) fn moved(self, to_driver: bool, now: Instant) -> Self {
        match self {
            Self::Runtime if to_driver => Self::DriverBegins { until: now + HANDOVER },
            layer if to_driver => layer,
            _ => Self::Runtime,
        }
    }

    /// The layer after a pause of [`HANDOVER`] or more.
    pub(super) const fn after_pause(self) -> Self {
        match self {
            Self::DriverBegins { .. } => Self::Driver,
            layer => layer,
        }
    }

    /// When the runtime's probes are no longer needed.
    pub(super) const fn handover_ends(self) -> Option<Instant> {
        match self {
            Self::DriverBegins { until } => Some(until),
            Self::Runtime | Self::Driver => None,
        }
    }

    /// The field of a [`LaunchModeRecord`](gpucause_abi::record::LaunchModeRecord).
    pub(super) const fn driver_only(self) -> u32 {
        match self {
            Self::Runtime => 0,
            Self::DriverBegins { .. } => DRIVER_ONLY_BEGINS,
            Self::Driver => DRIVER_ONLY,
        }
    }
}
