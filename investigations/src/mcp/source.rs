//! Where answers come from: a recording, or nodes that run the exporter; and what only this host can do.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use super::ToolError;
use super::answer::{self, list, object};
use super::arguments::Sql;
use crate::http::Client;
use crate::node;
use crate::recording::{NodeIndex, Recording, RecordingError};
use gpucause_engine::chain::Chain;

/// One line of `gpucause check`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckLine {
    /// `ok`, `missing` or `unsupported`.
    pub state: &'static str,
    /// What is told of.
    pub subject: String,
    /// What was found, and what to do about it.
    pub detail: String,
}

/// What `gpucause check` finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckReport {
    /// Name of the host.
    pub host: String,
    /// Whether the exporter can run there.
    pub can_run: bool,
    /// In the order in which the exporter would stumble.
    pub lines: Vec<CheckLine>,
}

/// What a demonstration can show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// What it shows.
    pub what: String,
}

/// What a demonstration showed.
#[derive(Debug, Clone, PartialEq)]
pub struct DemoReport {
    /// The chains that were found, the worst first.
    pub chains: Vec<Chain>,
    /// The workload's own account beside them, in words.
    pub comparison: String,
}

/// What is done on the host where the server runs.
pub trait Host: Debug + Send + Sync {
    /// Whether the exporter can run here. Takes seconds.
    fn check(&self) -> CheckReport;

    /// What can be demonstrated; `None` where that is not allowed.
    fn scenarios(&self) -> Option<Vec<Scenario>>;

    /// Demonstrates one for some time, and ends everything that was started for it.
    ///
    /// # Errors
    /// When it cannot be started; the text says why.
    fn demo(&self, scenario: &str, time: Duration) -> Result<DemoReport, String>;
}

/// Rows that a question in SQL gave.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SqlAnswer {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// The rows, a value for each column.
    pub rows: Vec<Vec<Value>>,
    /// Whether there are more than were asked for.
    pub more: bool,
}

/// Answers questions in SQL, within limits of its own, and changes nothing.
pub trait SqlRunner: Debug + Send {
    /// At most so many rows.
    ///
    /// # Errors
    /// When the question is refused, or fails; the text says why.
    fn run(&mut self, sql: &str, rows: usize) -> Result<SqlAnswer, String>;
}

/// A recording that is read by one at a time.
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
    /// A recording; with SQL, when there is somebody who runs it.
    #[must_use]
    pub fn file(recording: Box<dyn Recording>, sql: Option<Box<dyn SqlRunner>>) -> Self {
        let sql = sql.map(|runner| Arc::new(Mutex::new(runner)));
        Self::File(File { recording: Arc::new(Mutex::new(recording)), sql })
    }

    /// The recording, for what is not known of live nodes.
    pub(super) fn need_file(&self) -> Result<&File, ToolError> {
        match self {
            Self::File(file) => Ok(file),
            Self::Nodes(_) => Err(ToolError::new(
                "this is told of a trace file only, and this server watches live nodes; one that reads a file is started with --db FILE",
            )),
        }
    }
}

impl File {
    /// Reads, on a thread that may block.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&dyn Recording) -> Result<T, RecordingError> + Send + 'static,
    ) -> Result<T, ToolError> {
        let recording = Arc::clone(&self.recording);
        let read = tokio::task::spawn_blocking(move || {
            let recording = recording.lock().unwrap_or_else(PoisonError::into_inner);
            read(&**recording)
        });
        read.await.map_err(ToolError::new)?.map_err(ToolError::new)
    }
}

/// Name of a recorded node.
pub(super) fn node_name(recording: &dyn Recording, node: NodeIndex) -> String {
    recording.nodes().get(usize::from(node.0)).map(|node| node.name.clone()).unwrap_or_default()
}

/// The pages of metrics of nodes, and why others did not answer.
pub(super) async fn pages(nodes: &[Client]) -> (Vec<(String, String)>, Vec<Value>) {
    let mut asked = tokio::task::JoinSet::new();
    let places = Arc::new(tokio::sync::Semaphore::new(crate::fleet::Limits::default().parallel));
    for (index, client) in nodes.iter().cloned().enumerate() {
        let places = Arc::clone(&places);
        asked.spawn(async move {
            let _place = places.acquire_owned().await;
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

/// Failures, as far as they are told one by one.
pub(super) fn failures(mut failures: Vec<Value>) -> Value {
    const TOLD: usize = 10;
    let more = failures.len().saturating_sub(TOLD);
    failures.truncate(TOLD);
    if more > 0 {
        failures.push(json!({"more": more}));
    }
    Value::from(failures)
}

/// Runs a question in SQL.
pub(super) async fn sql(source: &Source, asked: Sql) -> Result<Value, ToolError> {
    let file = source.need_file()?;
    let Some(runner) = file.sql.clone() else {
        return Err(ToolError::new("this server answers no SQL"));
    };
    let page = asked.page();
    // One more than is shown, so that it is known whether there are more.
    let wanted = page.offset.saturating_add(page.limit).saturating_add(1);
    let run = tokio::task::spawn_blocking(move || {
        runner.lock().unwrap_or_else(PoisonError::into_inner).run(&asked.sql, wanted)
    });
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
