//! Recordings of one and of several nodes, live nodes, and the reports and answers that are made of them.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, in its fixtures too"
)]

mod explain;
mod fake_node;
mod fleet;
mod ingero;
mod mcp;
mod merge;
mod recorded;
mod trace;
