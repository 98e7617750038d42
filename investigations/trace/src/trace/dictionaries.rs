//! The dictionaries of a file, and the events that refer to them.

use gpucause_abi::op::Api;
use rusqlite::{Connection, params};

use super::dictionary::{Dictionary, Pairs};
use super::event_row::{Columns, NewEvent};
use super::store::{ProcessRef, signed};

/// Values that repeat in events.
#[derive(Debug)]
pub(super) struct Dictionaries {
    names: Dictionary<Box<str>>,
    ops: Pairs<Api>,
    tasks: Pairs<Option<u32>>,
    threads: Dictionary<(i64, u32)>,
    pub(super) stacks: Dictionary<i64>,
}

impl Default for Dictionaries {
    fn default() -> Self {
        Self {
            names: Dictionary::new("INSERT INTO names VALUES (?, ?)"),
            ops: Pairs::new("INSERT INTO ops VALUES (?, ?, ?)"),
            tasks: Pairs::new("INSERT INTO parties VALUES (?, ?, ?)"),
            threads: Dictionary::new("INSERT INTO threads VALUES (?, ?, ?, NULL)"),
            stacks: Dictionary::new("INSERT INTO stacks VALUES (?, ?, ?)"),
        }
    }
}

impl Dictionaries {
    /// Rows of each table.
    pub(super) fn rows(&self) -> [i64; 5] {
        let Self { names, ops, tasks, threads, stacks } = self;
        [names.rows(), ops.rows(), tasks.rows(), threads.rows(), stacks.rows()]
    }

    /// Forgets the rows that were added after there were so many.
    pub(super) fn shrink(&mut self, [names, ops, tasks, threads, stacks]: [i64; 5]) {
        self.names.shrink(names);
        self.ops.shrink(ops);
        self.tasks.shrink(tasks);
        self.threads.shrink(threads);
        self.stacks.shrink(stacks);
    }

    fn name(&mut self, connection: &Connection, text: &str) -> rusqlite::Result<i64> {
        self.names.id(connection, text, || text.into(), |id| (id, text.to_owned()))
    }

    pub(super) fn op(
        &mut self,
        connection: &Connection,
        api: Api,
        op: &str,
    ) -> rusqlite::Result<i64> {
        self.ops.id(connection, (op, api), |id| (id, api.label(), op.to_owned()))
    }

    pub(super) fn thread(
        &mut self,
        connection: &Connection,
        process: ProcessRef,
        tid: u32,
    ) -> rusqlite::Result<i64> {
        let key = (process.0, tid);
        self.threads.id(connection, &key, || key, |id| (id, process.0, tid))
    }

    pub(super) fn insert(
        &mut self,
        connection: &Connection,
        statement: &mut rusqlite::Statement<'_>,
        id: i64,
        event: &NewEvent<'_>,
    ) -> rusqlite::Result<()> {
        let columns = Columns::of(&event.kind);
        let mut named =
            |text: Option<&str>| text.map(|text| self.name(connection, text)).transpose();
        let kind = named(Some(columns.kind))?;
        let direction = named(columns.direction)?;
        let object = named(columns.object)?;
        let reason = named(columns.reason)?;
        let op = columns.op.map(|(api, op)| self.op(connection, api, op)).transpose()?;
        let task = columns.task.map(|task| {
            let row = |id| (id, task.pid, task.comm.to_owned());
            self.tasks.id(connection, (task.comm, task.pid), row)
        });
        let thread = self.thread(connection, event.process, event.tid)?;
        statement.execute(params![
            id,
            event.start_ns,
            signed(event.duration_ns),
            thread,
            kind,
            op,
            columns.outermost,
            columns.cold,
            columns.code,
            columns.off_cpu_ns.map(signed),
            columns.bytes.map(signed),
            direction,
            object,
            reason,
            task.transpose()?,
            event.stack.map(|stack| stack.0),
        ])?;
        Ok(())
    }
}
