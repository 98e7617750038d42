//! Recognises Ingero's trace databases, and reads values of untrusted tables.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, Row};

use gpucause_trace::database::open_read_only;
use gpucause_trace::recording::RecordingError;

/// Required columns of `events`.
const NEEDED: [&str; 7] = ["id", "timestamp", "pid", "tid", "source", "op", "duration"];

/// Why a row cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum Flaw {
    #[error("{0}")]
    Sqlite(#[from] rusqlite::Error),
    #[error("{0}")]
    Content(String),
    /// Not an error: stops reading.
    #[error("enough")]
    Enough,
}

/// A file of Ingero's.
#[derive(Debug)]
pub(super) struct File {
    pub(super) path: PathBuf,
    pub(super) connection: Connection,
    /// Such as `0.9`.
    pub(super) version: Option<String>,
    /// Columns by table, without views and virtual tables.
    columns: HashMap<String, HashSet<String>>,
}

impl File {
    pub(super) fn open(path: &Path) -> Result<Self, RecordingError> {
        let cannot = |source| RecordingError::Open(path.to_path_buf(), source);
        let connection = open_read_only(path).map_err(cannot)?;
        let columns = columns(&connection).map_err(|flaw| match flaw {
            Flaw::Sqlite(rusqlite::Error::SqliteFailure(error, _))
                if error.code == ErrorCode::NotADatabase =>
            {
                not_a_trace(path, "it is not a SQLite database")
            }
            flaw => damaged(path, &flaw),
        })?;
        let events =
            columns.get("events").ok_or_else(|| not_a_trace(path, "it has no table events"))?;
        if let Some(missing) = NEEDED.iter().find(|&&column| !events.contains(column)) {
            return Err(not_a_trace(path, &format!("its table events has no column {missing}")));
        }
        let mut file = Self { path: path.to_path_buf(), connection, version: None, columns };
        file.version = file.own_version()?;
        Ok(file)
    }

    fn own_version(&self) -> Result<Option<String>, RecordingError> {
        if !self.has("schema_info", "key") || !self.has("schema_info", "value") {
            return Ok(None);
        }
        let sql = "SELECT value FROM schema_info WHERE key = 'version'";
        Ok(self.rows(sql, |row| text(row, 0))?.pop())
    }

    pub(super) fn has(&self, table: &str, column: &str) -> bool {
        self.columns.get(table).is_some_and(|columns| columns.contains(column))
    }

    /// The column where the table has it, else its default.
    pub(super) fn column<'a>(&self, table: &str, column: &'a str, default: &'a str) -> &'a str {
        if self.has(table, column) { column } else { default }
    }

    /// Returns the result of `make` for each row of a statement.
    pub(super) fn rows<T>(
        &self,
        sql: &str,
        make: impl Fn(&Row<'_>) -> Result<T, Flaw>,
    ) -> Result<Vec<T>, RecordingError> {
        let mut all = Vec::new();
        self.each(sql, |row| {
            all.push(make(row)?);
            Ok(())
        })?;
        Ok(all)
    }

    /// Passes every row of a statement to `each`.
    pub(super) fn each(
        &self,
        sql: &str,
        mut each: impl FnMut(&Row<'_>) -> Result<(), Flaw>,
    ) -> Result<(), RecordingError> {
        let mut all = || -> Result<(), Flaw> {
            let mut statement = self.connection.prepare(sql)?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                each(row)?;
            }
            Ok(())
        };
        match all() {
            Ok(()) | Err(Flaw::Enough) => Ok(()),
            Err(flaw) => Err(damaged(&self.path, &flaw)),
        }
    }
}

/// The file is damaged, unless only memory is missing to read it.
fn damaged(path: &Path, flaw: &Flaw) -> RecordingError {
    let path = path.to_path_buf();
    match flaw {
        Flaw::Sqlite(error) if error.sqlite_error_code() == Some(ErrorCode::OutOfMemory) => {
            RecordingError::Busy(path)
        }
        flaw => RecordingError::Damaged(path, flaw.to_string()),
    }
}

fn not_a_trace(path: &Path, reason: &str) -> RecordingError {
    RecordingError::NotATrace(path.to_path_buf(), reason.into())
}

/// Columns by table. Reading a row of a view, virtual table or computed column could take unbounded work.
fn columns(connection: &Connection) -> Result<HashMap<String, HashSet<String>>, Flaw> {
    let mut columns: HashMap<String, HashSet<String>> = HashMap::new();
    let mut statement = connection.prepare(
        "SELECT t.name, c.name FROM pragma_table_list AS t, pragma_table_xinfo(t.name) AS c \
         WHERE t.schema = 'main' AND t.type = 'table' AND c.hidden = 0 LIMIT 10000",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        columns.entry(text(row, 0)?).or_default().insert(text(row, 1)?);
    }
    Ok(columns)
}

fn wrong(row: &Row<'_>, index: usize, is_not: &str) -> Flaw {
    let name = row.as_ref().column_name(index).unwrap_or("?");
    let found =
        row.get_ref(index).map_or_else(|error| error.to_string(), |v| v.data_type().to_string());
    Flaw::Content(format!("a value of {name} is {found}, not {is_not}"))
}

pub(super) fn integer(row: &Row<'_>, index: usize) -> Result<i64, Flaw> {
    match row.get_ref(index)? {
        ValueRef::Integer(value) => Ok(value),
        _ => Err(wrong(row, index, "an integer")),
    }
}

/// An unsigned 32-bit number.
pub(super) fn id32(row: &Row<'_>, index: usize) -> Result<u32, Flaw> {
    u32::try_from(integer(row, index)?).map_err(|_| wrong(row, index, "a number of 32 bits"))
}

/// An unsigned number.
pub(super) fn natural(row: &Row<'_>, index: usize) -> Result<u64, Flaw> {
    u64::try_from(integer(row, index)?).map_err(|_| wrong(row, index, "a number from 0 on"))
}

/// Text; numbers are formatted.
pub(super) fn text(row: &Row<'_>, index: usize) -> Result<String, Flaw> {
    match row.get_ref(index)? {
        ValueRef::Null => Ok(String::new()),
        ValueRef::Integer(value) => Ok(value.to_string()),
        ValueRef::Real(value) => Ok(value.to_string()),
        ValueRef::Text(bytes) => Ok(String::from_utf8_lossy(bytes).into_owned()),
        ValueRef::Blob(_) => Err(wrong(row, index, "text")),
    }
}
