//! Tables of what nodes tell at the moment, for SQL across them. Nodes run no statements of others: each is asked for what it
//! tells anyhow, its chains and its page of metrics, and the tables are made here, in memory.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::{Connection, params};
use serde_json::{Map, Value};

use super::{Answer, Limits, MEMORY, QueryError, Stop, answer, check, confine, told};
use crate::fleet::{self, FleetAnswer, NodeAnswer, NodeFailure};
use crate::http::Client;
use crate::node::AskError;
use crate::page::{Sample, samples};

/// What errors call the tables.
const TABLES: &str = "what the nodes told";
/// What each node's series begin with that are taken: its own, and DCGM's.
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
        culprit_pid INTEGER, culprit_comm TEXT, explained REAL NOT NULL, lost_seconds REAL NOT NULL,
        first_seen REAL NOT NULL, last_seen REAL NOT NULL, sentence TEXT NOT NULL, fix TEXT NOT NULL, json TEXT NOT NULL
    );
    CREATE TABLE processes (
        node TEXT NOT NULL, pid TEXT NOT NULL, comm TEXT NOT NULL, rank INTEGER, world_size INTEGER,
        gpu_uuid TEXT, labels TEXT NOT NULL
    );
    CREATE TABLE samples (
        node TEXT NOT NULL, name TEXT NOT NULL, pid TEXT, comm TEXT, labels TEXT NOT NULL, value REAL
    );";

/// The tables: nodes, failures, chains, processes and samples.
#[derive(Debug)]
pub struct Tables {
    connection: Connection,
    names: HashSet<String>,
}

/// Asks every node, and makes tables of what they tell. Nodes that do not answer, and those whose answer takes more memory than is
/// left, are in the table `failures`.
///
/// # Errors
/// When there is no memory even for that.
pub async fn tables(
    nodes: &[Client],
    limits: fleet::Limits,
) -> Result<(Tables, FleetAnswer), QueryError> {
    let mut tables = Tables::empty()?;
    let mut refused = Vec::new();
    let mut answer = fleet::pages(nodes, limits, &mut |answer, page| {
        if let Err(error) = tables.add(answer, page) {
            refused.push(NodeFailure {
                url: answer.url.clone(),
                error: AskError::OutOfMemory { url: answer.url.clone(), reason: error.to_string() },
            });
        }
    })
    .await;
    answer.answers.retain(|told| !refused.iter().any(|failure| failure.url == told.url));
    answer.failures.append(&mut refused);
    answer
        .failures
        .sort_by_key(|failure| nodes.iter().position(|node| *node.address() == failure.url));
    for failure in &answer.failures {
        tables.add_failure(failure)?;
    }
    Ok((tables, answer))
}

impl Tables {
    fn empty() -> Result<Self, QueryError> {
        let make = || {
            let connection = Connection::open_in_memory()?;
            // Of the whole process; it can be lowered only.
            connection.execute_batch(&format!("PRAGMA hard_heap_limit = {MEMORY};"))?;
            connection.execute_batch(SCHEMA)?;
            Ok(connection)
        };
        let connection = make().map_err(failed)?;
        Ok(Self { connection, names: HashSet::new() })
    }

    /// Two nodes of one name are told apart by their addresses.
    fn add(&mut self, answer: &NodeAnswer, page: &str) -> Result<(), QueryError> {
        let mut name = answer.chains.node.clone();
        while !self.names.insert(name.clone()) {
            name = format!("{name} ({})", answer.url);
        }
        self.insert(&name, answer, page).map_err(failed)
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
        let places = "?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?";
        let mut chains = transaction.prepare(&format!("INSERT INTO chains VALUES ({places})"))?;
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
                chain.culprit.as_ref().map(|culprit| culprit.pid),
                chain.culprit.as_ref().map(|culprit| &culprit.comm),
                chain.explained,
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
            transaction.prepare("INSERT INTO processes VALUES (?, ?, ?, ?, ?, ?, ?)")?;
        let mut values = transaction.prepare("INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?)")?;
        for sample in PREFIXES.iter().flat_map(|prefix| samples(page, prefix)) {
            let (pid, comm) = (sample.label("pid"), sample.label("comm"));
            let labels = labels(&sample);
            if sample.name == "gpucause_process_info" {
                let number = |label| sample.label(label).parse::<i64>().ok();
                let gpu = Some(sample.label("gpu_uuid")).filter(|uuid| !uuid.is_empty());
                let (rank, size) = (number("rank"), number("world_size"));
                processes.execute(params![node, pid, comm, rank, size, gpu, labels])?;
            }
            let told = |text| Some(text).filter(|text: &&str| !text.is_empty());
            values.execute(params![
                node,
                sample.name,
                told(pid),
                told(comm),
                labels,
                sample.value
            ])?;
        }
        drop((processes, values));
        transaction.commit()
    }

    fn add_failure(&self, failure: &NodeFailure) -> Result<(), QueryError> {
        let row = params![failure.url.to_string(), failure.error.to_string()];
        self.connection.execute("INSERT INTO failures VALUES (?, ?)", row).map(drop).map_err(failed)
    }

    /// Runs a statement on the tables, within the same limits as on a trace file.
    ///
    /// # Errors
    /// When the statement is none that only reads, or it met a limit other than that of rows.
    pub fn query(mut self, sql: &str, limits: &Limits) -> Result<Answer, QueryError> {
        check(sql)?;
        let late = Arc::new(AtomicBool::new(false));
        confine(&mut self.connection, limits, &late).map_err(failed)?;
        answer(&self.connection, sql, limits).map_err(|error| {
            if late.load(Ordering::Relaxed) {
                return QueryError::TooLong(limits.time);
            }
            told(Path::new(TABLES), error)
        })
    }
}

fn failed(error: rusqlite::Error) -> QueryError {
    told(Path::new(TABLES), Stop::Sqlite(error))
}

/// As JSON, in which names and values keep whatever characters they have.
fn labels(sample: &Sample) -> String {
    let labels = sample.labels().map(|(name, value)| (name.to_owned(), Value::from(value)));
    Value::Object(labels.collect::<Map<_, _>>()).to_string()
}
