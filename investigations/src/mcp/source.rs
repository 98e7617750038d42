//! Sources of answers: a recording or live nodes, and the host of the server.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use gpucause_http::client::{Address, Client};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::ToolError;
use super::answer;
use super::call::{Abandoned, blocking};
use crate::fleet::{self, FleetAnswer, Limits, NodeAnswer};
use crate::node::AskError;
use gpucause_engine::chain::Chain;
use gpucause_trace::recording::{Recording, RecordingError};
use gpucause_trace::trace::Trace;

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
    /// True if the exporter can run there.
    pub can_run: bool,
    /// In the order in which the exporter needs them.
    pub lines: Vec<CheckLine>,
}

/// A demonstration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// Its description.
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
    /// Checks if the exporter can run here. Takes seconds.
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
    /// True if there are more rows than requested.
    pub more: bool,
}

/// Runs read-only SQL queries, within its own limits.
pub trait SqlRunner: Debug + Send {
    /// Returns at most `rows` rows.
    ///
    /// # Errors
    /// Why the query was refused or failed.
    fn run(&mut self, sql: &str, rows: usize, abandoned: &Abandoned) -> Result<SqlAnswer, String>;
}

/// A recording, read by one call at a time.
#[derive(Debug, Clone)]
pub struct File {
    recording: Arc<Mutex<Box<dyn Recording>>>,
    pub(super) sql: Option<Arc<Mutex<Box<dyn SqlRunner>>>>,
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
        let read = blocking(move |abandoned| {
            let recording = recording.lock();
            // It may have waited for others.
            (!abandoned.is_set()).then(|| read(&**recording))
        });
        let read = read.await?.ok_or_else(|| ToolError::new("nobody waits for it"))?;
        read.map_err(ToolError::new)
    }
}

/// Nodes from which on a clock is read once.
const MANY: usize = 50;

/// Limits of a question to nodes, which must be over before the call is: what is slow is a failure, and the rest is answered.
/// A call may ask twice.
pub(super) fn limits(nodes: &[Client]) -> Limits {
    let (deadline, in_all) = (Duration::from_secs(4), Duration::from_secs(12));
    let samples = if nodes.len() < MANY { Limits::default().samples } else { 1 };
    Limits { parallel: 32, deadline, samples, in_all, ..Limits::default() }
}

/// Reads the snapshot of each node with `of` on arrival. Returns the nodes in their order, with distinct names and each with what was
/// read of it, and those that did not answer. What `of` refuses is a failure of its node.
pub(super) async fn snapshots<T: Send>(
    nodes: &[Client],
    mut of: impl FnMut(&dyn Recording) -> Result<T, RecordingError> + Send,
) -> (FleetAnswer, Vec<T>) {
    let mut read = Vec::new();
    let mut take = |node: &NodeAnswer, trace: Trace| {
        let bad =
            |error: RecordingError| AskError::BadSnapshot(node.url.clone(), error.to_string());
        let own = of(&trace).map_err(bad)?;
        read.push((node.url.clone(), own));
        Ok(())
    };
    let mut answer = fleet::snapshots(nodes, limits(nodes), &mut take).await;
    answer.make_names_distinct();
    let place = |url: &Address| answer.answers.iter().position(|node| node.url == *url);
    read.sort_by_cached_key(|(url, _)| place(url));
    (answer, read.into_iter().map(|(_, own)| own).collect())
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
