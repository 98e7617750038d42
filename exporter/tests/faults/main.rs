//! Faults that are injected for real into a stand-in workload, and what must be found and reported of each. Needs root, the built
//! stand-ins, two CPUs and a quiet host.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, in its fixtures too"
)]

mod alone;
mod incidents;
mod scenarios;
mod trainer;
