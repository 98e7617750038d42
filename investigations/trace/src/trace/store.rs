//! Writes rows: the tables, their dictionaries and the open transaction.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpucause_abi::ProcId;
use gpucause_abi::op::Api;
use gpucause_engine::EngineInput;
use gpucause_engine::chain::{Chain, Culprit};
use rusqlite::{Connection, OpenFlags, Params, params};

use super::dictionaries::Dictionaries;
use super::event_row::NewEvent;
use super::frames::{fnv1a, frames_text};
use super::write_error::WriteError;
use super::{output_file, schema, snapshot_codec};
use crate::recording::{Stack, StackId};

/// A process in the written file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProcessRef(pub(super) i64);

/// A node in the written file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeRef(pub(super) i64);

/// A session in the written file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SessionRef(pub(super) i64);

/// How long to wait for programs that read the file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Page size of small files and of databases in memory, in bytes.
pub(super) const SMALL_PAGE: u32 = 1024;
const MAX_NODES: usize = 1 << 16;
/// The name of a database in memory.
const IN_MEMORY: &str = "a trace in memory";

const INSERT_EVENT: &str =
    "INSERT INTO event VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";

/// A file being written.
#[derive(Debug)]
pub struct Store {
    pub(super) connection: Connection,
    pub(super) path: PathBuf,
    pub(super) dictionaries: Dictionaries,
    pub(super) nodes: Vec<String>,
    sessions: i64,
    processes: i64,
    snapshots: i64,
    /// Start of the open transaction.
    pub(super) open_since: Option<Instant>,
}

/// SQLite's integers are signed; the largest stands for all beyond.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl Store {
    /// Creates an empty file.
    pub(crate) fn create(path: &Path, overwrite: bool) -> Result<Self, WriteError> {
        output_file::create(path, overwrite)?;
        Self::in_empty(path)
    }

    /// In an empty file.
    pub(crate) fn in_empty(path: &Path) -> Result<Self, WriteError> {
        let write_error = |source| WriteError::of(path.to_owned(), source);
        // Without SQLITE_OPEN_URI, a path that begins with `file:` is a path.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).map_err(write_error)?;
        connection.busy_timeout(BUSY_TIMEOUT).map_err(write_error)?;
        Self::in_database(path.to_owned(), connection)
    }

    /// In memory. Errors name [`IN_MEMORY`].
    pub(crate) fn in_memory() -> Result<Self, WriteError> {
        let path = PathBuf::from(IN_MEMORY);
        let open = || {
            let connection = Connection::open_in_memory()?;
            connection.pragma_update(None, "page_size", SMALL_PAGE)?;
            Ok(connection)
        };
        let connection = open().map_err(|source| WriteError::of(path.clone(), source))?;
        Self::in_database(path, connection)
    }

    fn in_database(path: PathBuf, connection: Connection) -> Result<Self, WriteError> {
        let created = schema::create(&connection);
        created.map_err(|source| WriteError::of(path.clone(), source))?;
        Ok(Self {
            connection,
            path,
            dictionaries: Dictionaries::default(),
            nodes: Vec::new(),
            sessions: 0,
            processes: 0,
            snapshots: 0,
            open_since: None,
        })
    }

    /// Runs `work` in the open transaction, or in a new one.
    pub(super) fn write<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> rusqlite::Result<T>,
    ) -> Result<T, WriteError> {
        if self.open_since.is_none() {
            self.connection.execute_batch("BEGIN").map_err(|source| self.error(source))?;
            self.open_since = Some(Instant::now());
        }
        work(self).map_err(|source| self.error(source))
    }

    /// Runs one statement in the open transaction and returns the number of changed rows.
    pub(super) fn execute(&mut self, sql: &str, values: impl Params) -> Result<usize, WriteError> {
        self.write(|store| store.connection.execute(sql, values))
    }

    pub(super) fn error(&self, source: rusqlite::Error) -> WriteError {
        WriteError::of(self.path.clone(), source)
    }

    /// Age of the open transaction.
    pub(super) fn uncommitted_for(&self) -> Option<Duration> {
        self.open_since.map(|since| since.elapsed())
    }

    /// Commits the open transaction, which then survives a crash of this process.
    pub(crate) fn commit(&mut self) -> Result<(), WriteError> {
        if self.open_since.is_some() {
            self.connection.execute_batch("COMMIT").map_err(|source| self.error(source))?;
            self.open_since = None;
        }
        Ok(())
    }

    /// The node of this name.
    pub(crate) fn node(
        &mut self,
        name: &str,
        clock_ahead_ns: Option<i64>,
    ) -> Result<NodeRef, WriteError> {
        if let Some(known) = self.nodes.iter().position(|known| known == name) {
            return Ok(NodeRef(known as i64));
        }
        let id = self.nodes.len();
        if id >= MAX_NODES {
            return Err(WriteError::Full(self.path.clone(), "nodes"));
        }
        self.nodes.push(name.to_owned());
        let row = params![id as i64, name, clock_ahead_ns];
        self.execute("INSERT INTO nodes VALUES (?, ?, ?)", row)?;
        Ok(NodeRef(id as i64))
    }

    pub(crate) fn session(
        &mut self,
        node: NodeRef,
        started_ns: i64,
        recorder: &str,
    ) -> Result<SessionRef, WriteError> {
        self.sessions += 1;
        let id = self.sessions;
        let row = params![id, node.0, started_ns, recorder];
        self.execute("INSERT INTO sessions VALUES (?, ?, ?, NULL, ?, NULL, 0)", row)?;
        Ok(SessionRef(id))
    }

    pub(crate) fn session_details(
        &mut self,
        session: SessionRef,
        details: &[(String, String)],
    ) -> Result<(), WriteError> {
        self.write(|store| replace_details(&store.connection, "session", session.0, details))
    }

    pub(crate) fn session_numbers(
        &mut self,
        session: SessionRef,
        ended_ns: Option<i64>,
        lost_events: Option<u64>,
    ) -> Result<(), WriteError> {
        let update = "UPDATE sessions SET ended_ns = ?, lost_events = ? WHERE id = ?";
        self.execute(update, params![ended_ns, lost_events.map(signed), session.0]).map(drop)
    }

    /// Adds a process; `known_as` is the session and the id of the process in its accounts.
    pub(crate) fn process(
        &mut self,
        node: NodeRef,
        known_as: Option<(SessionRef, u32)>,
        (pid, comm): (u32, &str),
    ) -> Result<ProcessRef, WriteError> {
        self.processes += 1;
        let id = self.processes;
        let (session, proc_id) = known_as.map(|(session, id)| (session.0, id)).unzip();
        let row = params![id, node.0, session, proc_id, pid, comm];
        self.execute("INSERT INTO processes VALUES (?, ?, ?, ?, ?, ?, NULL)", row)?;
        Ok(ProcessRef(id))
    }

    /// Sets the id of a process in the accounts of a session.
    pub(crate) fn process_known_as(
        &mut self,
        process: ProcessRef,
        session: SessionRef,
        id: ProcId,
    ) -> Result<(), WriteError> {
        let update = "UPDATE processes SET session = ?, proc_id = ? WHERE id = ?";
        self.execute(update, params![session.0, id.0, process.0]).map(drop)
    }

    pub(crate) fn rename_process(
        &mut self,
        process: ProcessRef,
        comm: &str,
        rank: Option<u32>,
    ) -> Result<(), WriteError> {
        let update = "UPDATE processes SET comm = ?, rank = ? WHERE id = ?";
        self.execute(update, params![comm, rank, process.0]).map(drop)
    }

    /// Replaces the details of a process.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn describe_process(
        &mut self,
        process: ProcessRef,
        details: &[(String, String)],
    ) -> Result<(), WriteError> {
        self.write(|store| replace_details(&store.connection, "process", process.0, details))
    }

    /// Names a thread.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn name_thread(
        &mut self,
        process: ProcessRef,
        tid: u32,
        name: &str,
    ) -> Result<(), WriteError> {
        self.write(|store| {
            let thread = store.dictionaries.thread(&store.connection, process, tid)?;
            let update = "UPDATE threads SET name = ? WHERE id = ?";
            store.connection.execute(update, params![name, thread])
        })?;
        Ok(())
    }

    /// Sets the name of the kernel function that a process launches by this handle.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn name_kernel(
        &mut self,
        process: ProcessRef,
        handle: u64,
        name: &str,
    ) -> Result<(), WriteError> {
        let row = params![process.0, handle.cast_signed(), name];
        self.execute("INSERT OR REPLACE INTO kernels VALUES (?, ?, ?)", row).map(drop)
    }

    /// The id of a stack, which is written once.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn stack(&mut self, stack: &Stack) -> Result<StackId, WriteError> {
        let (hash, frames) = hashed(stack);
        self.write(|store| {
            let row = |id| (id, hash, frames);
            store.dictionaries.stacks.id(&store.connection, &hash, || hash, row).map(StackId)
        })
    }

    /// Replaces the frames of a stack, when more is known of them. [`stack`](Self::stack) still finds it by its first frames.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn name_stack(&mut self, StackId(id): StackId, stack: &Stack) -> Result<(), WriteError> {
        let (hash, frames) = hashed(stack);
        let update = "UPDATE stacks SET hash = ?, frames = ? WHERE id = ?";
        self.execute(update, params![hash, frames, id]).map(drop)
    }

    pub(super) fn op(&mut self, api: Api, op: &str) -> Result<i64, WriteError> {
        self.write(|store| store.dictionaries.op(&store.connection, api, op))
    }

    /// Writes events of a node with their sequences, which must be unique.
    pub(crate) fn add_events<'a>(
        &mut self,
        node: NodeRef,
        events: impl IntoIterator<Item = (u64, NewEvent<'a>)>,
    ) -> Result<(), WriteError> {
        let mut full = false;
        self.write(|store| {
            let Self { connection, dictionaries, .. } = store;
            let mut statement = connection.prepare(INSERT_EVENT)?;
            for (sequence, event) in events {
                let sequence = signed(sequence);
                full |= sequence > schema::MAX_SEQUENCE;
                if full {
                    break;
                }
                let id = node.0 << schema::SEQUENCE_BITS | sequence;
                dictionaries.insert(connection, &mut statement, id, &event)?;
            }
            Ok(())
        })?;
        if full {
            return Err(WriteError::Full(self.path.clone(), "events"));
        }
        Ok(())
    }

    /// Adds a snapshot.
    pub(crate) fn snapshot(
        &mut self,
        session: SessionRef,
        input: &EngineInput,
    ) -> Result<(), WriteError> {
        self.snapshots += 1;
        let (id, accounts) = (self.snapshots, snapshot_codec::encode(input));
        let row = params![id, session.0, input.unix_seconds, accounts];
        self.execute("INSERT INTO looks VALUES (?, ?, ?, ?)", row).map(drop)
    }

    /// Adds a chain, or replaces its earlier version.
    pub(crate) fn chain(
        &mut self,
        node: NodeRef,
        session: Option<SessionRef>,
        chain: &Chain,
    ) -> Result<(), WriteError> {
        let json = serde_json::to_string(chain).unwrap_or_default();
        let Chain { id, cause, effect, severity, victim, culprit, explained, .. } = chain;
        let Chain {
            lost_seconds, evidence: _, path: _, sentence, fix, first_seen, last_seen, ..
        } = chain;
        let culprit = culprit.as_ref();
        let row = params![
            node.0,
            session.map(|session| session.0),
            id,
            cause.label(),
            effect.label(),
            severity.label(),
            victim.pid,
            victim.tid,
            victim.comm,
            culprit.and_then(Culprit::local_pid),
            culprit.map(Culprit::name),
            explained,
            lost_seconds,
            first_seen,
            last_seen,
            sentence,
            fix,
            json,
            chain.attributed_seconds(),
        ];
        let insert = "INSERT OR REPLACE INTO chains \
                      VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
        self.execute(insert, row).map(drop)
    }

    /// Size of the used pages, in bytes.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn bytes_used(&self) -> Result<u64, WriteError> {
        let number = |pragma: &str| {
            let number: Result<i64, _> =
                self.connection.pragma_query_value(None, pragma, |row| row.get(0));
            number.map(i64::unsigned_abs).map_err(|source| self.error(source))
        };
        let pages = number("page_count")?.saturating_sub(number("freelist_count")?);
        Ok(pages * number("page_size")?)
    }

    /// Deletes the events before this sequence.
    pub(super) fn drop_events(&mut self, node: NodeRef, first_kept: u64) -> Result<(), WriteError> {
        let first = node.0 << schema::SEQUENCE_BITS;
        let range = [first, first | signed(first_kept)];
        self.execute("DELETE FROM event WHERE id >= ? AND id < ?", range).map(drop)
    }

    /// Deletes the oldest of every `one_in` snapshots, but never the last; returns whether any was deleted.
    pub(super) fn drop_snapshots(&mut self, one_in: u64) -> Result<bool, WriteError> {
        let delete = "DELETE FROM looks WHERE id IN (SELECT id FROM looks ORDER BY id \
                      LIMIT (SELECT (count(*) + ?1 - 2) / ?1 FROM looks))";
        self.execute(delete, [signed(one_in)]).map(|deleted| deleted > 0)
    }

    /// Sets the number of deleted events of a session.
    pub(crate) fn pruned(&mut self, session: SessionRef, events: u64) -> Result<(), WriteError> {
        let update = "UPDATE sessions SET pruned_events = ? WHERE id = ?";
        self.execute(update, [signed(events), session.0]).map(drop)
    }
}

/// The text of a stack's frames and its hash.
fn hashed(stack: &Stack) -> (i64, String) {
    let frames = frames_text(stack);
    (fnv1a(frames.as_bytes()).cast_signed(), frames)
}

fn replace_details(
    connection: &Connection,
    of: &str,
    id: i64,
    details: &[(String, String)],
) -> rusqlite::Result<()> {
    connection.execute(&format!("DELETE FROM {of}_details WHERE {of} = ?"), [id])?;
    let mut insert =
        connection.prepare(&format!("INSERT INTO {of}_details VALUES (?, ?, ?, ?)"))?;
    for (position, (name, value)) in details.iter().enumerate() {
        insert.execute(params![id, position as i64, name, value])?;
    }
    Ok(())
}
