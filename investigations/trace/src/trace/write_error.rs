//! Why a trace cannot be written.

use std::path::{Path, PathBuf};

/// Why a trace cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The file exists.
    #[error("{0} exists - choose another file, or overwrite it with --force")]
    Exists(PathBuf),
    /// The file cannot be created.
    #[error("cannot create {0}: {1}")]
    Create(PathBuf, #[source] std::io::Error),
    /// SQLite cannot write to it.
    #[error("cannot write to {0}: {1}")]
    Write(PathBuf, #[source] rusqlite::Error),
    /// The file system is full.
    #[error(
        "cannot write to {0}: the file system is full - free some space; what a recording wrote until then can be read, with the \
         files {0}-wal and {0}-shm where they are there"
    )]
    NoSpace(PathBuf),
    /// The file system of a file that takes its name when it is complete is full.
    #[error("cannot write {0}: no space left - free some space, or write to another file system")]
    NoSpaceForOutput(PathBuf),
    /// A reader keeps the file open, so that the WAL cannot be merged into it.
    #[error(
        "{0} is complete, but another program has it open - keep {0}-wal beside it; `gpucause merge {0} -o COPY` makes one \
         file of both"
    )]
    InUse(PathBuf),
    /// The ids for nodes or events are used up.
    #[error("{0} cannot hold more {1}")]
    Full(PathBuf, &'static str),
}

impl WriteError {
    pub(super) fn of(path: PathBuf, source: rusqlite::Error) -> Self {
        match source.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DiskFull) => Self::NoSpace(path),
            _ => Self::Write(path, source),
        }
    }

    /// Names `output` instead of the unfinished file that was to become it: nobody asked for that file's name, and it is removed.
    pub(crate) fn of_output(self, output: &Path) -> Self {
        let path = output.to_owned();
        match self {
            Self::NoSpace(_) => Self::NoSpaceForOutput(path),
            Self::Write(_, source) => Self::Write(path, source),
            Self::Full(_, what) => Self::Full(path, what),
            other => other,
        }
    }
}
