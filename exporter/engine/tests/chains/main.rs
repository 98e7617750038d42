//! What the engine says, and does not say, of simulated processes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing test may panic"
)]

#[path = "../fixture/host.rs"]
mod host;
#[path = "../fixture/process.rs"]
mod process;

mod commands;
mod healthy;
mod job;
mod laws;
mod over_time;
mod programs;
mod scheduler;
mod sentences;
mod several;
mod stories;
mod waits;
mod windows;
