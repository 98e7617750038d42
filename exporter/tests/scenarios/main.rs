//! Every cause, injected for real into a stand-in workload, must be found: as the first chain, soon, with its culprit, and
//! with the loss that the workload itself measured. And nothing must be found where nothing is wrong.
//!
//! Needs root, the built stand-ins, two CPUs, and nobody else's tests at the same time. `GPUCAUSE_SCENARIO_ROUNDS` runs each
//! scenario so many times (`make scenarios`), `GPUCAUSE_HEALTHY_SECONDS` the healthy ones for so long (`make healthy`).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing test may panic"
)]

#[path = "../fixture/alone.rs"]
mod alone;
mod causes;
mod healthy;
mod run;
#[path = "../fixture/trainer.rs"]
mod trainer;
