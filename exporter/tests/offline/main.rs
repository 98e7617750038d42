//! Pages, documents, commands and servers on made-up and recorded hosts. Needs neither root nor probes nor a quiet host.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, in its fixtures too"
)]

mod alerting;
mod cases;
mod command;
mod golden;
mod http;
mod levels;
mod live_page;
mod long_files;
mod many_processes;
mod otlp;
mod replay;
mod runbooks;

use std::path::Path;

use gpucause_fixture::programs::built;

#[test]
fn fixtures_start_the_program_that_was_built_for_these_tests() {
    let own = Path::new(env!("CARGO_BIN_EXE_gpucause"));
    assert_eq!(built("gpucause").canonicalize().unwrap(), own.canonicalize().unwrap());
}
