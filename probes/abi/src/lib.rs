//! Shared definitions of kernel programs and user space: record layouts, the table of traced operations, histogram maths,
//! and the domain types of a snapshot.
//!
//! Definitions shared with C are written once, here; [`c_header`] renders them for `probes/build.rs`. No clang, no unsafe code.

pub mod event;
pub mod hist;
pub mod measure;
pub mod op;
pub mod python;
pub mod record;
pub mod sample;
pub mod snapshot;
pub mod state;

mod c_record;
mod header;
mod syscall;

pub use header::c_header;
pub use syscall::{Syscall, reason_of_syscalls, wakes_of_syscalls};

use std::fmt;

/// A process: what user space calls a PID and the kernel a thread-group id.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tgid(pub u32);

/// A thread: what the kernel calls a PID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tid(pub u32);

/// A duration, or a time on the kernel's monotonic clock, in nanoseconds.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Default,
    zerocopy::FromBytes,
    zerocopy::IntoBytes,
    zerocopy::Immutable,
    zerocopy::KnownLayout,
)]
#[repr(transparent)]
pub struct Nanos(pub u64);

impl Nanos {
    /// In seconds, the unit of everything exported.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Saturating difference.
    #[must_use]
    pub const fn less(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// This share of it, from 0 to 1.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the share is clamped, so the product is neither negative nor larger"
    )]
    pub fn share(self, share: f64) -> Self {
        Self((self.0 as f64 * share.clamp(0.0, 1.0)) as u64)
    }
}

/// One process image under observation. Ids are never reused, so a recycled PID does not inherit numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcId(pub u32);

impl fmt::Display for Tgid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
