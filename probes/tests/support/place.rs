//! A directory with a caller and a library.

use std::path::PathBuf;

use super::libraries::build_library;
use super::subject::{Subject, build_caller};

pub(crate) struct Place {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) caller: PathBuf,
    pub(crate) library: PathBuf,
}

impl Place {
    /// With a library that is compiled from this text.
    pub(crate) fn with(source: &str, options: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("made");
        let caller = build_caller(directory.path(), "caller", &[]);
        let library = directory.path().join("libcudart.so.12");
        build_library(&library, source, options);
        Self { directory, caller, library }
    }

    /// A process that has opened the library.
    pub(crate) fn user(&self) -> Subject {
        let mut subject = Subject::start(&self.caller);
        subject.open(&self.library);
        subject
    }
}
