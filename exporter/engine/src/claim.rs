//! Claims of causes on the time of a thread in a window.

use gpucause_abi::Nanos;
use gpucause_abi::snapshot::TimeAccount;

use crate::delta::{Delta, ThreadDelta};
use crate::phases::Phases;

/// A window that ends now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span<'s, 'a> {
    pub(crate) delta: &'s Delta<'a>,
    /// How long the CPU limit of the cgroup throttled the process.
    pub(crate) throttled: Nanos,
}

/// Computes what a cause took of a thread's time in a window, for an effect in these phases.
pub(crate) type Claim = fn(&Span<'_, '_>, &ThreadDelta, Phases) -> TimeAccount;
