//! A hint lists what a database has, for a statement that names what it does not have.

use rusqlite::Connection;
use rusqlite::hooks::{AuthContext, Authorization};

use super::QueryError;

const NO_COLUMN: &str = "no such column";
const NO_TABLE: &str = "no such table";
/// Tables whose columns a hint lists.
const MAX_TABLES: usize = 3;

/// The error, with what the database has.
pub(super) fn added(connection: &mut Connection, sql: &str, error: QueryError) -> QueryError {
    match error {
        QueryError::Wrong(what) => QueryError::Wrong(match hint(connection, sql, &what) {
            Some(hint) => format!("{what} - {hint}"),
            None => what,
        }),
        other => other,
    }
}

/// The tables, or the columns of the tables in the statement, if the error is about one that does not exist.
fn hint(connection: &mut Connection, sql: &str, error: &str) -> Option<String> {
    let of_column = error.contains(NO_COLUMN);
    if !of_column && !error.contains(NO_TABLE) {
        return None;
    }
    // The queries below are not part of the statement.
    connection.authorizer(None::<fn(AuthContext<'_>) -> Authorization>).ok()?;
    let tables = tables(connection)?;
    let named: Vec<_> = tables.iter().filter(|table| names(sql, table)).take(MAX_TABLES).collect();
    if !of_column || named.is_empty() {
        return Some(format!("tables are {}", tables.join(", ")));
    }
    let columns = named.into_iter().filter_map(|table| {
        let columns = columns(connection, table)?.join(", ");
        Some(format!("columns of {table} are {columns}"))
    });
    Some(columns.collect::<Vec<_>>().join("; "))
}

fn tables(connection: &Connection) -> Option<Vec<String>> {
    let sql = "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name";
    let mut statement = connection.prepare(sql).ok()?;
    let rows = statement.query_map([], |row| row.get(0)).ok()?;
    rows.collect::<Result<Vec<String>, _>>().ok()
}

fn columns(connection: &Connection, table: &str) -> Option<Vec<String>> {
    let sql = format!("SELECT * FROM \"{}\" LIMIT 0", table.replace('"', "\"\""));
    let statement = connection.prepare(&sql).ok()?;
    Some(statement.column_names().map(str::to_owned).collect())
}

/// Returns true if a statement has this name as a word.
fn names(sql: &str, table: &str) -> bool {
    let mut words = sql.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.any(|word| word.eq_ignore_ascii_case(table))
}
