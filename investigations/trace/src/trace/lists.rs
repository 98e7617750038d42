//! These lists of a trace are read when it is opened: nodes, sessions, processes, and the dictionaries of its events.

use std::collections::HashMap;
use std::sync::Arc;

use gpucause_abi::ProcId;
use gpucause_abi::op::Api;
use rusqlite::limits::Limit;
use rusqlite::{Connection, Params, Row};

use crate::recording::{Node, NodeIndex, Process, ProcessIndex, Session, Task};

/// Small lists, and what the numbers of rows are in them.
#[derive(Debug, Default)]
pub(super) struct Lists {
    pub(super) nodes: Vec<Node>,
    pub(super) sessions: Vec<Session>,
    pub(super) processes: Vec<Process>,
    pub(super) node_rows: HashMap<i64, NodeIndex>,
    pub(super) session_rows: HashMap<i64, usize>,
    pub(super) process_rows: HashMap<i64, ProcessIndex>,
    /// The number of each process's row.
    pub(super) rows_of_processes: Vec<i64>,
    /// By session.
    pub(super) accounts: Vec<Arc<HashMap<ProcId, ProcessIndex>>>,
    pub(super) threads: HashMap<i64, (ProcessIndex, u32)>,
    pub(super) thread_names: HashMap<(ProcessIndex, u32), String>,
    pub(super) names: HashMap<i64, Arc<str>>,
    pub(super) ops: HashMap<i64, (Option<Api>, Arc<str>)>,
    pub(super) parties: HashMap<i64, Task>,
    /// The newest event: later ones may need what is not in these lists.
    pub(super) last_event: i64,
}

/// Why a list cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ListError {
    #[error("{0}")]
    Sql(#[from] rusqlite::Error),
    #[error("row {row} of {table} refers to {what} that is not there")]
    Missing { table: &'static str, row: i64, what: &'static str },
    #[error("there is no node in it")]
    NoNode,
}

/// Longest row of names, in bytes. Rows of accounts may be longer.
const LONGEST_NAMES: i32 = 1 << 20;

/// Reads names, which are no longer than those of real programs.
pub(super) fn with_names<T, E: From<rusqlite::Error>>(
    connection: &Connection,
    read: impl FnOnce(&Connection) -> Result<T, E>,
) -> Result<T, E> {
    let before = connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, LONGEST_NAMES)?;
    let names = read(connection);
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, before)?;
    names
}

/// All rows of a query.
pub(super) fn rows<T>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    make: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    connection.prepare(sql)?.query_map(params, make)?.collect()
}

/// A number that has no sign.
pub(super) fn natural(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    let number: i64 = row.get(column)?;
    let error = |_| rusqlite::Error::IntegralValueOutOfRange(column, number);
    u64::try_from(number).map_err(error)
}

/// A number that has no sign, if there is one.
pub(super) fn some_natural(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<u64>> {
    let number: Option<i64> = row.get(column)?;
    number.map(|_| natural(row, column)).transpose()
}

impl Lists {
    pub(super) fn read(connection: &Connection) -> Result<Self, ListError> {
        let last_event =
            connection.query_row("SELECT coalesce(max(id), 0) FROM event", [], |row| row.get(0))?;
        let mut lists = Self { last_event, ..Self::default() };
        lists.read_nodes(connection)?;
        lists.read_sessions(connection)?;
        lists.read_processes(connection)?;
        lists.read_threads(connection)?;
        let pair = |row: &Row<'_>| Ok((row.get(0)?, row.get::<_, Arc<str>>(1)?));
        lists.names =
            rows(connection, "SELECT id, text FROM names", [], pair)?.into_iter().collect();
        let op = |row: &Row<'_>| {
            let api: String = row.get(1)?;
            let api = Api::ALL.iter().copied().find(|known| known.label() == api);
            Ok((row.get(0)?, (api, row.get(2)?)))
        };
        lists.ops =
            rows(connection, "SELECT id, api, name FROM ops", [], op)?.into_iter().collect();
        let party = |row: &Row<'_>| Ok((row.get(0)?, Task { pid: row.get(1)?, comm: row.get(2)? }));
        lists.parties =
            rows(connection, "SELECT id, pid, comm FROM parties", [], party)?.into_iter().collect();
        Ok(lists)
    }

    fn read_nodes(&mut self, connection: &Connection) -> Result<(), ListError> {
        let sql =
            "SELECT id, name, clock_ahead_ns FROM nodes WHERE id BETWEEN 0 AND 65535 ORDER BY id";
        let node = |row: &Row<'_>| {
            Ok((row.get(0)?, Node { name: row.get(1)?, clock_ahead_ns: row.get(2)? }))
        };
        for (index, (id, node)) in (0..).zip(rows(connection, sql, [], node)?) {
            self.node_rows.insert(id, NodeIndex(index));
            self.nodes.push(node);
        }
        if self.nodes.is_empty() { Err(ListError::NoNode) } else { Ok(()) }
    }

    fn read_sessions(&mut self, connection: &Connection) -> Result<(), ListError> {
        let mut details = details(connection, "session")?;
        let sql = "SELECT id, node, started_ns, ended_ns, recorder, lost_events, pruned_events \
                   FROM sessions ORDER BY started_ns, id";
        let session = |row: &Row<'_>| {
            let session = Session {
                node: NodeIndex(0),
                started_ns: row.get(2)?,
                ended_ns: row.get(3)?,
                recorder: row.get(4)?,
                details: Vec::new(),
                lost_events: some_natural(row, 5)?,
            };
            Ok((row.get(0)?, row.get(1)?, session, natural(row, 6)?))
        };
        for (id, node, mut session, pruned) in rows(connection, sql, [], session)? {
            session.node = self.node("sessions", id, node)?;
            session.details = details.remove(&id).unwrap_or_default();
            if pruned > 0 {
                session.details.push((PRUNED.to_owned(), pruned.to_string()));
            }
            self.session_rows.insert(id, self.sessions.len());
            self.sessions.push(session);
        }
        Ok(())
    }

    fn read_processes(&mut self, connection: &Connection) -> Result<(), ListError> {
        let mut details = details(connection, "process")?;
        let sql = "SELECT id, node, session, proc_id, pid, comm, rank FROM processes ORDER BY id";
        let process = |row: &Row<'_>| {
            let process = Process {
                node: NodeIndex(0),
                pid: row.get(4)?,
                comm: row.get(5)?,
                rank: row.get(6)?,
                details: Vec::new(),
            };
            let known_as: (Option<i64>, Option<u32>) = (row.get(2)?, row.get(3)?);
            Ok((row.get(0)?, row.get(1)?, known_as, process))
        };
        let mut accounts = vec![HashMap::new(); self.sessions.len()];
        for (index, stored) in (0..).zip(rows(connection, sql, [], process)?) {
            let (id, node, (session, proc_id), mut process) = stored;
            process.node = self.node("processes", id, node)?;
            process.details = details.remove(&id).unwrap_or_default();
            let session = session.and_then(|session| self.session_rows.get(&session));
            let accounts = session.and_then(|&session| accounts.get_mut(session));
            if let Some((accounts, proc_id)) = accounts.zip(proc_id) {
                accounts.insert(ProcId(proc_id), ProcessIndex(index));
            }
            self.process_rows.insert(id, ProcessIndex(index));
            self.rows_of_processes.push(id);
            self.processes.push(process);
        }
        self.accounts = accounts.into_iter().map(Arc::new).collect();
        Ok(())
    }

    fn read_threads(&mut self, connection: &Connection) -> Result<(), ListError> {
        let sql = "SELECT id, process, tid, name FROM threads";
        let thread =
            |row: &Row<'_>| Ok((row.get(0)?, row.get::<_, i64>(1)?, row.get(2)?, row.get(3)?));
        for (id, process, tid, name) in rows(connection, sql, [], thread)? {
            let Some(&process) = self.process_rows.get(&process) else {
                return Err(ListError::Missing { table: "threads", row: id, what: "a process" });
            };
            self.threads.insert(id, (process, tid));
            if let Some(name) = name {
                self.thread_names.insert((process, tid), name);
            }
        }
        Ok(())
    }

    pub(super) fn node(
        &self,
        table: &'static str,
        row: i64,
        node: i64,
    ) -> Result<NodeIndex, ListError> {
        let missing = ListError::Missing { table, row, what: "a node" };
        self.node_rows.get(&node).copied().ok_or(missing)
    }
}

/// Name of the detail that says how many events of a session went again for want of room.
pub(crate) const PRUNED: &str = "pruned_events";

type Details = HashMap<i64, Vec<(String, String)>>;

fn details(connection: &Connection, of: &str) -> rusqlite::Result<Details> {
    let sql = format!("SELECT {of}, name, value FROM {of}_details ORDER BY {of}, position");
    let mut all = Details::new();
    let detail = |row: &Row<'_>| Ok((row.get(0)?, (row.get(1)?, row.get(2)?)));
    for (of, detail) in rows(connection, &sql, [], detail)? {
        all.entry(of).or_default().push(detail);
    }
    Ok(all)
}
