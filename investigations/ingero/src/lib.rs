//! Reads the trace databases of Ingero, schemas 0.8 to 0.10. Pitfalls of the format:
//!
//! - The timestamp of a call is its start; that of an off-CPU wait or disk request is its end.
//! - Scheduler rows have the TID in the column `pid`.
//! - Driver calls are stored in addition to the runtime calls that made them.
//! - Events are a sample; `event_aggregates` counts all of them.
//!
//! Chains in the file are ignored; see `chains.rs`.

mod chains;
mod codes;
mod events;
mod lists;
mod rows;
mod schema;
mod statistics;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use codes::Codes;
use lists::{Aggregate, Lists};
use schema::{File, integer, natural, text};

use gpucause_trace::recording::{
    CallStatistics, Event, Filter, Node, NodeChain, NodeIndex, Process, ProcessIndex, Recording,
    RecordingError, Session, Stack, StackId, WaitStatistics,
};

/// A trace database of Ingero.
#[derive(Debug)]
pub struct Ingero {
    file: File,
    codes: Codes,
    lists: Lists,
    aggregates: Vec<Aggregate>,
}

impl Ingero {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// When it cannot be opened, is not Ingero's, or is damaged.
    pub fn open(path: &Path) -> Result<Self, RecordingError> {
        let file = File::open(path)?;
        let mut names = HashMap::new();
        if file.has("ops", "source_id") && file.has("ops", "op_id") && file.has("ops", "name") {
            names.extend(
                file.rows("SELECT source_id, op_id, name FROM ops LIMIT 10000", |row| {
                    Ok(((integer(row, 0)?, integer(row, 1)?), Arc::from(text(row, 2)?)))
                })?,
            );
        }
        let lists = Lists::read(&file)?;
        let aggregates = lists::aggregates(&file)?;
        Ok(Self { file, codes: Codes::new(names), lists, aggregates })
    }

    /// The node of an aggregate, which the table does not store, where it is certain.
    fn node_of_aggregate(&self, aggregate: &Aggregate) -> Option<NodeIndex> {
        if self.lists.node_count() == 1 {
            return Some(NodeIndex(0));
        }
        match self.lists.nodes_with(aggregate.pid)[..] {
            [only] => Some(only),
            _ => None,
        }
    }
}

impl Recording for Ingero {
    fn format(&self) -> String {
        match &self.file.version {
            Some(version) => format!("Ingero trace, schema {version}"),
            None => "Ingero trace".into(),
        }
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
        let node = self.lists.get(process)?.node;
        if self.lists.process_of_thread(node, tid)? != process {
            return None;
        }
        self.lists.task_name(node, tid)
    }

    fn chains(&self) -> Result<Vec<NodeChain>, RecordingError> {
        self.derive_chains()
    }

    fn calls(&self) -> Result<Vec<CallStatistics>, RecordingError> {
        self.call_statistics()
    }

    fn waits(&self) -> Result<Vec<WaitStatistics>, RecordingError> {
        self.wait_statistics()
    }

    fn events(
        &self,
        filter: &Filter,
        each: &mut dyn FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<(), RecordingError> {
        self.read_events(filter, each)
    }

    fn event_count(&self) -> Result<u64, RecordingError> {
        let count = self.file.rows("SELECT count(*) FROM events", |row| natural(row, 0))?;
        Ok(count.into_iter().sum())
    }

    fn stack(&self, id: StackId) -> Result<Option<Stack>, RecordingError> {
        self.read_stack(id)
    }
}
