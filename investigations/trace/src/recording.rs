//! Recordings, independent of the file format: gpucause's own trace files and Ingero's.
//!
//! `explain`, `export`, `replay` and MCP read files through [`Recording`] only and know no schema. Times are nanoseconds since
//! the Unix epoch by the clock of the node that recorded them, durations nanoseconds.

mod event;
mod open;
mod statistics;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpucause_abi::ProcId;
use gpucause_engine::EngineInput;
use gpucause_engine::chain::Chain;
use gpucause_engine::observation::ObservationState;

pub use event::{Call, Event, EventId, Kind, OffCpu, Stack, StackFrame, StackId, Task};
pub(crate) use open::in_memory;
pub use open::{error, is_same_file, read_only, wal_of};
pub use statistics::{CallStatistics, Completeness, Durations, WaitStatistics};

/// Session detail: the [`ObservationState`] at its end as JSON, of a recorder that does not observe all the time.
pub const OBSERVATION: &str = "observation";
/// Session detail: the processes of `record --pid`, separated by commas; empty or absent where it recorded all.
pub const PIDS: &str = "pids";

/// Index into [`Recording::nodes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeIndex(pub u16);

/// Index into [`Recording::processes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessIndex(pub u32);

/// A host that was recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The name given with `--node`, else the host's.
    pub name: String,
    /// Lead of its clock over the first node's in nanoseconds, where that was measured.
    pub clock_ahead_ns: Option<i64>,
}

/// One run of a recorder.
#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    /// The recorded node.
    pub node: NodeIndex,
    /// Start in nanoseconds since the Unix epoch.
    pub started_ns: i64,
    /// End in nanoseconds since the Unix epoch; `None` when the recorder was killed.
    pub ended_ns: Option<i64>,
    /// Program and version, such as `gpucause 0.1.0`.
    pub recorder: String,
    /// Names and values about the host and the recording, in the order in which they are shown.
    pub details: Vec<(String, String)>,
    /// Events dropped because a buffer was full, where the recorder counts them.
    pub lost_events: Option<u64>,
}

impl Session {
    /// The state of the observation at its end, where the recorder has written it.
    pub fn observation(&self) -> Option<ObservationState> {
        let (_, state) = self.details.iter().find(|(name, _)| name == OBSERVATION)?;
        serde_json::from_str(state).ok()
    }

    /// The processes of `record --pid`; empty where all were recorded.
    pub fn pids(&self) -> Vec<u32> {
        let detail = self.details.iter().find(|(name, _)| name == PIDS);
        let pids = detail.map_or("", |(_, pids)| pids).split(',');
        pids.filter_map(|pid| pid.parse().ok()).collect()
    }
}

/// A process of a node: one life of one image.
#[derive(Debug, Clone, PartialEq)]
pub struct Process {
    /// Its node.
    pub node: NodeIndex,
    /// Its PID on the host.
    pub pid: u32,
    /// Its name. The process chose it: untrusted.
    pub comm: String,
    /// The rank in its communicator, where known.
    pub rank: Option<u32>,
    /// Further names and values, such as `container_id`.
    pub details: Vec<(String, String)>,
}

/// A chain and the node on which it was found.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeChain {
    /// The node.
    pub node: NodeIndex,
    /// The chain.
    pub chain: Chain,
}

/// The accounts as the daemon read them for one evaluation.
#[derive(Debug, Clone)]
pub struct RecordedSnapshot {
    /// The recorded node.
    pub node: NodeIndex,
    /// Index into [`Recording::sessions`].
    pub session: usize,
    /// [`Recording::processes`] by the accounts' ids, which are unique within the session.
    pub processes: Arc<HashMap<ProcId, ProcessIndex>>,
    /// The engine's input.
    pub input: EngineInput,
}

/// The readable name of a kernel function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelName {
    /// The process.
    pub process: ProcessIndex,
    /// The handle by which the process launches the function and the accounts count it.
    pub handle: u64,
    /// The readable name.
    pub name: String,
}

/// Selects events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Filter {
    /// Earliest end, in nanoseconds since the Unix epoch.
    pub from_ns: Option<i64>,
    /// Start before this time, in nanoseconds since the Unix epoch.
    pub until_ns: Option<i64>,
    /// Events of this process only.
    pub process: Option<ProcessIndex>,
    /// Events of this node only.
    pub node: Option<NodeIndex>,
    /// Shortest duration, in nanoseconds.
    pub at_least_ns: u64,
}

impl Filter {
    /// Returns true if it selects this event.
    #[must_use]
    pub fn has(&self, event: &Event) -> bool {
        self.from_ns.is_none_or(|from| event.end_ns() >= from)
            && self.until_ns.is_none_or(|until| event.start_ns < until)
            && self.process.is_none_or(|process| event.process == process)
            && self.node.is_none_or(|node| event.id.node == node)
            && event.duration_ns >= self.at_least_ns
    }
}

/// Sorts chains, the [worst first](Chain::worst_first).
pub fn sort_worst_first(chains: &mut [NodeChain]) {
    chains.sort_by(|a, b| a.chain.worst_first(&b.chain, Chain::ALWAYS));
}

/// For callbacks that can fail where the reader only knows [`ControlFlow`]: keeps the error and stops reading.
pub fn or_break<E>(result: Result<(), E>, failure: &mut Option<E>) -> ControlFlow<()> {
    match result {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            *failure = Some(error);
            ControlFlow::Break(())
        }
    }
}

/// Why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The file is missing or not readable.
    #[error("cannot open {0}: {1} - check that it exists and may be read")]
    Open(PathBuf, #[source] rusqlite::Error),
    /// The file is another database, or none.
    #[error(
        "{0} is not a trace: {1} - supported are files of `gpucause record` and Ingero's trace databases"
    )]
    NotATrace(PathBuf, String),
    /// The last part is still in the WAL file beside it, which SQLite reads only from a writable folder.
    #[error(
        "{0} was not finished and its folder is not writable - copy it and {0}-wal to a folder that is"
    )]
    LeftOpen(PathBuf),
    /// It was copied without the WAL file that has all of its content.
    #[error("{0} has no content without {0}-wal, its recorder was killed - copy both files")]
    WithoutWal(PathBuf),
    /// A newer gpucause wrote it.
    #[error(
        "{path} has schema version {found}, this gpucause reads up to {known} - use a newer gpucause"
    )]
    TooNew {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// The newest version known here.
        known: i64,
    },
    /// A query uses all memory of SQLite's heap limit, which applies to the whole process.
    #[error("{0} cannot be read now: SQLite is out of memory because of other queries - retry")]
    Busy(PathBuf),
    /// The file contradicts its schema.
    #[error("{0} is damaged: {1} - copy it again, or see .recover of the sqlite3 shell")]
    Damaged(PathBuf, String),
}

impl RecordingError {
    /// The file.
    pub fn path(&self) -> &Path {
        match self {
            Self::Open(path, _)
            | Self::NotATrace(path, _)
            | Self::LeftOpen(path)
            | Self::WithoutWal(path)
            | Self::TooNew { path, .. }
            | Self::Busy(path)
            | Self::Damaged(path, _) => path,
        }
    }
}

/// A recording of one or more nodes.
///
/// Lists are read when the file is opened and are small. Events are read on demand and may be millions.
pub trait Recording: std::fmt::Debug + Send {
    /// Format and version, such as `gpucause trace, schema 1`.
    fn format(&self) -> String;

    /// The nodes; at least one.
    fn nodes(&self) -> &[Node];

    /// The recorders' runs, in the order of their starts.
    fn sessions(&self) -> &[Session];

    /// The processes.
    fn processes(&self) -> &[Process];

    /// A process, where the index is valid.
    fn process_at(&self, process: ProcessIndex) -> Option<&Process> {
        self.processes().get(usize::try_from(process.0).ok()?)
    }

    /// The name of a node; empty where the index is invalid.
    fn node_name(&self, node: NodeIndex) -> &str {
        self.nodes().get(usize::from(node.0)).map_or("", |node| &node.name)
    }

    /// The name of a thread, where it was recorded.
    fn thread_name(&self, _process: ProcessIndex, _tid: u32) -> Option<&str> {
        None
    }

    /// Every causal chain, the worst first: those of the recorder's engine, or derived from the events of Ingero's files.
    ///
    /// # Errors
    /// When the file is damaged.
    fn chains(&self) -> Result<Vec<NodeChain>, RecordingError>;

    /// Durations of calls, by process, op and coldness.
    ///
    /// # Errors
    /// When the file is damaged.
    fn calls(&self) -> Result<Vec<CallStatistics>, RecordingError> {
        Ok(Vec::new())
    }

    /// Off-CPU time, by process, thread where known, and reason.
    ///
    /// # Errors
    /// When the file is damaged.
    fn waits(&self) -> Result<Vec<WaitStatistics>, RecordingError> {
        Ok(Vec::new())
    }

    /// Passes the events to `each` in the order of their starts, until it breaks.
    ///
    /// # Errors
    /// When the file is damaged. Events before the damage have been passed.
    fn events(
        &self,
        _filter: &Filter,
        _each: &mut dyn FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<(), RecordingError> {
        Ok(())
    }

    /// Number of events in the file.
    ///
    /// # Errors
    /// When the file is damaged.
    fn event_count(&self) -> Result<u64, RecordingError> {
        Ok(0)
    }

    /// A stack.
    ///
    /// # Errors
    /// When the file is damaged.
    fn stack(&self, _id: StackId) -> Result<Option<Stack>, RecordingError> {
        Ok(None)
    }

    /// Passes the recorded snapshots to `each`, session by session in the order of time, until it breaks. Only gpucause's own
    /// files hold snapshots.
    ///
    /// # Errors
    /// When the file is damaged. Snapshots before the damage have been passed.
    fn snapshots(
        &self,
        _each: &mut dyn FnMut(RecordedSnapshot) -> ControlFlow<()>,
    ) -> Result<(), RecordingError> {
        Ok(())
    }

    /// Names of the kernel functions by whose handles the accounts count launches.
    ///
    /// # Errors
    /// When the file is damaged.
    fn kernel_names(&self) -> Result<Vec<KernelName>, RecordingError> {
        Ok(Vec::new())
    }
}
