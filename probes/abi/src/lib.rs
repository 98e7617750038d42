//! What the kernel programs and user space agree on: record layouts, the table of traced operations, histogram maths,
//! and the domain types that a snapshot of the kernel maps is made of.
//!
//! Everything shared with the C side is written once, here; [`c_header`] renders it for `probes/build.rs`. No
//! dependencies, no clang, no unsafe code.

pub mod event;
pub mod hist;
pub mod op;
pub mod python;
pub mod record;
pub mod snapshot;
pub mod state;

mod header;
mod syscall;

pub use header::c_header;
pub use syscall::{reason_of_syscalls, wakes_of_syscalls};

use std::fmt;

/// A process: what user space calls a PID and the kernel a thread-group id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tgid(pub u32);

/// A thread: what the kernel calls a PID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tid(pub u32);

/// A duration, or a moment on the kernel's monotonic clock, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// In seconds, the unit of everything exported.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// What is left of it after `other`; nothing when that is more.
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

/// One life of a process image under observation. Never reused, so that a recycled PID cannot inherit numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
