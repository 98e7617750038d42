//! Why a trace cannot be written.

use std::path::PathBuf;

/// Why a trace cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// There is a file already.
    #[error("{path} exists already; write to another file, or add --force to overwrite it")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be made.
    #[error("cannot create {path}: {source}")]
    Create {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// SQLite cannot write to it.
    #[error("cannot write to {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What SQLite says.
        source: rusqlite::Error,
    },
    /// Somebody reads it for longer than is waited for, so that what was written cannot be put together.
    #[error(
        "{path} is whole, but another program has it open: keep {path}-wal beside it; it becomes one file when something \
         that may write opens and closes it"
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// More nodes or events than there are numbers for.
    #[error("{path} has no numbers left for more {what}")]
    Full {
        /// The file.
        path: PathBuf,
        /// Of what there are too many.
        what: &'static str,
    },
}
