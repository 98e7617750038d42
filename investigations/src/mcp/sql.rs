//! SQL on the trace file or on the tables of live nodes.

use gpucause_http::client::Client;
use serde_json::{Map, Value, json};
use tokio::runtime::Builder;

use super::ToolError;
use super::answer::{self, list, object};
use super::arguments::Sql;
use super::call::{Abandoned, blocking};
use super::chains::head_of_nodes;
use super::observed::Coverage;
use super::source::{Source, SqlAnswer, limits};
use super::sql_of_file::{QUERY_TIMEOUT, as_json};
use crate::query::{Limits, tables};

/// The answer of `run_sql`.
pub(super) async fn answer(source: &Source, asked: Sql) -> Result<Value, ToolError> {
    let page = asked.page();
    // One more row than shown reveals whether there are more.
    let rows = page.offset.saturating_add(page.limit).saturating_add(1);
    let (mut head, found) = match source {
        Source::File(file) => {
            let Some(runner) = file.sql.clone() else {
                return Err(ToolError::new("this server does not run SQL"));
            };
            let run = move |abandoned: &_| runner.lock().run(&asked.sql, rows, abandoned);
            let found = blocking(run).await?.map_err(ToolError)?;
            let observed = file.read(Coverage::of_recording).await?;
            (object(json!({"observation": observed.observation})), found)
        }
        Source::Nodes(nodes) => {
            let nodes = nodes.clone();
            blocking(move |abandoned| of_nodes(&nodes, &asked.sql, rows, abandoned)).await??
        }
    };
    let most = if page.detail { 2000 } else { 200 };
    let cell = |value: &Value| match value {
        Value::String(text) => Value::from(answer::text(text, most)),
        other => other.clone(),
    };
    let rows: Vec<Value> =
        found.rows.iter().map(|row| row.iter().map(cell).collect::<Value>()).collect();
    let columns: Vec<_> = found.columns.iter().map(|column| answer::name(column)).collect();
    head.insert("columns".into(), columns.into());
    if found.more {
        head.insert("more_rows".into(), true.into());
    }
    list(head, "rows", &rows, page)
}

/// Blocks while the rows of nodes, which may be many, are inserted.
fn of_nodes(
    nodes: &[Client],
    sql: &str,
    rows: usize,
    abandoned: &Abandoned,
) -> Result<(Map<String, Value>, SqlAnswer), ToolError> {
    let runtime = Builder::new_current_thread().enable_all().build().map_err(ToolError::new)?;
    let tables = runtime.block_on(async {
        tokio::select! {
            tables = tables(sql, nodes, limits(nodes)) => tables.map_err(ToolError::new),
            () = abandoned.happens() => Err(ToolError::new("nobody waits for it")),
        }
    });
    let (tables, answers) = tables?;
    let (mut head, observed) = head_of_nodes(&answers)?;
    head.insert("source".into(), json!("live nodes, now"));
    head.insert("observation".into(), observed.observation);
    let limits = Limits { time: QUERY_TIMEOUT, rows };
    let found = tables.query_until(&limits, &abandoned.flag()).map_err(ToolError::new)?;
    Ok((head, as_json(found).map_err(ToolError::new)?))
}
