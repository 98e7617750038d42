//! SQL across live nodes. Nodes do not run the statements: their snapshots are gathered here, into the tables of a trace file. An
//! invalid statement asks no node.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use gpucause_http::client::Client;
use gpucause_trace::merge::Gathering;
use gpucause_trace::trace::WriteError;
use rusqlite::{Connection, params};

use super::{
    Answer, MEMORY, QueryError, QueryLimits, Stop, check, confine, hint, query_error, run,
};
use crate::fleet::{self, FleetAnswer};

/// The name of the tables in errors.
const TABLES: &str = "the tables of live nodes";
/// The nodes that did not answer, beside the tables of a trace file.
const FAILURES: &str = "CREATE TABLE failures (url TEXT NOT NULL, reason TEXT NOT NULL)";

/// The tables of a trace file and `failures`, with what live nodes know now; and the statement that they are for.
#[derive(Debug)]
pub struct Tables {
    connection: Connection,
    sql: String,
}

/// Queries every node for its snapshot. Nodes that do not answer, or whose snapshot does not fit into memory, are in the table
/// `failures`.
///
/// # Errors
/// When the statement is invalid or does not only read; when memory does not suffice for the table `failures`.
pub async fn tables(
    sql: &str,
    nodes: &[Client],
    limits: fleet::Limits,
) -> Result<(Tables, FleetAnswer), QueryError> {
    prepare(sql)?;
    let gathered = fleet::gather(nodes, limits).await.map_err(not_written)?;
    let connection = gathered.connection;
    connection.execute_batch(FAILURES).map_err(failed)?;
    for failure in &gathered.answer.failures {
        let row = params![failure.url.to_string(), failure.error.to_string()];
        connection.execute("INSERT INTO failures VALUES (?, ?)", row).map_err(failed)?;
    }
    Ok((Tables { connection, sql: sql.to_owned() }, gathered.answer))
}

/// Compiles the statement for empty tables.
fn prepare(sql: &str) -> Result<(), QueryError> {
    check(sql)?;
    let empty = Gathering::new().and_then(Gathering::finish);
    let mut connection = empty.map_err(not_written)?;
    // Applies to the whole process, and can only be lowered.
    let limit = format!("PRAGMA hard_heap_limit = {MEMORY}; {FAILURES}");
    connection.execute_batch(&limit).map_err(failed)?;
    confine(&mut connection, &QueryLimits::default(), &Arc::default()).map_err(failed)?;
    let prepared = connection.prepare(sql).map(drop).map_err(failed);
    prepared.map_err(|error| hint::added(&mut connection, sql, error))
}

impl Tables {
    /// Runs the statement, with the limits of a trace file.
    ///
    /// # Errors
    /// When the statement does not only read, or a limit other than that of rows is exceeded.
    pub fn query(self, limits: &QueryLimits) -> Result<Answer, QueryError> {
        self.query_until(limits, &Arc::default())
    }

    /// Runs the statement like [`query`](Self::query); ends early when `stopped` is set.
    ///
    /// # Errors
    /// The errors of [`query`](Self::query); a stopped statement is one that took too long.
    pub fn query_until(
        mut self,
        limits: &QueryLimits,
        stopped: &Arc<AtomicBool>,
    ) -> Result<Answer, QueryError> {
        run(&mut self.connection, Path::new(TABLES), &self.sql, limits, stopped)
    }
}

fn failed(error: rusqlite::Error) -> QueryError {
    query_error(Path::new(TABLES), Stop::Sqlite(error))
}

fn not_written(error: WriteError) -> QueryError {
    match error {
        WriteError::Write(_, error) => failed(error),
        other => QueryError::Wrong(other.to_string()),
    }
}
