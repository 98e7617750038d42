//! Files that `cargo build` leaves beside the tests.

use std::path::PathBuf;

/// A file of the target directory that this test was built in.
pub(crate) fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("known");
    let path = test.ancestors().nth(2).expect("a target directory").join(name);
    assert!(path.exists(), "{} is missing: run `cargo build --workspace`", path.display());
    path
}
