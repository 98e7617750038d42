//! Runs SQL on the trace file of the server.

use std::path::PathBuf;
use std::time::Duration;

use super::source::{SqlAnswer, SqlRunner};
use crate::query::{Answer, Limits, query};

/// Timeout of a query.
pub(super) const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs SQL on a trace file as [`query`] does, with its limits.
#[derive(Debug, Clone)]
pub struct SqlOfFile(pub PathBuf);

impl SqlRunner for SqlOfFile {
    fn run(&mut self, sql: &str, rows: usize) -> Result<SqlAnswer, String> {
        let answer = query(&self.0, sql, &Limits { time: QUERY_TIMEOUT, rows });
        as_json(answer.map_err(|error| error.to_string())?).map_err(|error| error.to_string())
    }
}

pub(super) fn as_json(answer: Answer) -> Result<SqlAnswer, serde_json::Error> {
    let Answer { columns, rows, more_rows } = answer;
    let row = |row: &Vec<_>| row.iter().map(serde_json::to_value).collect();
    Ok(SqlAnswer {
        columns,
        rows: rows.iter().map(row).collect::<Result<_, _>>()?,
        more: more_rows,
    })
}
