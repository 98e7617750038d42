//! Opens files of recordings, and explains why that fails.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, ErrorCode};

use super::RecordingError;
use crate::database::{open_bytes, open_read_only};

/// Returns true if two paths lead to one file.
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| {
        let file = std::fs::metadata(path).ok()?;
        Some((file.dev(), file.ino()))
    };
    identity(one).is_some_and(|one| identity(other) == Some(one))
}

/// A connection that changes nothing and trusts nothing in the file.
pub fn read_only(path: &Path) -> Result<Connection, RecordingError> {
    readable(open_read_only(path)).map_err(|source| error(path, source))
}

/// A connection to the bytes of a file, which trusts nothing in them. Errors name `source`.
pub(crate) fn in_memory(source: &Path, bytes: &[u8]) -> Result<Connection, RecordingError> {
    readable(open_bytes(bytes)).map_err(|cause| error(source, cause))
}

fn readable(opened: rusqlite::Result<Connection>) -> rusqlite::Result<Connection> {
    let connection = opened?;
    // The first that reads the file.
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    Ok(connection)
}

/// Returns the meaning of a SQLite error for the file.
pub fn error(path: &Path, source: rusqlite::Error) -> RecordingError {
    let path = path.to_owned();
    let code = source.sqlite_error_code();
    match code {
        Some(ErrorCode::NotADatabase) => {
            RecordingError::NotATrace(path, "it is not a SQLite database".to_owned())
        }
        Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly) if wal_of(&path).exists() => {
            RecordingError::LeftOpen(path)
        }
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied | ErrorCode::DatabaseBusy) => {
            RecordingError::Open(path, source)
        }
        Some(ErrorCode::OutOfMemory) => RecordingError::Busy(path),
        _ => RecordingError::Damaged(path, source.to_string()),
    }
}

/// The WAL file of a database.
#[must_use]
pub fn wal_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}
