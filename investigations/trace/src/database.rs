//! Opens a trace file such that reading it changes neither the file nor its folder, or the bytes of one.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, Error, MAIN_DB, OpenFlags, ffi};

/// Largest value or row, in bytes.
const LONGEST_ROW: i32 = 64 << 20;
/// How long to wait for a program that writes.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// Instructions of SQLite's virtual machine between two checks, and checks until the bytes of a file are given up: a hundred times
/// what those of thousands of processes take.
const STEPS: i32 = 10_000;
const MOST_STEPS: u32 = 10_000;

/// Opens the file for reading. Its schema is untrusted.
///
/// A file that nobody writes is opened as immutable: SQLite would otherwise create files beside one in WAL mode.
///
/// # Errors
/// When the file is missing or not readable.
pub fn open_read_only(path: &Path) -> rusqlite::Result<Connection> {
    // SQLite's error does not say why.
    std::fs::File::open(path).map_err(|error| {
        let failure = ffi::Error::new(ffi::SQLITE_CANTOPEN);
        Error::SqliteFailure(failure, Some(error.to_string()))
    })?;
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(uri(path), flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    confined(connection)
}

/// Opens the bytes of a file for reading. Its schema is untrusted.
///
/// # Errors
/// When memory does not suffice.
pub(crate) fn open_bytes(bytes: &[u8]) -> rusqlite::Result<Connection> {
    let mut connection = Connection::open_in_memory()?;
    connection.deserialize_read_exact(MAIN_DB, bytes, bytes.len(), true)?;
    // A file can lead a reader in circles.
    let mut left = MOST_STEPS;
    connection.progress_handler(
        STEPS,
        Some(move || {
            left = left.saturating_sub(1);
            left == 0
        }),
    )?;
    confined(connection)
}

fn confined(connection: Connection) -> rusqlite::Result<Connection> {
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
    // In a URI, the first part of a relative path would be the host.
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
