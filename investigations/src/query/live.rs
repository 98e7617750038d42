//! SQL across live nodes. Nodes do not run the statements: their chains and metrics are fetched into tables in memory here. Only
//! what a statement reads is fetched, and none where it is invalid.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use gpucause_engine::chain::Culprit;
use gpucause_http::client::{Address, Client};
use parking_lot::Mutex;
use rusqlite::hooks::{AuthAction, AuthContext};
use rusqlite::{Connection, params};
use serde_json::{Map, Value};

use super::{
    Answer, MEMORY, QueryError, QueryLimits, Stop, check, confine, guard, hint, query_error, run,
};
use crate::fleet::{self, FleetAnswer, NodeAnswer, NodeFailure};
use crate::node::{AskError, Page};
use crate::page::{Sample, samples};

/// The name of the tables in errors.
const TABLES: &str = "the tables of live nodes";
/// Prefixes of the metrics that are included.
const PREFIXES: [&str; 2] = ["gpucause_", "DCGM_"];

const SCHEMA: &str = "
    CREATE TABLE nodes (
        node TEXT NOT NULL, url TEXT NOT NULL, now REAL, watched_since REAL,
        clock_ahead_seconds REAL, clock_uncertainty_seconds REAL
    );
    CREATE TABLE failures (url TEXT NOT NULL, reason TEXT NOT NULL);
    CREATE TABLE chains (
        node TEXT NOT NULL, id TEXT NOT NULL, cause TEXT NOT NULL, effect TEXT NOT NULL, severity TEXT NOT NULL,
        victim_pid INTEGER NOT NULL, victim_tid INTEGER NOT NULL, victim_comm TEXT NOT NULL,
        culprit_pid INTEGER, culprit_comm TEXT, explained REAL NOT NULL, taken_seconds REAL NOT NULL,
        lost_seconds REAL NOT NULL, first_seen REAL NOT NULL, last_seen REAL NOT NULL, sentence TEXT NOT NULL, fix TEXT NOT NULL, json TEXT NOT NULL
    );
    CREATE TABLE processes (
        node TEXT NOT NULL, pid TEXT NOT NULL, comm TEXT NOT NULL, rank INTEGER, world_size INTEGER,
        labels TEXT NOT NULL
    );
    CREATE TABLE process_gpus (
        node TEXT NOT NULL, pid TEXT NOT NULL, comm TEXT NOT NULL, UUID TEXT NOT NULL
    );
    CREATE TABLE samples (
        node TEXT NOT NULL, name TEXT NOT NULL, pid TEXT, comm TEXT, labels TEXT NOT NULL, value REAL
    );";

/// The tables: nodes, failures, chains, processes, their GPUs, and samples; and the statement that they are for.
#[derive(Debug)]
pub struct Tables {
    connection: Connection,
    /// Given on arrival.
    names: Vec<(Address, String)>,
    sql: String,
}

/// Queries every node and fills the tables that a statement reads. Nodes that do not answer, or whose answer does not fit into
/// memory, are in the table `failures`.
///
/// # Errors
/// When the statement is invalid or does not only read; when memory does not suffice for the table `failures`.
pub async fn tables(
    sql: &str,
    nodes: &[Client],
    limits: fleet::Limits,
) -> Result<(Tables, FleetAnswer), QueryError> {
    let mut tables = Tables::empty(sql)?;
    let page = page(sql)?;
    let mut refused = Vec::new();
    let mut add = |answer: &NodeAnswer, page: &str| {
        if let Err(error) = tables.add(answer, page) {
            refused.push(NodeFailure {
                url: answer.url.clone(),
                error: AskError::OutOfMemory(answer.url.clone(), error.to_string()),
            });
        }
    };
    let mut answer = match page {
        Some(page) => fleet::pages(nodes, limits, page, &mut add).await,
        None => {
            let answer = fleet::chains(nodes, limits).await;
            answer.answers.iter().for_each(|node| add(node, ""));
            answer
        }
    };
    answer.answers.retain(|node| !refused.iter().any(|failure| failure.url == node.url));
    answer.make_names_distinct();
    // Where memory does not suffice, names are those given on arrival.
    let _ = tables.rename(&answer.answers);
    answer.failures.append(&mut refused);
    answer
        .failures
        .sort_by_key(|failure| nodes.iter().position(|node| *node.address() == failure.url));
    for failure in &answer.failures {
        tables.add_failure(failure)?;
    }
    Ok((tables, answer))
}

/// The metrics that a statement reads.
fn page(sql: &str) -> Result<Option<Page>, QueryError> {
    check(sql)?;
    let mut connection = Tables::empty(sql)?.connection;
    let read = Arc::new(Mutex::new(HashSet::new()));
    let tables = Arc::clone(&read);
    let authorize = move |context: AuthContext<'_>| {
        if let AuthAction::Read { table_name, .. } = context.action {
            tables.lock().insert(table_name.to_owned());
        }
        guard::authorize(context)
    };
    confine(&mut connection, &QueryLimits::default(), &Arc::default()).map_err(failed)?;
    connection.authorizer(Some(authorize)).map_err(failed)?;
    let prepared = connection.prepare(sql).map(drop).map_err(failed);
    prepared.map_err(|error| hint::added(&mut connection, sql, error))?;
    let read = read.lock();
    Ok(match ["samples", "processes", "process_gpus"].map(|table| read.contains(table)) {
        [true, ..] => Some(Page::Full),
        [false, false, false] => None,
        [false, ..] => Some(Page::Processes),
    })
}

impl Tables {
    fn empty(sql: &str) -> Result<Self, QueryError> {
        let make = || {
            let connection = Connection::open_in_memory()?;
            // Applies to the whole process, and can only be lowered.
            connection.execute_batch(&format!("PRAGMA hard_heap_limit = {MEMORY};"))?;
            connection.execute_batch(SCHEMA)?;
            Ok(connection)
        };
        let connection = make().map_err(failed)?;
        Ok(Self { connection, names: Vec::new(), sql: sql.to_owned() })
    }

    fn add(&mut self, answer: &NodeAnswer, page: &str) -> Result<(), QueryError> {
        let is_taken = |name: &str| self.names.iter().any(|(_, taken)| taken == name);
        let name = fleet::distinct(answer.chains.node.clone(), &answer.url, is_taken);
        self.names.push((answer.url.clone(), name.clone()));
        self.insert(&name, answer, page).map_err(failed)
    }

    /// Gives nodes the names that they have in the order of nodes, whichever arrived first.
    fn rename(&mut self, answers: &[NodeAnswer]) -> rusqlite::Result<()> {
        let mut given = std::mem::take(&mut self.names);
        let other_name = |answer: &NodeAnswer| {
            let place = given.iter().position(|(url, _)| *url == answer.url)?;
            let (_, given) = given.remove(place);
            (given != answer.chains.node).then(|| (given, answer.chains.node.clone()))
        };
        let renamed: Vec<_> = answers.iter().filter_map(other_name).collect();
        if renamed.is_empty() {
            return Ok(());
        }
        let transaction = self.connection.transaction()?;
        transaction
            .execute_batch("CREATE TABLE renamed (given TEXT NOT NULL, name TEXT NOT NULL)")?;
        for (given, name) in &renamed {
            transaction.execute("INSERT INTO renamed VALUES (?, ?)", params![given, name])?;
        }
        for table in ["nodes", "chains", "processes", "process_gpus", "samples"] {
            transaction.execute_batch(&format!(
                "UPDATE {table} SET node = (SELECT name FROM renamed WHERE given = node)
                 WHERE node IN (SELECT given FROM renamed)"
            ))?;
        }
        transaction.execute_batch("DROP TABLE renamed")?;
        transaction.commit()
    }

    fn insert(&mut self, node: &str, answer: &NodeAnswer, page: &str) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        transaction.execute(
            "INSERT INTO nodes VALUES (?, ?, ?, ?, ?, ?)",
            params![
                node,
                answer.url.to_string(),
                answer.chains.now,
                answer.chains.watched_since,
                answer.clock.map(|clock| clock.ahead_seconds),
                answer.clock.map(|clock| clock.uncertainty_seconds),
            ],
        )?;
        let mut chains = transaction.prepare(
            "INSERT INTO chains VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )?;
        for chain in &answer.chains.chains {
            chains.execute(params![
                node,
                chain.id,
                chain.cause.label(),
                chain.effect.label(),
                chain.severity.label(),
                chain.victim.pid,
                chain.victim.tid,
                chain.victim.comm,
                chain.culprit.as_ref().and_then(Culprit::local_pid),
                chain.culprit.as_ref().map(Culprit::name),
                chain.explained,
                chain.attributed_seconds(),
                chain.lost_seconds,
                chain.first_seen,
                chain.last_seen,
                chain.sentence,
                chain.fix,
                serde_json::to_string(chain).unwrap_or_default(),
            ])?;
        }
        drop(chains);
        let mut processes =
            transaction.prepare("INSERT INTO processes VALUES (?, ?, ?, ?, ?, ?)")?;
        let mut gpus = transaction.prepare("INSERT INTO process_gpus VALUES (?, ?, ?, ?)")?;
        let mut values = transaction.prepare("INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?)")?;
        for sample in PREFIXES.iter().flat_map(|prefix| samples(page, prefix)) {
            let (pid, comm) = (sample.label("pid"), sample.label("comm"));
            let labels = labels(&sample);
            match &*sample.name {
                "gpucause_process_info" => {
                    let number = |label| sample.label(label).parse::<i64>().ok();
                    let (rank, size) = (number("rank"), number("world_size"));
                    processes.execute(params![node, pid, comm, rank, size, labels])?;
                }
                "gpucause_process_gpu_info" => {
                    gpus.execute(params![node, pid, comm, sample.label("UUID")])?;
                }
                _ => {}
            }
            let [pid, comm] = [pid, comm].map(|text| Some(text).filter(|text| !text.is_empty()));
            values.execute(params![node, sample.name, pid, comm, labels, sample.value])?;
        }
        drop((processes, gpus, values));
        transaction.commit()
    }

    fn add_failure(&self, failure: &NodeFailure) -> Result<(), QueryError> {
        let row = params![failure.url.to_string(), failure.error.to_string()];
        self.connection.execute("INSERT INTO failures VALUES (?, ?)", row).map(drop).map_err(failed)
    }

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

/// A JSON object, which keeps all characters of names and values.
fn labels(sample: &Sample) -> String {
    let labels = sample.labels().map(|(name, value)| (name.to_owned(), Value::from(value)));
    Value::Object(labels.collect::<Map<_, _>>()).to_string()
}
