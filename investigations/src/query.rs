//! Runs SQL on a trace file so that it can neither change anything nor take more than its share.
//!
//! The file is opened for reading, and so is every statement: what it may do is a list, and what is not on it is refused. What
//! it may take - time, rows, memory, the length of a value - has a limit each, and the error says which one was met.

mod guard;
mod live;
mod render;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode};
use serde::Serialize;

use crate::database::open_read_only;

pub use live::{Tables, tables};
pub use render::{csv, table};

/// What a query may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// From its start to the last row.
    pub time: Duration,
    /// Rows that are returned; there may be more.
    pub rows: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { time: Duration::from_secs(10), rows: 1000 }
    }
}

/// The longest statement, in bytes.
const LONGEST_SQL: usize = 16 << 10;
/// The longest value or row, in bytes. Searching a text in another takes the product of their lengths, and cannot be interrupted.
const LONGEST_VALUE: usize = 64 << 10;
/// All that is returned, in bytes.
const MOST_BYTES: usize = 32 << 20;
/// What SQLite may take for a query, in bytes: sorting and temporary tables are kept in memory.
const MEMORY: usize = 256 << 20;
/// Steps of SQLite's machine between two looks at the clock.
const STEPS: i32 = 1000;

/// One value of a row.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// Nothing.
    Null,
    /// A whole number.
    Integer(i64),
    /// Any other number; in JSON one that is infinite is null.
    Real(f64),
    /// Text, in which what is not UTF-8 is replaced.
    Text(String),
    /// Bytes, as hexadecimal digits.
    Bytes(String),
}

/// What a query returns.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Answer {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// The rows, each with as many values.
    pub rows: Vec<Vec<Value>>,
    /// Whether there are more than the limit let through.
    pub more_rows: bool,
}

/// Why a query has no answer.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The file is not there, or not for us.
    #[error("cannot open {path}: {source}")]
    Open {
        /// The file.
        path: PathBuf,
        /// What SQLite says.
        source: rusqlite::Error,
    },
    /// It does something else than read.
    #[error("refused: {0}; write one statement that only reads, such as SELECT ... FROM events")]
    Refused(String),
    /// It is wrong.
    #[error("the SQL is wrong: {0}")]
    Wrong(String),
    /// It took too long.
    #[error(
        "stopped after {0:?}, the time limit; look at less, such as WHERE timestamp BETWEEN ... AND ..., or give it longer with --timeout"
    )]
    TooLong(Duration),
    /// It takes too much.
    #[error("{0} of {1} bytes; look at less, such as with a WHERE clause or substr()")]
    TooLarge(&'static str, usize),
    /// The file is damaged.
    #[error("{path} cannot be read: {reason}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What SQLite says.
        reason: String,
    },
}

/// Asks a trace file. Any SQLite database is read; which tables a trace has its README tells.
///
/// # Errors
/// When the file cannot be read, the statement is none that only reads, or it met a limit other than that of rows.
pub fn query(path: &Path, sql: &str, limits: &Limits) -> Result<Answer, QueryError> {
    check(sql)?;
    let not_open = |source| QueryError::Open { path: path.to_path_buf(), source };
    let mut connection =
        open_read_only(path).map_err(|source| match source.sqlite_error_code() {
            Some(ErrorCode::OutOfMemory) => told(path, Stop::Sqlite(source)),
            _ => not_open(source),
        })?;
    let late = Arc::new(AtomicBool::new(false));
    confine(&mut connection, limits, &late).map_err(not_open)?;
    answer(&connection, sql, limits).map_err(|error| {
        if late.load(Ordering::Relaxed) {
            return QueryError::TooLong(limits.time);
        }
        told(path, error)
    })
}

/// Refuses what does not even look like a statement that reads.
fn check(sql: &str) -> Result<(), QueryError> {
    if sql.len() > LONGEST_SQL {
        return Err(QueryError::TooLarge(
            "a statement may have no more than the limit",
            LONGEST_SQL,
        ));
    }
    guard::begins_to_read(sql).map_err(QueryError::Refused)
}

/// Sets every limit, and who watches over it.
fn confine(
    connection: &mut Connection,
    limits: &Limits,
    late: &Arc<AtomicBool>,
) -> rusqlite::Result<()> {
    // Of the whole process; it can be lowered only.
    connection.execute_batch(&format!(
        "PRAGMA temp_store = MEMORY; PRAGMA hard_heap_limit = {MEMORY};"
    ))?;
    let bounds = [
        (Limit::SQLITE_LIMIT_LENGTH, i32::try_from(LONGEST_VALUE).unwrap_or(i32::MAX)),
        (Limit::SQLITE_LIMIT_SQL_LENGTH, i32::try_from(LONGEST_SQL).unwrap_or(i32::MAX)),
        (Limit::SQLITE_LIMIT_COLUMN, 256),
        (Limit::SQLITE_LIMIT_EXPR_DEPTH, 100),
        (Limit::SQLITE_LIMIT_PARSER_DEPTH, 500),
        (Limit::SQLITE_LIMIT_COMPOUND_SELECT, 50),
        (Limit::SQLITE_LIMIT_VDBE_OP, 1_000_000),
        (Limit::SQLITE_LIMIT_FUNCTION_ARG, 32),
        (Limit::SQLITE_LIMIT_ATTACHED, 0),
        (Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 256),
        (Limit::SQLITE_LIMIT_TRIGGER_DEPTH, 1),
        (Limit::SQLITE_LIMIT_WORKER_THREADS, 0),
    ];
    for (limit, bound) in bounds {
        connection.set_limit(limit, bound)?;
    }
    connection.authorizer(Some(guard::authorize))?;
    let (deadline, late) = (Instant::now().checked_add(limits.time), Arc::clone(late));
    connection.progress_handler(
        STEPS,
        Some(move || {
            let over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            late.fetch_or(over, Ordering::Relaxed);
            over
        }),
    )
}

/// Why the rows ended early.
enum Stop {
    Sqlite(rusqlite::Error),
    Writes,
    Returned,
}

impl From<rusqlite::Error> for Stop {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

fn answer(connection: &Connection, sql: &str, limits: &Limits) -> Result<Answer, Stop> {
    let mut statement = connection.prepare(sql)?;
    if !statement.readonly() {
        return Err(Stop::Writes);
    }
    let columns: Vec<_> = statement.column_names().map(str::to_owned).collect();
    let (mut all, mut bytes, mut more_rows) = (Vec::new(), 0usize, false);
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        if all.len() >= limits.rows {
            more_rows = true;
            break;
        }
        let mut values = Vec::with_capacity(columns.len());
        for index in 0..columns.len() {
            let value = value(row.get_ref(index)?);
            bytes += size_of::<Value>();
            bytes += match &value {
                Value::Text(text) | Value::Bytes(text) => text.len(),
                _ => 0,
            };
            values.push(value);
        }
        if bytes > MOST_BYTES {
            return Err(Stop::Returned);
        }
        all.push(values);
    }
    Ok(Answer { columns, rows: all, more_rows })
}

fn value(value: ValueRef<'_>) -> Value {
    use std::fmt::Write as _;
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => Value::Integer(number),
        ValueRef::Real(number) => Value::Real(number),
        ValueRef::Text(bytes) => Value::Text(String::from_utf8_lossy(bytes).into_owned()),
        ValueRef::Blob(bytes) => Value::Bytes(bytes.iter().fold(String::new(), |mut hex, byte| {
            // Writing to a String cannot fail.
            let _ = write!(hex, "{byte:02x}");
            hex
        })),
    }
}

fn told(path: &Path, stop: Stop) -> QueryError {
    let error = match stop {
        Stop::Writes => return QueryError::Refused("the statement writes".into()),
        Stop::Returned => {
            return QueryError::TooLarge("the answer is larger than the limit", MOST_BYTES);
        }
        Stop::Sqlite(error) => error,
    };
    if matches!(error, rusqlite::Error::MultipleStatement) {
        return QueryError::Refused("there is more than one statement".into());
    }
    match error.sqlite_error_code() {
        Some(ErrorCode::AuthorizationForStatementDenied | ErrorCode::ReadOnly) => {
            QueryError::Refused(error.to_string())
        }
        Some(ErrorCode::TooBig) => {
            QueryError::TooLarge("a value is longer than the limit", LONGEST_VALUE)
        }
        Some(ErrorCode::OutOfMemory) => {
            QueryError::TooLarge("queries that run at once take more memory than the limit", MEMORY)
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::SystemIoFailure) => {
            QueryError::Damaged { path: path.to_path_buf(), reason: error.to_string() }
        }
        _ => QueryError::Wrong(error.to_string()),
    }
}
