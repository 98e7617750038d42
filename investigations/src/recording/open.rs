//! From a file to a recording, whoever wrote it.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, ErrorCode};

use super::{Recording, RecordingError};
use crate::database::open_read_only;
use crate::ingero::Ingero;
use crate::trace::{self, Trace};

/// Opens a recording, for reading only.
///
/// # Errors
/// When the format is unknown, or the file is damaged.
pub fn open(path: &Path) -> Result<Box<dyn Recording>, RecordingError> {
    if path.is_dir() {
        return Err(RecordingError::NotATrace(path.to_owned(), "it is a folder".to_owned()));
    }
    let connection = read_only(path)?;
    if trace::recognise(&connection).map_err(|source| error(path, source))? {
        return Ok(Box::new(Trace::open(path)?));
    }
    if lacks_wal(path, &connection) {
        return Err(RecordingError::WithoutWal(path.to_owned()));
    }
    Ok(Box::new(Ingero::open(path)?))
}

/// Returns true if a database without tables was written through a WAL file that is not beside it.
/// Source: <https://www.sqlite.org/fileformat2.html#file_format_version_numbers>.
fn lacks_wal(path: &Path, connection: &Connection) -> bool {
    const WRITE_VERSION: u64 = 18;
    const WAL: u8 = 2;
    let mut version = [0];
    let read = File::open(path).and_then(|file| file.read_exact_at(&mut version, WRITE_VERSION));
    let tables = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0));
    read.is_ok() && version == [WAL] && tables == Ok(0) && !wal_of(path).exists()
}

/// Returns true if two paths lead to one file.
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| {
        let file = std::fs::metadata(path).ok()?;
        Some((file.dev(), file.ino()))
    };
    identity(one).is_some_and(|one| identity(other) == Some(one))
}

/// A connection that changes nothing and trusts nothing in the file.
pub(crate) fn read_only(path: &Path) -> Result<Connection, RecordingError> {
    let open = || {
        let connection = open_read_only(path)?;
        // The first that reads the file.
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
        Ok(connection)
    };
    open().map_err(|source| error(path, source))
}

/// Returns the meaning of a SQLite error for the file.
pub(crate) fn error(path: &Path, source: rusqlite::Error) -> RecordingError {
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

fn wal_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_without_its_wal_file_and_a_folder_are_named_as_such() {
        let folder = tempfile::tempdir().unwrap();
        let (path, copy) = (folder.path().join("trace.db"), folder.path().join("copy.db"));
        let writer = Connection::open(&path).unwrap();
        writer.pragma_update(None, "journal_mode", "wal").unwrap();
        writer.execute_batch("CREATE TABLE events (id INTEGER)").unwrap();
        std::fs::copy(&path, &copy).unwrap();
        let error = open(&copy).unwrap_err().to_string();
        assert!(error.contains("copy.db-wal") && error.ends_with("copy both files"), "{error}");
        let error = open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("is not a trace: it is a folder"), "{error}");
    }
}
