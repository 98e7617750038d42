//! A directory with a caller and a library.

use std::path::PathBuf;

use super::caller::{Caller, build_caller};
use super::libraries::build_library;

pub(crate) struct Fixture {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) caller: PathBuf,
    pub(crate) library: PathBuf,
}

impl Fixture {
    /// With a library that is compiled from this text.
    pub(crate) fn with(source: &str, options: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("made");
        let caller = build_caller(directory.path(), "caller", &[]);
        let library = directory.path().join("libcudart.so.12");
        build_library(&library, source, options);
        Self { directory, caller, library }
    }

    /// A process that has opened the library.
    pub(crate) fn user(&self) -> Caller {
        let mut caller = Caller::start(&self.caller);
        caller.open(&self.library);
        caller
    }
}
