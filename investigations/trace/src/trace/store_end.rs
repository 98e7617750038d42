//! Ends writing: a finished file, its bytes, or the database itself.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rusqlite::{Connection, MAIN_DB};

use super::lists::rows;
use super::schema;
use super::store::{SMALL_PAGE, Store};
use super::write_error::WriteError;

/// How long a finished file waits for programs that read it, and between two attempts.
const CLOSED_WITHIN: Duration = Duration::from_secs(5);
const CLOSED_EVERY: Duration = Duration::from_millis(50);
/// Finished files up to this size in bytes get smaller pages.
const SMALL_FILE: u64 = 1 << 20;

/// Numbers that a store has given.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    nodes: usize,
    names: [i64; 5],
}

impl Store {
    /// The state to [return to](Self::roll_back) from the next transaction.
    pub(crate) fn mark(&self) -> Mark {
        Mark { nodes: self.nodes.len(), names: self.dictionaries.rows() }
    }

    /// Discards the open transaction, which was begun after the mark.
    pub(crate) fn roll_back(&mut self, Mark { nodes, names }: Mark) -> Result<(), WriteError> {
        // SQLite itself may have discarded it.
        if self.open_since.take().is_some() && !self.connection.is_autocommit() {
            self.connection.execute_batch("ROLLBACK").map_err(|source| self.error(source))?;
        }
        self.nodes.truncate(nodes);
        self.dictionaries.shrink(names);
        Ok(())
    }

    /// Reduces the page size of a small file: most tables hold little and take at least a page each.
    fn shrink(&self) -> Result<(), WriteError> {
        if self.bytes_used()? > SMALL_FILE {
            return Ok(());
        }
        let shrink = format!("PRAGMA page_size = {SMALL_PAGE}; VACUUM");
        match self.connection.execute_batch(&shrink) {
            // A file that is read stays larger.
            Err(source) if !is_busy(&source) => Err(self.error(source)),
            _ => Ok(()),
        }
    }

    /// Turns the database and its WAL into one file.
    pub(crate) fn finish(mut self) -> Result<PathBuf, WriteError> {
        self.write(|store| store.connection.execute_batch(schema::INDEX_EVENTS))?;
        self.commit()?;
        let connection = &self.connection;
        // Each step frees one page.
        rows(connection, "PRAGMA incremental_vacuum", [], |_| Ok(()))
            .map_err(|source| self.error(source))?;
        // SQLite does not wait for readers here.
        let deadline = Instant::now() + CLOSED_WITHIN;
        while !self.leave_wal()? {
            if Instant::now() >= deadline {
                return Err(WriteError::InUse(self.path.clone()));
            }
            std::thread::sleep(CLOSED_EVERY);
        }
        self.shrink()?;
        Ok(self.path)
    }

    /// The bytes of the file that the database would be.
    pub(super) fn into_bytes(mut self) -> Result<Vec<u8>, WriteError> {
        self.commit()?;
        let bytes = self.connection.serialize(MAIN_DB).map(|bytes| bytes.to_vec());
        bytes.map_err(|source| WriteError::of(self.path, source))
    }

    /// The database, once all is committed.
    pub(crate) fn into_connection(mut self) -> Result<Connection, WriteError> {
        self.commit()?;
        Ok(self.connection)
    }

    /// Merges the WAL into the database; false while another program has it open.
    fn leave_wal(&self) -> Result<bool, WriteError> {
        let mode: rusqlite::Result<String> =
            self.connection
                .pragma_update_and_check(None, "journal_mode", "DELETE", |row| row.get(0));
        match mode {
            Ok(mode) => Ok(mode == "delete"),
            Err(source) if is_busy(&source) => Ok(false),
            Err(source) => Err(self.error(source)),
        }
    }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy)
}
