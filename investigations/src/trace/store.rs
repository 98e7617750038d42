//! What is written, row by row: the tables, the dictionaries and the transaction that is open.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpucause_abi::ProcId;
use gpucause_abi::op::Api;
use gpucause_engine::Moment;
use gpucause_engine::chain::Chain;
use rusqlite::{Connection, OpenFlags, params};

use super::dictionaries::Dictionaries;
use super::event_row::NewEvent;
use super::frames::{fnv1a, frames_text};
use super::lists::rows;
use super::write_error::WriteError;
use super::{look_codec, schema};
use crate::recording::{Stack, StackId};

/// A process of the file that is being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProcessRef(pub(super) i64);

/// A node of the file that is being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct NodeRef(pub(super) i64);

/// A session of the file that is being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SessionRef(pub(super) i64);

/// How long a program that reads the file is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Files of at most so many bytes get smaller pages when they are finished.
const SMALL: u64 = 1 << 20;
/// What such a page takes, in bytes.
const SMALL_PAGE: u32 = 1024;
const MAX_NODES: usize = 1 << 16;

const INSERT_EVENT: &str =
    "INSERT INTO event VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";

/// A file that is being written.
#[derive(Debug)]
pub(crate) struct Store {
    pub(super) connection: Connection,
    pub(super) path: PathBuf,
    dictionaries: Dictionaries,
    nodes: Vec<String>,
    sessions: i64,
    processes: i64,
    looks: i64,
    /// Since when a transaction is open.
    open_since: Option<Instant>,
}

/// SQLite's numbers have a sign; none of ours comes near their end.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl Store {
    /// Whether an empty file could be made.
    pub(crate) fn check(path: &Path, overwrite: bool) -> Result<(), WriteError> {
        if !overwrite && path.symlink_metadata().is_ok() {
            return Err(WriteError::Exists { path: path.to_owned() });
        }
        let create = |source| WriteError::Create { path: path.to_owned(), source };
        let beside = Self::beside(path);
        std::fs::File::create_new(&beside).map_err(create)?;
        std::fs::remove_file(&beside).map_err(create)
    }

    /// A name in the same folder that nobody else takes, for what is not to be seen under this one yet.
    pub(crate) fn beside(path: &Path) -> PathBuf {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}", std::process::id()));
        name.into()
    }

    /// Gives a finished file its name.
    pub(crate) fn rename(from: &Path, to: &Path) -> Result<(), WriteError> {
        let refused = |source| WriteError::Create { path: to.to_owned(), source };
        std::fs::rename(from, to).map_err(refused)
    }

    /// Makes an empty file.
    pub(crate) fn create(path: &Path, overwrite: bool) -> Result<Self, WriteError> {
        if overwrite {
            Self::remove(path)?;
        }
        // Made here, since SQLite would take an existing file, or follow a link that somebody put there.
        std::fs::File::create_new(path).map_err(|source| match source.kind() {
            std::io::ErrorKind::AlreadyExists => WriteError::Exists { path: path.to_owned() },
            _ => WriteError::Create { path: path.to_owned(), source },
        })?;
        let write_error = |source| WriteError::Write { path: path.to_owned(), source };
        // By its name as it is: one that begins with `file:` is no URI.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).map_err(write_error)?;
        connection.busy_timeout(PATIENCE).map_err(write_error)?;
        schema::create(&connection).map_err(write_error)?;
        Ok(Self {
            connection,
            path: path.to_owned(),
            dictionaries: Dictionaries::default(),
            nodes: Vec::new(),
            sessions: 0,
            processes: 0,
            looks: 0,
            open_since: None,
        })
    }

    /// Takes a file away, with those that SQLite keeps beside it.
    pub(crate) fn remove(path: &Path) -> Result<(), WriteError> {
        for suffix in ["", "-wal", "-shm", "-journal"] {
            let mut name = path.as_os_str().to_owned();
            name.push(suffix);
            match std::fs::remove_file(&name) {
                Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                    return Err(WriteError::Create { path: name.into(), source });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Does something within the transaction that is open, or a new one.
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

    pub(super) fn error(&self, source: rusqlite::Error) -> WriteError {
        WriteError::Write { path: self.path.clone(), source }
    }

    /// For how long something waits to be committed.
    pub(super) fn waiting(&self) -> Option<Duration> {
        self.open_since.map(|since| since.elapsed())
    }

    /// Makes what was written so far outlast this process.
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
            return Err(WriteError::Full { path: self.path.clone(), what: "nodes" });
        }
        self.nodes.push(name.to_owned());
        self.write(|store| {
            let insert = "INSERT INTO nodes VALUES (?, ?, ?)";
            store.connection.execute(insert, params![id as i64, name, clock_ahead_ns])
        })?;
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
        self.write(|store| {
            let insert = "INSERT INTO sessions VALUES (?, ?, ?, NULL, ?, NULL, 0)";
            store.connection.execute(insert, params![id, node.0, started_ns, recorder])
        })?;
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
        self.write(|store| {
            let update = "UPDATE sessions SET ended_ns = ?, lost_events = ? WHERE id = ?";
            let numbers = params![ended_ns, lost_events.map(signed), session.0];
            store.connection.execute(update, numbers)
        })?;
        Ok(())
    }

    /// Adds a process; `known_as` is the session, and the number that the process has in its accounts.
    pub(crate) fn process(
        &mut self,
        node: NodeRef,
        known_as: Option<(SessionRef, u32)>,
        (pid, comm): (u32, &str),
    ) -> Result<ProcessRef, WriteError> {
        self.processes += 1;
        let id = self.processes;
        let (session, proc_id) = known_as.map(|(session, id)| (session.0, id)).unzip();
        self.write(|store| {
            let insert = "INSERT INTO processes VALUES (?, ?, ?, ?, ?, ?, NULL)";
            store.connection.execute(insert, params![id, node.0, session, proc_id, pid, comm])
        })?;
        Ok(ProcessRef(id))
    }

    /// Says what number a process has in the accounts of a session.
    pub(crate) fn process_known_as(
        &mut self,
        process: ProcessRef,
        session: SessionRef,
        id: ProcId,
    ) -> Result<(), WriteError> {
        self.write(|store| {
            let update = "UPDATE processes SET session = ?, proc_id = ? WHERE id = ?";
            store.connection.execute(update, params![session.0, id.0, process.0])
        })?;
        Ok(())
    }

    pub(crate) fn rename_process(
        &mut self,
        process: ProcessRef,
        comm: &str,
        rank: Option<u32>,
    ) -> Result<(), WriteError> {
        self.write(|store| {
            let update = "UPDATE processes SET comm = ?, rank = ? WHERE id = ?";
            store.connection.execute(update, params![comm, rank, process.0])
        })?;
        Ok(())
    }

    pub(crate) fn process_details(
        &mut self,
        process: ProcessRef,
        details: &[(String, String)],
    ) -> Result<(), WriteError> {
        self.write(|store| replace_details(&store.connection, "process", process.0, details))
    }

    pub(crate) fn name_thread(
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

    pub(crate) fn name_kernel(
        &mut self,
        process: ProcessRef,
        handle: u64,
        name: &str,
    ) -> Result<(), WriteError> {
        self.write(|store| {
            let insert = "INSERT OR REPLACE INTO kernels VALUES (?, ?, ?)";
            let handle = i64::from_ne_bytes(handle.to_ne_bytes());
            store.connection.execute(insert, params![process.0, handle, name])
        })?;
        Ok(())
    }

    pub(crate) fn stack(&mut self, stack: &Stack) -> Result<StackId, WriteError> {
        let frames = frames_text(stack);
        let hash = i64::from_ne_bytes(fnv1a(frames.as_bytes()).to_ne_bytes());
        self.write(|store| {
            let row = |id| (id, hash, frames);
            store.dictionaries.stacks.id(&store.connection, &hash, || hash, row).map(StackId)
        })
    }

    /// Tells a stack anew. It is still known by what it was told as first.
    pub(super) fn name_stack(
        &mut self,
        StackId(id): StackId,
        stack: &Stack,
    ) -> Result<(), WriteError> {
        let frames = frames_text(stack);
        let hash = i64::from_ne_bytes(fnv1a(frames.as_bytes()).to_ne_bytes());
        self.write(|store| {
            let update = "UPDATE stacks SET hash = ?, frames = ? WHERE id = ?";
            store.connection.execute(update, params![hash, frames, id])
        })?;
        Ok(())
    }

    pub(super) fn op(&mut self, api: Api, op: &str) -> Result<i64, WriteError> {
        self.write(|store| store.dictionaries.op(&store.connection, api, op))
    }

    /// Writes events of a node under these sequences, each of which is given once.
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
            return Err(WriteError::Full { path: self.path.clone(), what: "events" });
        }
        Ok(())
    }

    /// Adds a look at the accounts.
    pub(crate) fn moment(
        &mut self,
        session: SessionRef,
        moment: &Moment,
    ) -> Result<(), WriteError> {
        self.looks += 1;
        let (id, accounts) = (self.looks, look_codec::encode(moment));
        let unix_seconds = moment.unix_seconds;
        self.write(|store| {
            let insert = "INSERT INTO looks VALUES (?, ?, ?, ?)";
            store.connection.execute(insert, params![id, session.0, unix_seconds, accounts])
        })?;
        Ok(())
    }

    /// Adds a chain, or replaces what was told of it before.
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
        self.write(|store| {
            let insert = "INSERT OR REPLACE INTO chains \
                          VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
            store.connection.execute(
                insert,
                params![
                    node.0,
                    session.map(|session| session.0),
                    id,
                    cause.label(),
                    effect.label(),
                    severity.label(),
                    victim.pid,
                    victim.tid,
                    victim.comm,
                    culprit.map(|culprit| culprit.pid),
                    culprit.map(|culprit| &culprit.comm),
                    explained,
                    lost_seconds,
                    first_seen,
                    last_seen,
                    sentence,
                    fix,
                    json,
                ],
            )
        })?;
        Ok(())
    }

    /// What the file takes, less what is free in it, in bytes.
    pub(super) fn bytes_used(&self) -> Result<u64, WriteError> {
        let number = |pragma: &str| {
            let number: Result<i64, _> =
                self.connection.pragma_query_value(None, pragma, |row| row.get(0));
            number.map(i64::unsigned_abs).map_err(|source| self.error(source))
        };
        let pages = number("page_count")?.saturating_sub(number("freelist_count")?);
        Ok(pages * number("page_size")?)
    }

    /// Takes the events before this sequence away.
    pub(super) fn drop_events(&mut self, node: NodeRef, first_kept: u64) -> Result<(), WriteError> {
        let range = (node.0 << schema::SEQUENCE_BITS, signed(first_kept));
        let range = params![range.0, range.0 | range.1];
        self.write(|store| {
            store.connection.execute("DELETE FROM event WHERE id >= ? AND id < ?", range)
        })?;
        Ok(())
    }

    /// Takes the oldest look in so many away, but never the last; tells whether any went.
    pub(super) fn drop_looks(&mut self, one_in: u64) -> Result<bool, WriteError> {
        let delete = "DELETE FROM looks WHERE id IN (SELECT id FROM looks ORDER BY id \
                      LIMIT (SELECT (count(*) + ?1 - 2) / ?1 FROM looks))";
        self.write(|store| store.connection.execute(delete, [signed(one_in)])).map(|went| went > 0)
    }

    /// Says how many events of a session went again.
    pub(crate) fn pruned(&mut self, session: SessionRef, events: u64) -> Result<(), WriteError> {
        let numbers = [signed(events), session.0];
        self.write(|store| {
            let update = "UPDATE sessions SET pruned_events = ? WHERE id = ?";
            store.connection.execute(update, numbers)
        })?;
        Ok(())
    }

    /// Makes a small file smaller still: each table takes a page at least, and most tables hold little.
    fn shrink(&self) -> Result<(), WriteError> {
        if self.bytes_used()? > SMALL {
            return Ok(());
        }
        let shrink = format!("PRAGMA page_size = {SMALL_PAGE}; VACUUM");
        self.connection.execute_batch(&shrink).map_err(|source| self.error(source))
    }

    /// Makes it one plain file.
    pub(crate) fn finish(mut self) -> Result<PathBuf, WriteError> {
        self.write(|store| store.connection.execute_batch(schema::INDEX_EVENTS))?;
        self.commit()?;
        let connection = &self.connection;
        // A page a step.
        rows(connection, "PRAGMA incremental_vacuum", [], |_| Ok(()))
            .map_err(|source| self.error(source))?;
        let mode: Result<String, _> =
            connection.pragma_update_and_check(None, "journal_mode", "DELETE", |row| row.get(0));
        match mode {
            Ok(mode) if mode == "delete" => self.shrink().map(|()| self.path.clone()),
            Err(source)
                if source.sqlite_error_code() != Some(rusqlite::ErrorCode::DatabaseBusy) =>
            {
                Err(self.error(source))
            }
            _ => Err(WriteError::InUse { path: self.path.clone() }),
        }
    }
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
