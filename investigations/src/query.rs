//! Runs read-only SQL on a trace file within limits.
//!
//! The file is opened read-only, and an authorizer allows listed operations only. Time, rows, memory and the length of values
//! are limited; the error says which limit was exceeded.

mod guard;
mod hint;
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

use gpucause_trace::database::open_read_only;
use gpucause_trace::recording::{self, RecordingError};

pub use live::{Tables, tables};
pub use render::{csv, jsonl, table, tsv};

/// Limits of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueryLimits {
    /// From its start to the last row.
    pub time: Duration,
    /// Rows returned; there may be more.
    pub rows: usize,
}

impl Default for QueryLimits {
    fn default() -> Self {
        Self { time: Duration::from_secs(10), rows: 1000 }
    }
}

/// Longest statement, in bytes.
const LONGEST_SQL: usize = 16 << 10;
/// Longest value or row, in bytes. Text search takes the product of two lengths and cannot be interrupted.
const LONGEST_VALUE: usize = 64 << 10;
/// Largest answer, in bytes.
const MOST_BYTES: usize = 32 << 20;
/// SQLite's memory, in bytes. Sorting and temporary tables are in memory.
const MEMORY: usize = 256 << 20;
/// Instructions of SQLite's virtual machine between two checks of the clock.
const STEPS: i32 = 1000;

/// One value of a row.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// NULL.
    Null,
    /// An integer.
    Integer(i64),
    /// A floating-point number; infinity is null in JSON.
    Real(f64),
    /// Text; invalid UTF-8 is replaced.
    Text(String),
    /// A blob, as hexadecimal digits.
    Bytes(String),
}

/// The result of a query.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Answer {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// The rows, each with as many values.
    pub rows: Vec<Vec<Value>>,
    /// True if there are more rows than the limit.
    pub more_rows: bool,
}

/// Why a query has no answer.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The file is missing or not readable.
    #[error("cannot open {path}: {source} - check that it exists and may be read")]
    Open {
        /// The file.
        path: PathBuf,
        /// SQLite's error.
        source: rusqlite::Error,
    },
    /// The statement does not only read.
    #[error("refused: {0} - write one statement that only reads, such as SELECT ... FROM events")]
    Refused(String),
    /// The statement is invalid.
    #[error("invalid SQL: {0}")]
    Wrong(String),
    /// The statement exceeded its time.
    #[error(
        "stopped after {0:?}, the time limit - query less, such as by a WHERE on the time of rows, or raise it with --timeout"
    )]
    TooLong(Duration),
    /// The statement exceeded a limit in bytes.
    #[error("{0} of {1} bytes - query less, such as with a WHERE clause or substr()")]
    TooLarge(&'static str, usize),
    /// The file is no database.
    #[error(transparent)]
    NotATrace(RecordingError),
    /// The file is damaged.
    #[error(
        "{path} cannot be read: {reason} - copy it again, or see .recover of the sqlite3 shell"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// SQLite's error.
        reason: String,
    },
}

/// Queries a trace file. Works on any SQLite database; `trace-file.md` describes the tables of traces.
///
/// # Errors
/// When the file cannot be read, the statement does not only read, or a limit other than that of rows is exceeded.
pub fn query(path: &Path, sql: &str, limits: &QueryLimits) -> Result<Answer, QueryError> {
    query_until(path, sql, limits, &Arc::default())
}

/// Queries a trace file like [`query`]; ends early when `stopped` is set.
///
/// # Errors
/// The errors of [`query`]; a stopped query is one that took too long.
pub fn query_until(
    path: &Path,
    sql: &str,
    limits: &QueryLimits,
    stopped: &Arc<AtomicBool>,
) -> Result<Answer, QueryError> {
    check(sql)?;
    let not_open = |source| QueryError::Open { path: path.to_path_buf(), source };
    let mut connection =
        open_read_only(path).map_err(|source| match source.sqlite_error_code() {
            Some(ErrorCode::OutOfMemory) => query_error(path, Stop::Sqlite(source)),
            _ => not_open(source),
        })?;
    run(&mut connection, path, sql, limits, stopped)
}

/// Refuses statements that are too long, or do not begin like one that reads.
fn check(sql: &str) -> Result<(), QueryError> {
    if sql.len() > LONGEST_SQL {
        return Err(QueryError::TooLarge("the statement is longer than the limit", LONGEST_SQL));
    }
    guard::begins_to_read(sql).map_err(QueryError::Refused)
}

/// Runs a statement within the limits. Errors name `path`.
fn run(
    connection: &mut Connection,
    path: &Path,
    sql: &str,
    limits: &QueryLimits,
    stopped: &Arc<AtomicBool>,
) -> Result<Answer, QueryError> {
    let failed = |stop| match stopped.load(Ordering::Relaxed) {
        true => QueryError::TooLong(limits.time),
        false => query_error(path, stop),
    };
    confine(connection, limits, stopped).map_err(|source| failed(source.into()))?;
    let answered = answer(connection, sql, limits).map_err(failed);
    answered.map_err(|error| hint::added(connection, sql, error))
}

/// Sets the limits and the authorizer.
fn confine(
    connection: &mut Connection,
    limits: &QueryLimits,
    stopped: &Arc<AtomicBool>,
) -> rusqlite::Result<()> {
    // Applies to the whole process, and can only be lowered.
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
    let (deadline, stopped) = (Instant::now().checked_add(limits.time), Arc::clone(stopped));
    connection.progress_handler(
        STEPS,
        Some(move || {
            let over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            stopped.fetch_or(over, Ordering::Relaxed) || over
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

fn answer(connection: &Connection, sql: &str, limits: &QueryLimits) -> Result<Answer, Stop> {
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

fn query_error(path: &Path, stop: Stop) -> QueryError {
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
        Some(ErrorCode::NotADatabase) => QueryError::NotATrace(recording::error(path, error)),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::SystemIoFailure) => {
            QueryError::Damaged { path: path.to_path_buf(), reason: error.to_string() }
        }
        _ => QueryError::Wrong(error.to_string()),
    }
}
