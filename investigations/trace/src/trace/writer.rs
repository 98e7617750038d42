//! Writes one run of a recorder on one node.
//!
//! Committed data survives a crash of the process: call [`Writer::commit_if_due`] at least once a second.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gpucause_abi::snapshot::ProcessSnapshot;
use gpucause_abi::{ProcId, Tgid};
use gpucause_engine::EngineInput;
use gpucause_engine::chain::Chain;

use super::event_row::NewEvent;
use super::schema;
use super::store::{NodeRef, ProcessRef, SessionRef, Store};
use super::write_error::WriteError;

/// Age at which a transaction is committed: with the caller's interval, at most a second is lost.
const COMMIT_AFTER: Duration = Duration::from_millis(500);
/// Session detail: largest error of the node's clock at the start, in nanoseconds.
pub const CLOCK_ERROR: &str = "clock_error_ns";

/// One in so many events is deleted when the file is full.
const PRUNE_ONE_IN: u64 = 10;

/// Facts that are known when a recorder starts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Start {
    /// Name of the node: that of `--node`, else the host's.
    pub node: String,
    /// Program and version, such as `gpucause 0.1.0`.
    pub recorder: String,
    /// Start in nanoseconds since the Unix epoch.
    pub started_ns: i64,
    /// Host, thresholds and the like: names and values, in the order in which they are shown.
    pub details: Vec<(String, String)>,
    /// Largest size of the file in bytes. Beyond it the oldest events are deleted.
    pub size_limit: Option<u64>,
    /// True to replace an existing file.
    pub overwrite: bool,
}

/// A complete file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// Its path.
    pub path: PathBuf,
    /// Events in it.
    pub events: u64,
    /// Events deleted to stay within the size limit.
    pub pruned_events: u64,
    /// True if it needs the WAL beside it, as another program kept it open.
    pub needs_wal: bool,
}

/// Writes a trace file.
#[derive(Debug)]
pub struct Writer {
    store: Store,
    node: NodeRef,
    session: SessionRef,
    processes: HashMap<ProcId, Known>,
    chains: HashMap<String, Chain>,
    /// Sequences of the oldest event in the file and of the next one.
    sequences: (u64, u64),
    size_limit: Option<u64>,
    lost_events: Option<u64>,
}

/// The store takes what is written as it comes.
impl Deref for Writer {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

impl DerefMut for Writer {
    fn deref_mut(&mut self) -> &mut Store {
        &mut self.store
    }
}

#[derive(Debug)]
struct Known {
    row: ProcessRef,
    comm: String,
    rank: Option<u32>,
    /// True if its final accounts are written.
    settled: bool,
}

impl Writer {
    /// Starts a file.
    ///
    /// # Errors
    /// When a file exists that may not be overwritten, or none can be created.
    pub fn create(path: &Path, start: &Start) -> Result<Self, WriteError> {
        Self::of(Store::create(path, start.overwrite)?, start)
    }

    /// Starts a file in memory; see [`into_bytes`](Self::into_bytes).
    ///
    /// # Errors
    /// When memory does not suffice.
    pub fn in_memory(start: &Start) -> Result<Self, WriteError> {
        Self::of(Store::in_memory()?, start)
    }

    fn of(mut store: Store, start: &Start) -> Result<Self, WriteError> {
        let Start { node, recorder, started_ns, details, size_limit, overwrite: _ } = start;
        let node = store.node(node, None)?;
        let session = store.session(node, *started_ns, recorder)?;
        store.session_details(session, details)?;
        store.commit()?;
        Ok(Self {
            store,
            node,
            session,
            processes: HashMap::new(),
            chains: HashMap::new(),
            sequences: (1, 1),
            size_limit: *size_limit,
            lost_events: None,
        })
    }

    /// The process with this id in the accounts. Cheap for a known one, whose name is updated.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn process(&mut self, id: ProcId, pid: Tgid, comm: &str) -> Result<ProcessRef, WriteError> {
        if let Some(known) = self.processes.get_mut(&id) {
            if known.comm != comm {
                comm.clone_into(&mut known.comm);
                self.store.rename_process(known.row, comm, known.rank)?;
            }
            return Ok(known.row);
        }
        let row = self.store.process(self.node, Some((self.session, id.0)), (pid.0, comm))?;
        let known = Known { row, comm: comm.to_owned(), rank: None, settled: false };
        self.processes.insert(id, known);
        Ok(row)
    }

    /// Adds events. Their ids increase in this order.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn add_events<'a>(
        &mut self,
        events: impl IntoIterator<Item = NewEvent<'a>>,
    ) -> Result<(), WriteError> {
        let next = &mut self.sequences.1;
        let numbered = events.into_iter().map(|event| {
            let sequence = *next;
            *next += 1;
            (sequence, event)
        });
        self.store.add_events(self.node, numbered)
    }

    /// Events in the file, and those that were written to it: the oldest may be deleted since.
    #[must_use]
    pub const fn event_counts(&self) -> (u64, u64) {
        let (oldest, next) = self.sequences;
        (next - oldest, next - 1)
    }

    /// Sets the number of events that the kernel dropped so far because its buffers were full.
    pub fn set_lost_events(&mut self, lost: u64) {
        self.lost_events = Some(lost);
    }

    /// Adds a snapshot, and the chains known at that time. A chain keeps its last version, also after it is no longer reported.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn add_snapshot(
        &mut self,
        input: &EngineInput,
        chains: &[Chain],
    ) -> Result<(), WriteError> {
        self.store.snapshot(self.session, input)?;
        for process in &input.snapshot.processes {
            self.settle(process)?;
        }
        for chain in chains {
            if self.chains.get(&chain.id) != Some(chain) {
                self.store.chain(self.node, Some(self.session), chain)?;
                self.chains.insert(chain.id.clone(), chain.clone());
            }
        }
        Ok(())
    }

    fn settle(&mut self, process: &ProcessSnapshot) -> Result<(), WriteError> {
        let row = self.process(process.id, process.tgid, &process.comm.to_text())?;
        let Some(known) = self.processes.get_mut(&process.id) else { return Ok(()) };
        let rank = process.rank.map(|(rank, _)| rank);
        if rank.is_some() && rank != known.rank {
            known.rank = rank;
            self.store.rename_process(row, &known.comm, rank)?;
        }
        if !known.settled {
            known.settled = process.ended.is_some();
            self.store.totals(row, process)?;
        }
        Ok(())
    }

    /// Commits when the open transaction is old enough.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn commit_if_due(&mut self) -> Result<(), WriteError> {
        if self.store.uncommitted_for().is_some_and(|age| age >= COMMIT_AFTER) {
            self.commit()?;
        }
        Ok(())
    }

    /// Commits the open transaction.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn commit(&mut self) -> Result<(), WriteError> {
        self.prune()?;
        self.store.session_numbers(self.session, None, self.lost_events)?;
        self.store.commit()
    }

    /// Ends the session and turns the database and its WAL into one file, unless another program keeps it open.
    ///
    /// # Errors
    /// When the file cannot be written; the data stays readable.
    pub fn finish(mut self) -> Result<Finished, WriteError> {
        self.end()?;
        let (oldest, next) = self.sequences;
        let (path, needs_wal) = match self.store.finish() {
            Err(WriteError::InUse(path)) => (path, true),
            finished => (finished?, false),
        };
        Ok(Finished { path, events: next - oldest, pruned_events: oldest - 1, needs_wal })
    }

    /// Ends the session and returns the bytes of the file.
    ///
    /// # Errors
    /// When memory does not suffice.
    pub fn into_bytes(mut self) -> Result<Vec<u8>, WriteError> {
        self.end()?;
        self.store.into_bytes()
    }

    fn end(&mut self) -> Result<(), WriteError> {
        self.commit()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        self.store.session_numbers(self.session, Some(now), self.lost_events)
    }

    /// Deletes the oldest events, then snapshots, until the file is within its limit.
    fn prune(&mut self) -> Result<(), WriteError> {
        let Some(limit) = self.size_limit else { return Ok(()) };
        let (before, next) = self.sequences;
        loop {
            let (oldest, _) = self.sequences;
            let events = next - oldest;
            if self.store.bytes_used()? + events * schema::INDEX_BYTES <= limit {
                break;
            }
            if events > 0 {
                let first_kept = oldest + (events / PRUNE_ONE_IN).max(1);
                self.store.drop_events(self.node, first_kept)?;
                self.sequences.0 = first_kept;
            } else if !self.store.drop_snapshots(PRUNE_ONE_IN)? {
                break;
            }
        }
        if self.sequences.0 > before {
            self.store.pruned(self.session, self.sequences.0 - 1)?;
        }
        Ok(())
    }
}
