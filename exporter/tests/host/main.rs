//! The program on the host that it runs on, with real probes, and with others that are in the way. Needs root, the built stand-ins, and
//! nobody else's tests at the same time but those that `.ci/suites` lists as in need of no quiet host.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, in its fixtures too"
)]

mod access;
mod end_to_end;
mod quantiles;
