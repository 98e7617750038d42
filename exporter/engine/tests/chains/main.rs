//! Chains that the engine reports for simulated processes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing test may panic"
)]

mod commands;
mod course;
mod dispatchers;
mod healthy;
mod host;
mod job;
mod kernel_locks;
mod laws;
mod limits;
mod lost;
mod others;
mod over_time;
mod own_code;
mod own_threads;
mod process;
mod programs;
mod scenarios;
mod scheduler;
mod sentences;
mod several;
mod waits;
mod windows;
