//! One thing that happened at one time.

use std::fmt;
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

impl Stack {
    /// Its frames as text, the innermost first: at most so many, and what is left out. Of a stack with frames of Python these
    /// have the most room.
    #[must_use]
    pub fn lines(&self, most: usize) -> Vec<String> {
        let (python, native): (Vec<_>, Vec<_>) =
            self.frames.iter().partition(|frame| frame.is_python);
        let room = most.saturating_sub(python.len()).max(most / 3).min(native.len());
        let mut lines = Vec::new();
        for (frames, room) in [(native, room), (python, most - room.min(most))] {
            lines.extend(frames.iter().take(room).map(ToString::to_string));
            if frames.len() > room {
                lines.push(format!("({} more)", frames.len() - room));
            }
        }
        lines
    }
}

/// One frame of a stack. The native frames of a stack come first, then those of Python; in which order they called each other
/// is not recorded.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StackFrame {
    /// The instruction; of Python the code object.
    pub address: u64,
    /// The function, when its name is known.
    pub function: Option<String>,
    /// The source file. In recordings that tell no modules, the library.
    pub file: Option<String>,
    /// The line in the source file.
    pub line: Option<u32>,
    /// The executable or library that the instruction is in.
    pub module: Option<String>,
    /// The address of the instruction there, as linked.
    pub module_address: Option<u64>,
    /// Whether it is a frame of Python.
    pub is_python: bool,
}

impl fmt::Display for StackFrame {
    /// `FUNCTION (FILE:LINE)`, else `FUNCTION (MODULE)`, else `MODULE+ADDRESS`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let module = self.module.as_deref().map(|path| path.rsplit('/').next().unwrap_or(path));
        match (&self.function, module, self.module_address) {
            (Some(function), ..) => f.write_str(function)?,
            (None, Some(module), Some(address)) => return write!(f, "{module}+{address:#x}"),
            _ => write!(f, "{:#x}", self.address)?,
        }
        match (self.file.as_deref().or(module), self.line) {
            (Some(file), Some(line)) => write!(f, " ({file}:{line})"),
            (Some(file), None) => write!(f, " ({file})"),
            (None, _) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: String, is_python: bool) -> StackFrame {
        StackFrame { function: Some(name), is_python, ..StackFrame::default() }
    }

    #[test]
    fn a_frame_tells_as_much_as_is_known_of_it() {
        let mut frame = StackFrame { address: 0x7f00_1234, ..StackFrame::default() };
        assert_eq!(frame.to_string(), "0x7f001234");
        frame.module = Some("/usr/lib/libtorch.so".into());
        frame.module_address = Some(0x1234);
        assert_eq!(frame.to_string(), "libtorch.so+0x1234");
        frame.function = Some("at::empty".into());
        assert_eq!(frame.to_string(), "at::empty (libtorch.so)");
        (frame.file, frame.line) = (Some("aten/empty.cpp".into()), Some(7));
        assert_eq!(frame.to_string(), "at::empty (aten/empty.cpp:7)");
    }

    #[test]
    fn frames_of_python_are_told_before_others_are_left_out() {
        let native = (0..20).map(|at| named(format!("n{at}"), false));
        let python = (0..3).map(|at| named(format!("p{at}"), true));
        let mut stack = Stack { frames: native.collect() };
        assert_eq!(stack.lines(2), ["n0", "n1", "(18 more)"]);
        stack.frames.extend(python);
        let told = ["n0", "n1", "n2", "(17 more)", "p0", "p1", "p2"];
        assert_eq!(stack.lines(6), told);
        assert_eq!(stack.lines(3), ["n0", "(19 more)", "p0", "p1", "(1 more)"]);
        assert_eq!(stack.lines(30).len(), 23);
    }
}
