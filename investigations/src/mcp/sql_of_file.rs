//! Runs SQL on the trace file of the server.

use std::path::PathBuf;
use std::time::Duration;

use super::call::Abandoned;
use super::source::{SqlAnswer, SqlRunner};
use crate::query::{Answer, QueryLimits, query_until};

/// Timeout of a query.
pub(super) const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs SQL on a trace file as [`query`](crate::query::query) does, with its limits.
#[derive(Debug, Clone)]
pub struct SqlOfFile(pub PathBuf);

impl SqlRunner for SqlOfFile {
    fn run(&mut self, sql: &str, rows: usize, abandoned: &Abandoned) -> Result<SqlAnswer, String> {
        let limits = QueryLimits { time: QUERY_TIMEOUT, rows };
        let answer = query_until(&self.0, sql, &limits, &abandoned.flag());
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
