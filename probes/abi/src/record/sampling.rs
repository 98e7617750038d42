//! Constants of how calls are sampled, and of what a hit is measured to cost.

/// Hits or launches of a thread per report of them; a power of two.
pub const HIT_BATCH: usize = 64;

/// Unit of running time in `all_spent_ran` of a process, in nanoseconds.
pub const SPENT_RAN_UNIT: usize = 1_024;
/// Kinds of [`LoadClass`](crate::op::LoadClass), rounded up to a power of two.
pub const LOADS: usize = 8;
/// One in so many asynchronous calls is timed while they are sampled.
pub const ASYNC_ONE_IN: usize = 61;
/// In a [`LaunchModeRecord`](super::LaunchModeRecord)'s `shed`: queries are left at entry.
pub const SHED_QUERIES: u32 = 1;
/// Asynchronous calls are counted, and one in [`ASYNC_ONE_IN`] is timed.
pub const SHED_ASYNCS: u32 = 2;
/// In a [`LaunchModeRecord`](super::LaunchModeRecord)'s `driver_only`: launches of the runtime are counted in the driver.
pub const DRIVER_ONLY: u32 = 1;
/// They are from now on: the driver's part of one that the runtime's probe has counted may be yet to come.
pub const DRIVER_ONLY_BEGINS: u32 = 2;

/// [`Watch`](super::Watch)'s `calibrates` while the daemon's own calls are timed like others.
pub const CALIBRATE_TIMED: u32 = 1;
/// While they are counted and not timed.
pub const CALIBRATE_COUNTED: u32 = 2;
/// While they are, and how long each takes to find the thread's record is measured.
pub const CALIBRATE_LOOKUP: u32 = 3;
