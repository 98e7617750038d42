//! One thing that happened at one time.

use std::sync::Arc;

use gpucause_abi::op::Api;
use gpucause_abi::state::{BlockOperation, Reason};

use super::{NodeIndex, ProcessIndex};

/// Names an event among those of all nodes. Shown as `NODE:SEQUENCE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId {
    /// The node that it happened on.
    pub node: NodeIndex,
    /// Counts up on each node, over all its sessions.
    pub sequence: u64,
}

/// Names a stack in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackId(pub i64);

/// Something that a thread of a process did, or that happened to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Its name.
    pub id: EventId,
    /// When it began, in nanoseconds since the Unix epoch.
    pub start_ns: i64,
    /// How long it took, in nanoseconds; 0 for what takes no time.
    pub duration_ns: u64,
    /// The process.
    pub process: ProcessIndex,
    /// The thread.
    pub tid: u32,
    /// What it was.
    pub kind: Kind,
    /// Where the thread was, when that was recorded.
    pub stack: Option<StackId>,
}

impl Event {
    /// When it was over, in nanoseconds since the Unix epoch.
    #[must_use]
    pub fn end_ns(&self) -> i64 {
        self.start_ns.saturating_add_unsigned(self.duration_ns)
    }
}

/// What an event was.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// A call of a CUDA or NCCL function.
    Call(Call),
    /// The thread was off the CPU.
    OffCpu(OffCpu),
    /// A request to a disk.
    BlockIo {
        /// What was done.
        operation: BlockOperation,
        /// On how many bytes.
        bytes: u64,
        /// On which disk, when that was recorded.
        device: Option<Arc<str>>,
    },
    /// Pages that the thread took from the kernel.
    PageAllocation {
        /// How much.
        bytes: u64,
    },
    /// A segment that a socket sent again.
    TcpRetransmit,
    /// The kernel killed the process for lack of memory.
    OomKill,
    /// The process began, by fork or as a new image.
    Start,
    /// The process or thread ended.
    Exit,
    /// Anything else, by the name that its recorder gave it.
    Other(Arc<str>),
}

/// A call of a CUDA or NCCL function.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The layer.
    pub api: Api,
    /// The documented name of the function.
    pub op: Arc<str>,
    /// Whether it was the first launch of a kernel function in its process; `None` for what launches none, or where it is not known.
    pub cold: Option<bool>,
    /// Whether it was made by the thread itself, not by another traced call on the way.
    pub outermost: bool,
    /// What it returned; 0 is success.
    pub code: i32,
    /// How long its own thread was off the CPU meanwhile, in nanoseconds, where that was measured.
    pub off_cpu_ns: Option<u64>,
    /// Bytes copied, allocated, freed or sent, where it has some.
    pub bytes: Option<u64>,
    /// Direction of a copy, such as `h2d`.
    pub copy: Option<&'static str>,
    /// The kernel function that was launched: its readable name, or its handle.
    pub kernel: Option<Arc<str>>,
}

/// The thread was off the CPU.
#[derive(Debug, Clone, PartialEq)]
pub struct OffCpu {
    /// Why; `None` where the recorder does not tell.
    pub reason: Option<Reason>,
    /// Who had the CPU meanwhile, or who ended the wait.
    pub by: Option<Party>,
}

/// Another task.
#[derive(Debug, Clone, PartialEq)]
pub struct Party {
    /// Its process, when it is known.
    pub pid: Option<u32>,
    /// Its name.
    pub comm: Arc<str>,
}

/// A stack, the innermost frame first.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Stack {
    /// The frames.
    pub frames: Vec<StackFrame>,
}

/// One frame of a stack.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StackFrame {
    /// The instruction.
    pub address: u64,
    /// The function, when its name is known.
    pub function: Option<String>,
    /// Where it is from: a library, or a source file.
    pub file: Option<String>,
    /// The line in the source file.
    pub line: Option<u32>,
}
