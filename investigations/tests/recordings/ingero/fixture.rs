//! Databases as Ingero writes them, of made-up events.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, params};
use tempfile::TempDir;

/// The version of the schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Schema {
    V08,
    V09,
    V10,
}

/// A database that is written, and then read.
#[derive(Debug)]
pub(crate) struct Database {
    schema: Schema,
    folder: TempDir,
    connection: Connection,
    sequence: i64,
}

/// One row of `events`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    pub(crate) node: &'static str,
    pub(crate) at: i64,
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) source: i64,
    pub(crate) op: i64,
    pub(crate) duration: i64,
    pub(crate) arg0: i64,
    pub(crate) arg1: i64,
}

/// A whole minute.
pub(crate) const START: i64 = 1_774_015_560_000_000_000;
pub(crate) const US: i64 = 1_000;
pub(crate) const MS: i64 = 1_000_000;

impl Row {
    fn new(pid: u32, (source, op): (i64, i64), at: i64, duration: i64) -> Self {
        Self { node: "", at: START + at, pid, tid: pid, source, op, duration, arg0: 0, arg1: 0 }
    }

    /// A launch of the runtime.
    pub(crate) fn launch(pid: u32, at: i64, duration: i64, kernel: i64) -> Self {
        Self { arg0: kernel, ..Self::new(pid, (1, 3), at, duration) }
    }

    /// A copy to the device.
    pub(crate) fn copy(pid: u32, at: i64, duration: i64, bytes: i64) -> Self {
        Self { arg0: bytes, arg1: 1, ..Self::new(pid, (1, 7), at, duration) }
    }

    /// Off the CPU from a moment on; `other` left the CPU when it came back.
    pub(crate) fn off(tid: u32, from: i64, duration: i64, other: u32) -> Self {
        Self { arg1: other.into(), ..Self::new(tid, (3, 1), from + duration, duration) }
    }

    /// A task wakes another.
    pub(crate) fn wake(waker: u32, at: i64, wakee: u32) -> Self {
        Self { arg1: wakee.into(), ..Self::new(waker, (3, 2), at, 0) }
    }

    /// A process starts another.
    pub(crate) fn fork(parent: u32, at: i64, child: u32) -> Self {
        Self { arg1: child.into(), ..Self::new(parent, (3, 7), at, 0) }
    }

    /// A read from a disk.
    pub(crate) fn read(pid: u32, from: i64, duration: i64) -> Self {
        Self { arg0: 8, ..Self::new(pid, (5, 1), from + duration, duration) }
    }

    pub(crate) fn on(self, node: &'static str) -> Self {
        Self { node, ..self }
    }

    pub(crate) fn thread(self, tid: u32) -> Self {
        Self { tid, ..self }
    }

    /// Turns a launch of the runtime into one of the driver.
    pub(crate) fn driver(self) -> Self {
        Self { source: 4, op: 1, ..self }
    }
}

impl Database {
    pub(crate) fn new(schema: Schema) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let connection = Connection::open(folder.path().join("trace.db")).unwrap();
        let (id, node, comm) = match schema {
            Schema::V08 => ("INTEGER PRIMARY KEY AUTOINCREMENT", "", ""),
            Schema::V09 => ("TEXT PRIMARY KEY", NODE, ""),
            Schema::V10 => ("TEXT PRIMARY KEY", NODE, ", comm TEXT NOT NULL DEFAULT ''"),
        };
        let session_node = if schema == Schema::V08 { "" } else { NODE };
        connection
            .execute_batch(&format!(
                "PRAGMA synchronous = OFF; PRAGMA journal_mode = MEMORY;
                 CREATE TABLE events (id {id}, timestamp INTEGER NOT NULL, pid INTEGER NOT NULL, tid INTEGER NOT NULL,
                   source INTEGER NOT NULL, op INTEGER NOT NULL, duration INTEGER NOT NULL, gpu_id INTEGER NOT NULL DEFAULT 0,
                   arg0 INTEGER NOT NULL DEFAULT 0, arg1 INTEGER NOT NULL DEFAULT 0, ret_code INTEGER NOT NULL DEFAULT 0,
                   stack_hash INTEGER NOT NULL DEFAULT 0 {node}, stack_ips TEXT NOT NULL DEFAULT '',
                   cgroup_id INTEGER NOT NULL DEFAULT 0 {comm});
                 CREATE TABLE event_aggregates (bucket INTEGER NOT NULL, source INTEGER NOT NULL, op INTEGER NOT NULL,
                   pid INTEGER NOT NULL DEFAULT 0, count INTEGER NOT NULL DEFAULT 0, stored INTEGER NOT NULL DEFAULT 0,
                   sum_dur INTEGER NOT NULL DEFAULT 0, min_dur INTEGER NOT NULL DEFAULT 0, max_dur INTEGER NOT NULL DEFAULT 0,
                   sum_arg0 INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (bucket, source, op, pid));
                 CREATE TABLE process_names (pid INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL, seen_at INTEGER NOT NULL DEFAULT 0);
                 CREATE TABLE sessions (id INTEGER PRIMARY KEY AUTOINCREMENT, started_at INTEGER NOT NULL,
                   stopped_at INTEGER NOT NULL DEFAULT 0, gpu_model TEXT NOT NULL DEFAULT '', ingero_ver TEXT NOT NULL DEFAULT ''
                   {session_node});
                 CREATE TABLE schema_info (key TEXT PRIMARY KEY, value TEXT NOT NULL);
                 CREATE TABLE stack_traces (hash INTEGER PRIMARY KEY, ips TEXT NOT NULL, frames TEXT NOT NULL DEFAULT '');
                 CREATE TABLE ops (source_id INTEGER NOT NULL, op_id INTEGER NOT NULL, name TEXT NOT NULL, description TEXT NOT NULL);
                 INSERT INTO ops VALUES (8, 4, 'cudaGraphLaunch', ''), (7, 1, 'net_send', '');
                 INSERT INTO sessions (started_at, stopped_at, ingero_ver) VALUES ({START}, {START} + 60000000000, 'test');
                 INSERT INTO schema_info VALUES ('version', '{}');",
                match schema {
                    Schema::V08 => "0.8",
                    Schema::V09 => "0.9",
                    Schema::V10 => "0.10",
                }
            ))
            .unwrap();
        Self { schema, folder, connection, sequence: 0 }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("trace.db")
    }

    pub(crate) fn sql(&self) -> &Connection {
        &self.connection
    }

    pub(crate) fn name(&self, pid: u32, name: &str) {
        self.connection
            .execute("INSERT INTO process_names (pid, name) VALUES (?, ?)", params![pid, name])
            .unwrap();
    }

    pub(crate) fn add(&mut self, rows: impl IntoIterator<Item = Row>) {
        for row in rows {
            self.sequence += 1;
            let sequence = self.sequence;
            let Row { node, at, pid, tid, source, op, duration, arg0, arg1 } = row;
            let of_all = params![at, pid, tid, source, op, duration, arg0, arg1];
            const COLUMNS: &str = "timestamp, pid, tid, source, op, duration, arg0, arg1";
            self.connection
                .execute(
                    &format!(
                        "INSERT INTO events (id, {COLUMNS}) VALUES ({}, ?, ?, ?, ?, ?, ?, ?, ?)",
                        if self.schema == Schema::V08 {
                            sequence.to_string()
                        } else {
                            format!("'{node}:{sequence}'")
                        }
                    ),
                    of_all,
                )
                .unwrap();
            if self.schema != Schema::V08 {
                self.connection
                    .execute(
                        "UPDATE events SET node = ? WHERE id = ?",
                        params![node, format!("{node}:{sequence}")],
                    )
                    .unwrap();
            }
        }
    }

    /// Adds the counts of the first minute.
    pub(crate) fn aggregate(
        &self,
        (source, op): (i64, i64),
        pid: u32,
        [count, stored, sum, max]: [i64; 4],
    ) {
        self.connection
            .execute(
                "INSERT INTO event_aggregates (bucket, source, op, pid, count, stored, sum_dur, max_dur)
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                params![START, source, op, pid, count, stored, sum, max],
            )
            .unwrap();
    }
}

const NODE: &str =
    ", node TEXT NOT NULL DEFAULT '', rank INTEGER, local_rank INTEGER, world_size INTEGER";

/// One number that a statement gives.
pub(crate) fn number(connection: &Connection, sql: &str) -> Option<i64> {
    use rusqlite::OptionalExtension as _;
    connection.query_row(sql, [], |row| row.get(0)).optional().unwrap().flatten()
}

/// A file opened by another way than the one that is tested.
pub(crate) fn by_sql(path: &Path) -> Connection {
    let uri = format!("file:{}?mode=ro&immutable=1", path.display());
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY | rusqlite::OpenFlags::SQLITE_OPEN_URI;
    Connection::open_with_flags(uri, flags).unwrap()
}
