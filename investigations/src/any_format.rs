//! From a file to a recording, whoever wrote it.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rusqlite::Connection;

use gpucause_ingero::Ingero;
use gpucause_trace::recording::{Recording, RecordingError, error, read_only, wal_of};
use gpucause_trace::trace::{self, Trace};

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
