//! Opens a trace file so that nothing of it, nor of its folder, is changed by reading it.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, Error, OpenFlags, ffi};

/// The longest value or row that is read from a file, in bytes.
const LONGEST_ROW: i32 = 64 << 20;
/// How long a program that is writing is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// Opens the file for reading. What its schema says is not trusted to call anything.
///
/// A file that nobody writes is opened as one that does not change: SQLite would else make files beside one in WAL mode.
///
/// # Errors
/// When there is no such file, or it may not be read.
pub(crate) fn open_read_only(path: &Path) -> rusqlite::Result<Connection> {
    // SQLite says only that it cannot.
    std::fs::File::open(path).map_err(|error| {
        let failure = ffi::Error::new(ffi::SQLITE_CANTOPEN);
        Error::SqliteFailure(failure, Some(error.to_string()))
    })?;
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(uri(path), flags)?;
    connection.busy_timeout(PATIENCE)?;
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, LONGEST_ROW)?;
    connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    connection.execute_batch(
        "PRAGMA query_only = ON; PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0;",
    )?;
    Ok(connection)
}

fn uri(path: &Path) -> String {
    // A relative path would lose its first part to the name of a host.
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let mut uri = String::from("file:");
    for &byte in whole.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/._-".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(uri, "%{byte:02x}");
        }
    }
    let beside = |suffix: &str| {
        let mut name = whole.clone().into_os_string();
        name.push(suffix);
        Path::new(&name).exists()
    };
    uri.push_str("?mode=ro");
    if !beside("-wal") && !beside("-journal") {
        uri.push_str("&immutable=1");
    }
    uri
}
