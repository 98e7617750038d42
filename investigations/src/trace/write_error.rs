//! Why a trace cannot be written.

use std::path::PathBuf;

/// Why a trace cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The file exists.
    #[error("{path} exists; choose another file, or overwrite it with --force")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be created.
    #[error("cannot create {path}: {source}")]
    Create {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// SQLite cannot write to it.
    #[error("cannot write to {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// SQLite's error.
        source: rusqlite::Error,
    },
    /// A reader keeps the file open, so that the WAL cannot be merged into it.
    #[error(
        "{path} is complete, but another program has it open: keep {path}-wal beside it until a program with write access has \
         opened and closed it"
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The ids for nodes or events are used up.
    #[error("{path} cannot hold more {what}")]
    Full {
        /// The file.
        path: PathBuf,
        /// Nodes or events.
        what: &'static str,
    },
}
