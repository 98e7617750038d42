//! Runs SQL on the trace file of the server.

use std::path::PathBuf;
use std::time::Duration;

use super::source::{SqlAnswer, SqlRunner};
use crate::query::{Answer, Limits, query};

/// Timeout of a query.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs SQL on a trace file as [`query`] does, with its limits.
#[derive(Debug, Clone)]
pub struct SqlOfFile(pub PathBuf);

impl SqlRunner for SqlOfFile {
    fn run(&mut self, sql: &str, rows: usize) -> Result<SqlAnswer, String> {
        let answer = query(&self.0, sql, &Limits { time: QUERY_TIMEOUT, rows });
        let Answer { columns, rows, more_rows } = answer.map_err(|error| error.to_string())?;
        let row = |row: &Vec<_>| row.iter().map(serde_json::to_value).collect();
        let rows: Result<_, serde_json::Error> = rows.iter().map(row).collect();
        let rows = rows.map_err(|error| error.to_string())?;
        Ok(SqlAnswer { columns, rows, more: more_rows })
    }
}
