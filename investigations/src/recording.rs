//! What a recording tells, whichever program wrote it: gpucause's own trace files, and those of Ingero.
//!
//! Everything that is asked of a file is asked through [`Recording`], so that `explain`, `export`, `replay` and MCP know no
//! schema. Times are nanoseconds since the Unix epoch by the clock of the node that recorded them, durations nanoseconds.

mod event;
mod open;
mod statistics;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use gpucause_abi::ProcId;
use gpucause_engine::Moment;
use gpucause_engine::chain::Chain;

pub use event::{Call, Event, EventId, Kind, OffCpu, Party, Stack, StackFrame, StackId};
pub(crate) use open::{error, read_only};
pub use open::{is_same_file, open};
pub use statistics::{CallStatistics, Completeness, Durations, WaitStatistics};

/// Index into [`Recording::nodes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeIndex(pub u16);

/// Index into [`Recording::processes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessIndex(pub u32);

/// A host that was recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Its name; that given with `--node`, else the host's.
    pub name: String,
    /// By how many nanoseconds its clock is ahead of that of the first node, where that was measured.
    pub clock_ahead_ns: Option<i64>,
}

/// One time that a recorder ran.
#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    /// On this node.
    pub node: NodeIndex,
    /// From then on.
    pub started_ns: i64,
    /// Until then; `None` when it was killed.
    pub ended_ns: Option<i64>,
    /// What recorded, such as `gpucause 0.1.0`.
    pub recorder: String,
    /// What is known of the host and of how it was recorded: names and values, in the order in which they are told.
    pub details: Vec<(String, String)>,
    /// Events that were lost for want of room, where the recorder counts them.
    pub lost_events: Option<u64>,
}

/// A process of a node: one life of one image.
#[derive(Debug, Clone, PartialEq)]
pub struct Process {
    /// On this node.
    pub node: NodeIndex,
    /// Its PID on the host.
    pub pid: u32,
    /// Its name; a name that the process gave itself is data, whatever it says.
    pub comm: String,
    /// The rank in its communicator, when it told one.
    pub rank: Option<u32>,
    /// What else is known of it, such as `container_id`: names and values.
    pub details: Vec<(String, String)>,
}

/// A chain, and the node that it was found on.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeChain {
    /// The node.
    pub node: NodeIndex,
    /// The chain.
    pub chain: Chain,
}

/// What a live daemon saw when it looked at the accounts.
#[derive(Debug, Clone)]
pub struct Look {
    /// Where.
    pub node: NodeIndex,
    /// Index into [`Recording::sessions`].
    pub session: usize,
    /// Which of [`Recording::processes`] those of the accounts are. The numbers are those of this session.
    pub processes: Arc<HashMap<ProcId, ProcessIndex>>,
    /// What the engine is given.
    pub moment: Moment,
}

/// What a process calls a kernel function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelName {
    /// The process.
    pub process: ProcessIndex,
    /// The handle by which it launches the function, as the accounts tell it.
    pub handle: u64,
    /// The readable name.
    pub name: String,
}

/// Which events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Filter {
    /// Those that end at or after this moment.
    pub from_ns: Option<i64>,
    /// Those that begin before this moment.
    pub until_ns: Option<i64>,
    /// Those of this process.
    pub process: Option<ProcessIndex>,
    /// Those that last at least so long.
    pub at_least_ns: u64,
}

/// Why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The file is not there, or not for us.
    #[error("cannot open {path}: {source}")]
    Open {
        /// The file.
        path: PathBuf,
        /// What SQLite says.
        source: rusqlite::Error,
    },
    /// It is a database of something else, or no database.
    #[error(
        "{path} is no trace: {reason}; gpucause reads what `gpucause record` writes, and Ingero's trace databases"
    )]
    NotATrace {
        /// The file.
        path: PathBuf,
        /// What was looked for.
        reason: String,
    },
    /// Its last part is in a file beside it, which SQLite can only read where it may write.
    #[error(
        "{path} was not finished, and cannot be read where it is: copy it and {path}-wal to a folder in which you may write"
    )]
    LeftOpen {
        /// The file.
        path: PathBuf,
    },
    /// A newer gpucause wrote it.
    #[error(
        "{path} has schema version {found}, and this gpucause reads up to {known}; read it with a newer gpucause"
    )]
    TooNew {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// The newest known here.
        known: i64,
    },
    /// A query has what memory there is for SQLite, which is one for the whole program.
    #[error(
        "{path} cannot be read now: queries that run beside this take all memory that SQLite may have; ask again, or with less at once"
    )]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// Something in it is not as it must be.
    #[error("{path} is damaged: {reason}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What, and where.
        reason: String,
    },
}

/// What was recorded on one node or more.
///
/// Lists are read when the file is opened and are small; events are read as they are asked for and may be millions.
pub trait Recording: std::fmt::Debug + Send {
    /// What the file is, such as `gpucause trace, schema 1`.
    fn format(&self) -> String;

    /// The nodes; at least one.
    fn nodes(&self) -> &[Node];

    /// The recorders' runs, in the order in which they began.
    fn sessions(&self) -> &[Session];

    /// The processes.
    fn processes(&self) -> &[Process];

    /// The name of a thread, where it was recorded.
    fn thread_name(&self, process: ProcessIndex, tid: u32) -> Option<&str>;

    /// Every causal chain, the worst first: as the recorder's engine found them where it measured overlap, else derived anew
    /// from the events.
    ///
    /// # Errors
    /// When the file is damaged.
    fn chains(&self) -> Result<Vec<NodeChain>, RecordingError>;

    /// Durations of calls, by process, op and coldness.
    ///
    /// # Errors
    /// When the file is damaged.
    fn calls(&self) -> Result<Vec<CallStatistics>, RecordingError>;

    /// Off-CPU time, by process, thread where it is known, and reason.
    ///
    /// # Errors
    /// When the file is damaged.
    fn waits(&self) -> Result<Vec<WaitStatistics>, RecordingError>;

    /// Shows `each` the events in the order of their starts, until it breaks.
    ///
    /// # Errors
    /// When the file is damaged. Events before the damage have been shown.
    fn events(
        &self,
        filter: &Filter,
        each: &mut dyn FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<(), RecordingError>;

    /// How many events the file holds.
    ///
    /// # Errors
    /// When the file is damaged.
    fn event_count(&self) -> Result<u64, RecordingError>;

    /// A stack.
    ///
    /// # Errors
    /// When the file is damaged.
    fn stack(&self, id: StackId) -> Result<Option<Stack>, RecordingError>;

    /// Shows `each` what was seen at each look at the accounts, session by session in the order of time, until it breaks.
    /// Only gpucause's own files hold accounts.
    ///
    /// # Errors
    /// When the file is damaged. Looks before the damage have been shown.
    fn looks(&self, each: &mut dyn FnMut(Look) -> ControlFlow<()>) -> Result<(), RecordingError> {
        let _ = each;
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
