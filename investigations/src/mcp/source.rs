//! Sources of answers: a recording or live nodes, and the host of the server.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::ToolError;
use super::answer::{self, list, object};
use super::arguments::Sql;
use crate::http::Client;
use crate::node;
use crate::recording::{Recording, RecordingError};
use gpucause_engine::chain::Chain;

/// One line of `gpucause check`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckLine {
    /// `ok`, `missing` or `unsupported`.
    pub state: &'static str,
    /// The checked item.
    pub subject: String,
    /// The result, and what to do about it.
    pub detail: String,
}

/// The result of `gpucause check`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckReport {
    /// Name of the host.
    pub host: String,
    /// Whether the exporter can run there.
    pub can_run: bool,
    /// In the order in which the exporter needs them.
    pub lines: Vec<CheckLine>,
}

/// A demonstration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// What it shows.
    pub what: String,
}

/// The result of a demonstration.
#[derive(Debug, Clone, PartialEq)]
pub struct DemoReport {
    /// The chains found, the worst first.
    pub chains: Vec<Chain>,
    /// The chains compared with the workload's own measurements, as text.
    pub comparison: String,
}

/// Actions on the host where the server runs.
pub trait Host: Debug + Send + Sync {
    /// Whether the exporter can run here. Takes seconds.
    fn check(&self) -> CheckReport;

    /// The demonstrations; `None` where they are not allowed.
    fn scenarios(&self) -> Option<Vec<Scenario>>;

    /// Runs a demonstration for some time, and stops everything that it started.
    ///
    /// # Errors
    /// Why it cannot be started.
    fn demo(&self, scenario: &str, time: Duration) -> Result<DemoReport, String>;
}

/// The result of a SQL query.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SqlAnswer {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// The rows, a value for each column.
    pub rows: Vec<Vec<Value>>,
    /// Whether there are more rows than requested.
    pub more: bool,
}

/// Runs read-only SQL queries, within its own limits.
pub trait SqlRunner: Debug + Send {
    /// Returns at most `rows` rows.
    ///
    /// # Errors
    /// Why the query was refused or failed.
    fn run(&mut self, sql: &str, rows: usize) -> Result<SqlAnswer, String>;
}

/// A recording, read by one call at a time.
#[derive(Debug, Clone)]
pub struct File {
    recording: Arc<Mutex<Box<dyn Recording>>>,
    sql: Option<Arc<Mutex<Box<dyn SqlRunner>>>>,
}

/// Where answers come from.
#[derive(Debug, Clone)]
pub enum Source {
    /// A recording.
    File(File),
    /// Nodes; at least one.
    Nodes(Vec<Client>),
}

impl Source {
    /// A recording; with SQL, where there is a runner.
    pub fn file(recording: Box<dyn Recording>, sql: Option<Box<dyn SqlRunner>>) -> Self {
        let sql = sql.map(|runner| Arc::new(Mutex::new(runner)));
        Self::File(File { recording: Arc::new(Mutex::new(recording)), sql })
    }

    /// The recording, for tools that live nodes do not support.
    pub(super) fn need_file(&self) -> Result<&File, ToolError> {
        match self {
            Self::File(file) => Ok(file),
            Self::Nodes(_) => Err(ToolError::new(
                "this tool needs a trace file, and this server queries live nodes; start one with --db FILE",
            )),
        }
    }
}

impl File {
    /// Runs `read` on a thread that may block.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&dyn Recording) -> Result<T, RecordingError> + Send + 'static,
    ) -> Result<T, ToolError> {
        let recording = Arc::clone(&self.recording);
        let read = tokio::task::spawn_blocking(move || {
            let recording = recording.lock();
            read(&**recording)
        });
        read.await.map_err(ToolError::new)?.map_err(ToolError::new)
    }
}

/// Metrics by node, and the failures of other nodes.
pub(super) async fn pages(nodes: &[Client]) -> (Vec<(String, String)>, Vec<Value>) {
    let mut asked = tokio::task::JoinSet::new();
    let permits = Arc::new(tokio::sync::Semaphore::new(crate::fleet::Limits::default().parallel));
    for (index, client) in nodes.iter().cloned().enumerate() {
        let permits = Arc::clone(&permits);
        asked.spawn(async move {
            let _permit = permits.acquire_owned().await;
            (index, client.address().to_string(), node::metrics(&client).await)
        });
    }
    let mut answers = asked.join_all().await;
    answers.sort_by_key(|(index, ..)| *index);
    let (mut pages, mut failures) = (Vec::new(), Vec::new());
    for (_, url, answer) in answers {
        match answer {
            Ok(page) => pages.push((url, page)),
            Err(error) => failures.push(failure(&url, &error)),
        }
    }
    (pages, failures)
}

/// A node that did not answer.
pub(super) fn failure(url: &str, error: &dyn std::fmt::Display) -> Value {
    json!({"url": answer::name(url), "reason": answer::text(&error.to_string(), 200)})
}

/// The first failures, and the number of the others.
pub(super) fn failures(mut failures: Vec<Value>) -> Value {
    const LISTED: usize = 10;
    let more = failures.len().saturating_sub(LISTED);
    failures.truncate(LISTED);
    if more > 0 {
        failures.push(json!({"more": more}));
    }
    Value::from(failures)
}

/// The answer of `run_sql`.
pub(super) async fn sql(source: &Source, asked: Sql) -> Result<Value, ToolError> {
    let file = source.need_file()?;
    let Some(runner) = file.sql.clone() else {
        return Err(ToolError::new("this server does not run SQL"));
    };
    let page = asked.page();
    // One more row than shown reveals whether there are more.
    let most = page.offset.saturating_add(page.limit).saturating_add(1);
    let run = tokio::task::spawn_blocking(move || runner.lock().run(&asked.sql, most));
    let found = run.await.map_err(ToolError::new)?.map_err(ToolError)?;
    let most = if page.detail { 2000 } else { 200 };
    let cell = |value: &Value| match value {
        Value::String(text) => Value::from(answer::text(text, most)),
        other => other.clone(),
    };
    let rows: Vec<Value> =
        found.rows.iter().map(|row| row.iter().map(cell).collect::<Value>()).collect();
    let columns: Vec<_> = found.columns.iter().map(|column| answer::name(column)).collect();
    let mut head = object(json!({"columns": columns}));
    if found.more {
        head.insert("more_rows".into(), true.into());
    }
    list(head, "rows", &rows, page)
}
