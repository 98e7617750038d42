//! Reads a trace file as a [`Recording`]. Any content ends in an answer or an error.

use std::ops::{ControlFlow, RangeInclusive};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpucause_abi::op::{Api, CopyKind};
use gpucause_abi::state::{BlockOperation, Reason, Role};
use gpucause_engine::chain::Chain;
use rusqlite::{Connection, Row, params};

use super::event_row::kind;
use super::frames::FrameText;
use super::lists::{ListError, Lists, natural, rows, some_natural, with_names};
use super::schema;
use super::snapshot_codec;
use crate::recording::{
    Call, CallStatistics, Completeness, Durations, Event, EventId, Filter, KernelName, Kind, Node,
    NodeChain, NodeIndex, OffCpu, Process, ProcessIndex, RecordedSnapshot, Recording,
    RecordingError, Session, Stack, StackFrame, StackId, Task, WaitStatistics, error, in_memory,
    read_only, sort_worst_first,
};

/// Chains of a node at one time: a node keeps 1,000.
const MOST_CHAINS: u32 = 5000;

/// Returns true if a database is a trace of any version.
pub fn recognise(connection: &Connection) -> rusqlite::Result<bool> {
    let id: i32 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let sql = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'event'";
    let tables: i64 = connection.query_row(sql, [], |row| row.get(0))?;
    Ok(id == schema::APPLICATION_ID && tables == 1)
}

/// A trace file, open for reading.
#[derive(Debug)]
pub struct Trace {
    path: PathBuf,
    connection: Connection,
    version: i64,
    lists: Lists,
}

impl Trace {
    /// Opens a finished file, one being written, or one whose writer was killed.
    ///
    /// # Errors
    /// When it is not a trace, is of a newer gpucause, or is damaged.
    pub fn open(path: &Path) -> Result<Self, RecordingError> {
        Self::of(path, read_only(path)?)
    }

    /// Opens the bytes of a finished file. Errors name `source`.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn of_bytes(source: &Path, bytes: &[u8]) -> Result<Self, RecordingError> {
        Self::of(source, in_memory(source, bytes)?)
    }

    /// Reads a database that is open. Errors name `path`.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn of(path: &Path, connection: Connection) -> Result<Self, RecordingError> {
        let owned = path.to_owned();
        if !recognise(&connection).map_err(|source| error(path, source))? {
            let reason = "it was not written by gpucause".to_owned();
            return Err(RecordingError::NotATrace(owned, reason));
        }
        let version: i64 = connection
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .map_err(|source| error(path, source))?;
        if version > schema::VERSION {
            let known = schema::VERSION;
            return Err(RecordingError::TooNew { path: owned, found: version, known });
        }
        let damaged = |reason| RecordingError::Damaged(path.to_owned(), reason);
        if version < 1 {
            return Err(damaged(format!("there is no schema version {version}")));
        }
        check_tables(&connection, path)?;
        let lists = with_names(&connection, Lists::read);
        let lists = lists.map_err(|failure| failed(path, failure))?;
        Ok(Self { path: owned, connection, version, lists })
    }

    /// Returns true if it holds what a node knows at one time: no event, one snapshot at most, and no more chains than a node keeps.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn is_of_one_time(&self) -> Result<bool, RecordingError> {
        let sql = "SELECT NOT EXISTS (SELECT 1 FROM event) \
                   AND (SELECT count(*) FROM (SELECT 1 FROM looks LIMIT 2)) <= 1 \
                   AND (SELECT count(*) FROM (SELECT 1 FROM chains LIMIT ?1)) < ?1";
        self.sql(self.connection.query_row(sql, [MOST_CHAINS], |row| row.get(0)))
    }

    fn damaged(&self, reason: impl Into<String>) -> RecordingError {
        RecordingError::Damaged(self.path.clone(), reason.into())
    }

    fn sql<T>(&self, result: rusqlite::Result<T>) -> Result<T, RecordingError> {
        result.map_err(|source| error(&self.path, source))
    }

    /// The process of a row; `None` for one that was added after the file was opened.
    fn process(&self, row: i64) -> Result<Option<ProcessIndex>, RecordingError> {
        let last = self.lists.rows_of_processes.last().copied().unwrap_or(0);
        match self.lists.process_rows.get(&row) {
            Some(&process) => Ok(Some(process)),
            None if row > last => Ok(None),
            None => Err(self.damaged(format!("there is no process {row}"))),
        }
    }

    fn event(&self, row: &Row<'_>) -> Result<Event, ListError> {
        let id: i64 = row.get(0)?;
        let node = self.lists.node("event", id, id >> schema::SEQUENCE_BITS)?;
        let sequence = (id & schema::MAX_SEQUENCE).unsigned_abs();
        let thread: i64 = row.get(3)?;
        let missing = |what| ListError::Missing { table: "event", row: id, what };
        let &(process, tid) = self.lists.threads.get(&thread).ok_or(missing("a thread"))?;
        let name = |column| -> Result<Option<&Arc<str>>, ListError> {
            let name: Option<i64> = row.get(column)?;
            let known = |name| self.lists.names.get(&name).ok_or(missing("a name"));
            name.map(known).transpose()
        };
        let kind = match name(4)?.map_or("", |kind| kind) {
            kind::CALL => {
                let op: i64 = row.get(5)?;
                let (api, op) = self.lists.ops.get(&op).ok_or(missing("an op"))?;
                match api {
                    Some(api) => call(row, *api, op, name(11)?, name(12)?)?,
                    None => Kind::Other(Arc::clone(op)),
                }
            }
            kind::OFF_CPU => {
                let task: Option<i64> = row.get(14)?;
                let known = |task| self.lists.parties.get(&task).ok_or(missing("a party"));
                let by: Option<&Task> = task.map(known).transpose()?;
                Kind::OffCpu(OffCpu { reason: name(13)?.map(|name| reason(name)), by: by.cloned() })
            }
            kind::BLOCK_IO => {
                let label = name(11)?.map_or("", |label| label);
                let known = BlockOperation::ALL.iter().find(|known| known.label() == label);
                Kind::BlockIo {
                    operation: known.copied().unwrap_or(BlockOperation::Other),
                    bytes: natural(row, 10)?,
                    device: name(12)?.cloned(),
                }
            }
            kind::PAGE_ALLOCATION => Kind::PageAllocation { bytes: natural(row, 10)? },
            kind::TCP_RETRANSMIT => Kind::TcpRetransmit,
            kind::OOM_KILL => Kind::OomKill,
            kind::START => Kind::Start,
            kind::EXIT => Kind::Exit,
            kind::OTHER => Kind::Other(name(12)?.ok_or(missing("a name"))?.clone()),
            newer => Kind::Other(newer.into()),
        };
        Ok(Event {
            id: EventId { node, sequence },
            start_ns: row.get(1)?,
            duration_ns: natural(row, 2)?,
            process,
            tid,
            kind,
            stack: row.get::<_, Option<i64>>(15)?.map(StackId),
        })
    }

    /// The ids that events of a node may have.
    fn ids_of(&self, node: NodeIndex) -> RangeInclusive<i64> {
        let known = self.lists.node_rows.iter().find(|(_, index)| **index == node);
        let first = known.map_or(0, |(row, _)| row << schema::SEQUENCE_BITS);
        first..=first | schema::MAX_SEQUENCE
    }

    fn row_of(&self, process: ProcessIndex) -> i64 {
        let index = usize::try_from(process.0).unwrap_or(usize::MAX);
        // No row has this number.
        self.lists.rows_of_processes.get(index).copied().unwrap_or(-1)
    }
}

/// Refuses what is no plain table: reading a row of a view, virtual table or computed column could take unbounded work.
fn check_tables(connection: &Connection, path: &Path) -> Result<(), RecordingError> {
    let prepare = |sql| connection.prepare(sql).map_err(|source| error(path, source));
    let mut is_table = prepare(
        "SELECT count(*) FROM pragma_table_list \
         WHERE schema = 'main' AND type = 'table' AND name = ?",
    )?;
    let mut computed = prepare("SELECT count(*) FROM pragma_table_xinfo(?) WHERE hidden <> 0")?;
    for table in schema::TABLES {
        let count = |statement: &mut rusqlite::Statement<'_>| -> Result<i64, RecordingError> {
            statement.query_row([table], |row| row.get(0)).map_err(|source| error(path, source))
        };
        let damaged = |reason| Err(RecordingError::Damaged(path.to_owned(), reason));
        if count(&mut is_table)? != 1 {
            return damaged(format!("it has no table {table}"));
        }
        if count(&mut computed)? != 0 {
            return damaged(format!("columns of its table {table} are computed"));
        }
    }
    Ok(())
}

fn failed(path: &Path, failure: ListError) -> RecordingError {
    match failure {
        ListError::Sql(source) => error(path, source),
        other => RecordingError::Damaged(path.to_owned(), other.to_string()),
    }
}

fn call(
    row: &Row<'_>,
    api: Api,
    op: &Arc<str>,
    direction: Option<&Arc<str>>,
    object: Option<&Arc<str>>,
) -> rusqlite::Result<Kind> {
    let known = |label: &Arc<str>| CopyKind::ALL.iter().find(|kind| kind.label() == &**label);
    Ok(Kind::Call(Call {
        api,
        op: Arc::clone(op),
        cold: row.get(7)?,
        outermost: row.get(6)?,
        code: row.get(8)?,
        off_cpu_ns: some_natural(row, 9)?,
        bytes: some_natural(row, 10)?,
        copy: direction.and_then(known).map(|kind| kind.label()),
        kernel: object.cloned(),
    }))
}

/// The reason of a label; `Other` for one of a newer gpucause.
fn reason(label: &str) -> Reason {
    Reason::ALL.iter().copied().find(|known| known.label() == label).unwrap_or(Reason::Other)
}

/// Reads six columns from `first` on.
fn durations(row: &Row<'_>, first: usize) -> rusqlite::Result<Durations> {
    Ok(Durations {
        count: natural(row, first)?,
        sum_ns: natural(row, first + 1)?,
        p50_ns: some_natural(row, first + 2)?,
        p99_ns: some_natural(row, first + 3)?,
        max_ns: natural(row, first + 4)?,
        completeness: match some_natural(row, first + 5)? {
            None => Completeness::Exact,
            Some(stored) => Completeness::Sample { stored },
        },
    })
}

impl Recording for Trace {
    fn format(&self) -> String {
        format!("gpucause trace, schema {}", self.version)
    }

    fn nodes(&self) -> &[Node] {
        &self.lists.nodes
    }

    fn sessions(&self) -> &[Session] {
        &self.lists.sessions
    }

    fn processes(&self) -> &[Process] {
        &self.lists.processes
    }

    fn thread_name(&self, process: ProcessIndex, tid: u32) -> Option<&str> {
        self.lists.thread_names.get(&(process, tid)).map(String::as_str)
    }

    fn chains(&self) -> Result<Vec<NodeChain>, RecordingError> {
        let text = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get::<_, String>(2)?));
        let sql = "SELECT rowid, node, json FROM chains ORDER BY rowid";
        let mut chains = Vec::new();
        for (row, node, json) in self.sql(rows(&self.connection, sql, [], text))? {
            let node =
                self.lists.node("chains", row, node).map_err(|own| failed(&self.path, own))?;
            let chain: Chain = serde_json::from_str(&json)
                .map_err(|failure| self.damaged(format!("row {row} of chains: {failure}")))?;
            chains.push(NodeChain { node, chain: chain.upgraded() });
        }
        sort_worst_first(&mut chains);
        Ok(chains)
    }

    fn calls(&self) -> Result<Vec<CallStatistics>, RecordingError> {
        let sql = "SELECT process, op, cold, count, sum_ns, p50_ns, p99_ns, max_ns, stored, stalled, \
                   off_cpu_ns FROM call_totals ORDER BY process, rowid";
        let columns = |row: &Row<'_>| {
            let numbers = (durations(row, 3)?, some_natural(row, 9)?, some_natural(row, 10)?);
            Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get(2)?, numbers))
        };
        let mut calls = Vec::new();
        for (process, op, cold, numbers) in self.sql(rows(&self.connection, sql, [], columns))? {
            let process = self.process(process)?;
            let (Some(process), Some((Some(api), op))) = (process, self.lists.ops.get(&op)) else {
                continue;
            };
            let (durations, stalled, off_cpu_ns) = numbers;
            let (api, op) = (*api, Arc::clone(op));
            calls.push(CallStatistics { process, api, op, cold, durations, stalled, off_cpu_ns });
        }
        Ok(calls)
    }

    fn waits(&self) -> Result<Vec<WaitStatistics>, RecordingError> {
        let sql = "SELECT process, tid, role, reason, count, sum_ns, p50_ns, p99_ns, max_ns, stored \
                   FROM wait_totals ORDER BY process, rowid";
        let columns = |row: &Row<'_>| {
            let role: Option<String> = row.get(2)?;
            let role = role.and_then(|label| Role::ALL.iter().find(|role| role.label() == label));
            let label: Option<String> = row.get(3)?;
            let reason = label.map(|label| reason(&label));
            Ok((row.get(0)?, row.get(1)?, role.copied(), reason, durations(row, 4)?))
        };
        let mut waits = Vec::new();
        for (row, tid, role, reason, durations) in
            self.sql(rows(&self.connection, sql, [], columns))?
        {
            if let Some(process) = self.process(row)? {
                waits.push(WaitStatistics { process, tid, role, reason, durations });
            }
        }
        Ok(waits)
    }

    fn events(
        &self,
        filter: &Filter,
        each: &mut dyn FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<(), RecordingError> {
        let Filter { from_ns, until_ns, process, node, at_least_ns } = *filter;
        let process = process.map(|process| self.row_of(process));
        let mut sql = "SELECT id, start_ns, duration_ns, thread, kind, op, outermost, cold, code, off_cpu_ns, bytes, \
                       direction, object, reason, party, stack FROM event \
                       WHERE id <= ?1 AND start_ns + duration_ns >= ?2 AND duration_ns >= ?4"
            .to_owned();
        // No time is later than all events.
        sql += if until_ns.is_some() { " AND start_ns < ?3" } else { " AND ?3 IS NULL" };
        sql += match process {
            Some(_) => " AND thread IN (SELECT id FROM threads WHERE process = ?5)",
            None => " AND ?5 IS NULL",
        };
        // Only where it is asked for: it may have the events sorted, where else an index has their order.
        let ids = node.map(|node| self.ids_of(node));
        sql += if ids.is_some() { " AND id >= ?6" } else { " AND ?6 IS NULL" };
        sql += " ORDER BY start_ns, id";
        let mut statement = self.sql(self.connection.prepare(&sql))?;
        let query = statement.query(params![
            ids.as_ref().map_or(self.lists.last_event, |ids| self.lists.last_event.min(*ids.end())),
            from_ns.unwrap_or(i64::MIN),
            until_ns,
            super::store::signed(at_least_ns),
            process,
            ids.map(|ids| *ids.start()),
        ]);
        let mut found = self.sql(query)?;
        while let Some(row) = self.sql(found.next())? {
            let event = self.event(row).map_err(|failure| failed(&self.path, failure))?;
            if each(&event).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn event_count(&self) -> Result<u64, RecordingError> {
        let sql = "SELECT count(*) FROM event WHERE id <= ?";
        let last = [self.lists.last_event];
        self.sql(self.connection.query_row(sql, last, |row| natural(row, 0)))
    }

    fn stack(&self, StackId(id): StackId) -> Result<Option<Stack>, RecordingError> {
        let sql = "SELECT frames FROM stacks WHERE id = ?";
        let text: Vec<String> = self.sql(rows(&self.connection, sql, [id], |row| row.get(0)))?;
        let Some(text) = text.first() else { return Ok(None) };
        let frames: Vec<FrameText<'_>> = serde_json::from_str(text)
            .map_err(|failure| self.damaged(format!("stack {id}: {failure}")))?;
        Ok(Some(Stack { frames: frames.into_iter().map(StackFrame::from).collect() }))
    }

    fn snapshots(
        &self,
        each: &mut dyn FnMut(RecordedSnapshot) -> ControlFlow<()>,
    ) -> Result<(), RecordingError> {
        let mut sessions: Vec<_> = self.lists.session_rows.iter().collect();
        sessions.sort_by_key(|(_, session)| **session);
        let sql = "SELECT id, unix_seconds, accounts FROM looks WHERE session = ? ORDER BY id";
        let mut statement = self.sql(self.connection.prepare(sql))?;
        for (row, &session) in sessions {
            let known = (self.lists.sessions.get(session), self.lists.accounts.get(session));
            let (Some(Session { node, .. }), Some(processes)) = known else { continue };
            let mut found = self.sql(statement.query([row]))?;
            while let Some(row) = self.sql(found.next())? {
                let columns =
                    || Ok((row.get::<_, i64>(0)?, row.get(1)?, row.get::<_, Vec<u8>>(2)?));
                let (id, unix_seconds, accounts) = self.sql(columns())?;
                let input = snapshot_codec::decode(&accounts, unix_seconds)
                    .map_err(|failure| self.damaged(format!("snapshot {id}: {failure}")))?;
                let processes = Arc::clone(processes);
                if each(RecordedSnapshot { node: *node, session, processes, input }).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn kernel_names(&self) -> Result<Vec<KernelName>, RecordingError> {
        let sql = "SELECT process, handle, name FROM kernels";
        let columns = |row: &Row<'_>| Ok((row.get(0)?, row.get::<_, i64>(1)?, row.get(2)?));
        let mut names = Vec::new();
        for (process, handle, name) in
            self.sql(with_names(&self.connection, |own| rows(own, sql, [], columns)))?
        {
            if let Some(process) = self.process(process)? {
                names.push(KernelName { process, handle: handle.cast_unsigned(), name });
            }
        }
        Ok(names)
    }
}
