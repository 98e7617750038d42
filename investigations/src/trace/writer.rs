//! One run of a recorder on one node, written as it goes.
//!
//! What was committed outlasts the process, whatever ends it: call [`Writer::commit_if_due`] at least once a second.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gpucause_abi::snapshot::{ProcessSnapshot, Snapshot};
use gpucause_abi::{ProcId, Tgid};
use gpucause_engine::Moment;
use gpucause_engine::chain::Chain;

use super::event_row::NewEvent;
use super::schema;
use super::store::{NodeRef, ProcessRef, SessionRef, Store};
use super::write_error::WriteError;
use crate::recording::{Stack, StackId};

/// After so long what was written is committed, so that with the time of a caller's turn no more than a second is lost.
const COMMIT_AFTER: Duration = Duration::from_millis(500);
/// Name of the detail of a session that says by how many nanoseconds the node's clock was off at most when it began.
pub const CLOCK_ERROR: &str = "clock_error_ns";
/// Share of the events that goes when there is no room for all: one in so many.
const PRUNE_ONE_IN: u64 = 10;

/// What is known when a recorder starts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Start {
    /// Name of the node, as `--node` or the host tells it.
    pub node: String,
    /// What records, such as `gpucause 0.1.0`.
    pub recorder: String,
    /// When it began, in nanoseconds since the Unix epoch.
    pub started_ns: i64,
    /// Host, thresholds and the like: names and values, in the order in which they are told.
    pub details: Vec<(String, String)>,
    /// How many bytes the file may take. Beyond that the oldest events go.
    pub size_limit: Option<u64>,
    /// Whether an existing file goes.
    pub overwrite: bool,
}

/// A file that is whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// Where it is.
    pub path: PathBuf,
    /// Events in it.
    pub events: u64,
    /// Events that went again for want of room.
    pub pruned_events: u64,
}

/// Writes a trace file.
#[derive(Debug)]
pub struct Writer {
    store: Store,
    node: NodeRef,
    session: SessionRef,
    processes: HashMap<ProcId, Known>,
    chains: HashMap<String, Chain>,
    /// Sequences of the oldest event that is there, and of the next.
    sequences: (u64, u64),
    size_limit: Option<u64>,
    lost_events: Option<u64>,
}

#[derive(Debug)]
struct Known {
    row: ProcessRef,
    comm: String,
    rank: Option<u32>,
    /// Whether its last accounts are written.
    settled: bool,
}

impl Writer {
    /// Whether a file could be started here; leaves everything as it is.
    ///
    /// # Errors
    /// When there is one already that may not be overwritten, or none can be made in that folder.
    pub fn check(path: &Path, overwrite: bool) -> Result<(), WriteError> {
        Store::check(path, overwrite)
    }

    /// Starts a file.
    ///
    /// # Errors
    /// When there is one already that may not be overwritten, or none can be made.
    pub fn create(path: &Path, start: &Start) -> Result<Self, WriteError> {
        let Start { node, recorder, started_ns, details, size_limit, overwrite } = start;
        let mut store = Store::create(path, *overwrite)?;
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

    /// The process of this number in the accounts. Cheap when it is known already; its name is that which was told last.
    ///
    /// # Errors
    /// When the file cannot be written, as for all that follow.
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

    /// Says what else is known of a process, instead of what was said before.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn describe_process(
        &mut self,
        process: ProcessRef,
        details: &[(String, String)],
    ) -> Result<(), WriteError> {
        self.store.process_details(process, details)
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
        self.store.name_thread(process, tid, name)
    }

    /// Names the kernel function that a process launches by this handle.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn name_kernel(
        &mut self,
        process: ProcessRef,
        handle: u64,
        name: &str,
    ) -> Result<(), WriteError> {
        self.store.name_kernel(process, handle, name)
    }

    /// The stack; one that was told before is not written again.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn stack(&mut self, stack: &Stack) -> Result<StackId, WriteError> {
        self.store.stack(stack)
    }

    /// Tells a stack anew, now that more is known of its frames.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn name_stack(&mut self, id: StackId, stack: &Stack) -> Result<(), WriteError> {
        self.store.name_stack(id, stack)
    }

    /// Adds events, in the order in which their ids are to count.
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

    /// Says how many events were lost so far for want of room in the kernel.
    pub fn set_lost_events(&mut self, lost: u64) {
        self.lost_events = Some(lost);
    }

    /// Adds a look at the accounts, and the chains that were known then. Each chain is told as it was told last; those that
    /// are not told any more stay.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn add_look(&mut self, moment: &Moment, chains: &[Chain]) -> Result<(), WriteError> {
        self.store.moment(self.session, moment)?;
        let Snapshot { processes, .. } = &*moment.snapshot;
        for process in processes {
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

    /// Commits what was written when it is time to.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn commit_if_due(&mut self) -> Result<(), WriteError> {
        if self.store.waiting().is_some_and(|waiting| waiting >= COMMIT_AFTER) {
            self.commit()?;
        }
        Ok(())
    }

    /// Commits what was written: from then on it outlasts this process.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn commit(&mut self) -> Result<(), WriteError> {
        self.prune()?;
        self.store.session_numbers(self.session, None, self.lost_events)?;
        self.store.commit()
    }

    /// Ends the session and makes the file one, with no other beside it.
    ///
    /// # Errors
    /// When the file cannot be written, or another program has it open for long; what was written stays readable.
    pub fn finish(mut self) -> Result<Finished, WriteError> {
        self.commit()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        self.store.session_numbers(self.session, Some(now), self.lost_events)?;
        let (oldest, next) = self.sequences;
        let path = self.store.finish()?;
        Ok(Finished { path, events: next - oldest, pruned_events: oldest - 1 })
    }

    /// Takes the oldest events away until there is room.
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
            } else if !self.store.drop_looks(PRUNE_ONE_IN)? {
                break;
            }
        }
        if self.sequences.0 > before {
            self.store.pruned(self.session, self.sequences.0 - 1)?;
        }
        Ok(())
    }
}
