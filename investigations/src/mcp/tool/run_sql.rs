//! SQL on the trace file or on the tables of live nodes.

use gpucause_http::client::Client;
use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::runtime::Builder;

use super::Tool;
use crate::mcp::answer::{self, Page, list, object};
use crate::mcp::call::{Abandoned, blocking};
use crate::mcp::chains::head_of_nodes;
use crate::mcp::observed::Coverage;
use crate::mcp::source::{Source, SqlAnswer, limits};
use crate::mcp::sql_of_file::{QUERY_TIMEOUT, as_json};
use crate::mcp::{Shared, ToolError, arguments};
use crate::query::{QueryLimits, tables};

/// A question in SQL.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Sql {
    /// One SELECT statement in SQLite's dialect.
    sql: String,
    /// Longer texts, and more bytes in all.
    #[serde(default)]
    detail: bool,
    /// Rows at most; 10 unless given, 200 at most.
    limit: Option<usize>,
    /// Rows to skip.
    #[serde(default)]
    offset: usize,
}

impl Sql {
    fn page(&self) -> Page {
        arguments::page(self.detail, self.limit, self.offset)
    }
}

/// The tool.
pub(super) struct RunSql;

impl Tool for RunSql {
    const NAME: &str = "run_sql";
    const DESCRIPTION: &str = "One read-only SELECT within limits of time and rows: on the trace file, or on what live nodes know now, which has the tables of a trace file without events, and failures (nodes that did not answer). sqlite_schema names the tables.";
    type Arguments = Sql;

    async fn answer(server: &Shared, asked: Sql) -> Result<Value, ToolError> {
        let page = asked.page();
        // One more row than shown reveals whether there are more.
        let rows = page.offset.saturating_add(page.limit).saturating_add(1);
        let (mut head, found) = match &server.source {
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
    let limits = QueryLimits { time: QUERY_TIMEOUT, rows };
    let found = tables.query_until(&limits, &abandoned.flag()).map_err(ToolError::new)?;
    Ok((head, as_json(found).map_err(ToolError::new)?))
}
