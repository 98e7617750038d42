//! Events and their stacks.

use std::fmt;
use std::sync::Arc;

use gpucause_abi::op::Api;
use gpucause_abi::state::{BlockOperation, Reason};

use super::{NodeIndex, ProcessIndex};

/// Identifies an event in a recording. Shown as `NODE:SEQUENCE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId {
    /// The node.
    pub node: NodeIndex,
    /// Increases per node, over all its sessions.
    pub sequence: u64,
}

/// Identifies a stack in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackId(pub i64);

/// Something that a thread of a process did, or that happened to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Its id.
    pub id: EventId,
    /// Start in nanoseconds since the Unix epoch.
    pub start_ns: i64,
    /// Duration in nanoseconds; 0 for an instant.
    pub duration_ns: u64,
    /// The process.
    pub process: ProcessIndex,
    /// The thread.
    pub tid: u32,
    /// The kind of event.
    pub kind: Kind,
    /// The call stack, where one was taken.
    pub stack: Option<StackId>,
}

impl Event {
    /// End in nanoseconds since the Unix epoch.
    pub fn end_ns(&self) -> i64 {
        self.start_ns.saturating_add_unsigned(self.duration_ns)
    }
}

/// A kind of event. Texts are shared as read, or borrowed (`T` is `&str`) to be written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind<T = Arc<str>> {
    /// A call of a CUDA or NCCL function.
    Call(Call<T>),
    /// The thread was off the CPU.
    OffCpu(OffCpu<T>),
    /// A request to a disk.
    BlockIo {
        /// Read, write or other.
        operation: BlockOperation,
        /// Size in bytes.
        bytes: u64,
        /// The disk, where recorded.
        device: Option<T>,
    },
    /// The thread allocated pages.
    PageAllocation {
        /// Size in bytes.
        bytes: u64,
    },
    /// A socket retransmitted a segment.
    TcpRetransmit,
    /// The OOM killer killed the process.
    OomKill,
    /// The process began, by fork or exec.
    Start,
    /// The process or thread ended.
    Exit,
    /// Anything else, by its recorder's name for it.
    Other(T),
}

/// A call of a CUDA or NCCL function.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Call<T = Arc<str>> {
    /// The layer.
    pub api: Api,
    /// The documented name of the function.
    pub op: T,
    /// True for a kernel function's first launch in its process; `None` for other calls, and where unknown.
    pub cold: Option<bool>,
    /// True if the thread made it itself, not another traced call.
    pub outermost: bool,
    /// The return value; 0 is success.
    pub code: i32,
    /// Off-CPU time of its thread during the call in nanoseconds, where measured.
    pub off_cpu_ns: Option<u64>,
    /// Bytes copied, allocated, freed or sent.
    pub bytes: Option<u64>,
    /// Direction of a copy: a label of [`CopyKind`](gpucause_abi::op::CopyKind), such as `h2d`.
    pub copy: Option<&'static str>,
    /// The launched kernel function: its readable name, or its handle.
    pub kernel: Option<T>,
}

/// The thread was off the CPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OffCpu<T = Arc<str>> {
    /// Why; `None` where the recorder does not say.
    pub reason: Option<Reason>,
    /// The task that had the CPU meanwhile, or that ended the wait.
    pub by: Option<Task<T>>,
}

/// Another task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Task<T = Arc<str>> {
    /// Its PID, where known.
    pub pid: Option<u32>,
    /// Its name.
    pub comm: T,
}

impl Kind {
    /// The kind with borrowed texts.
    #[must_use]
    pub fn borrowed(&self) -> Kind<&str> {
        match self {
            Self::Call(call) => {
                let Call {
                    api,
                    ref op,
                    cold,
                    outermost,
                    code,
                    off_cpu_ns,
                    bytes,
                    copy,
                    ref kernel,
                } = *call;
                let kernel = kernel.as_deref();
                Kind::Call(Call { api, op, cold, outermost, code, off_cpu_ns, bytes, copy, kernel })
            }
            Self::OffCpu(OffCpu { reason, by }) => {
                let by = by.as_ref().map(|by| Task { pid: by.pid, comm: &*by.comm });
                Kind::OffCpu(OffCpu { reason: *reason, by })
            }
            Self::BlockIo { operation, bytes, device } => {
                let (operation, bytes, device) = (*operation, *bytes, device.as_deref());
                Kind::BlockIo { operation, bytes, device }
            }
            Self::PageAllocation { bytes } => Kind::PageAllocation { bytes: *bytes },
            Self::TcpRetransmit => Kind::TcpRetransmit,
            Self::OomKill => Kind::OomKill,
            Self::Start => Kind::Start,
            Self::Exit => Kind::Exit,
            Self::Other(name) => Kind::Other(name),
        }
    }
}

/// A stack, the innermost frame first.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Stack {
    /// The frames.
    pub frames: Vec<StackFrame>,
}

impl Stack {
    /// At most `most` frames as text, the innermost first, with the number of those left out. Python frames get at least two
    /// thirds of the lines.
    pub fn lines(&self, most: usize) -> Vec<String> {
        let (python, native): (Vec<_>, Vec<_>) =
            self.frames.iter().partition(|frame| frame.is_python);
        let of_native = most.saturating_sub(python.len()).max(most / 3).min(native.len());
        let mut lines = Vec::new();
        for (frames, most) in [(native, of_native), (python, most - of_native.min(most))] {
            lines.extend(frames.iter().take(most).map(ToString::to_string));
            if frames.len() > most {
                lines.push(format!("({} more)", frames.len() - most));
            }
        }
        lines
    }
}

/// One frame of a stack. Native frames come first, then Python's; how they interleave is not recorded.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StackFrame {
    /// The instruction; of Python the code object.
    pub address: u64,
    /// The function, where its name is known.
    pub function: Option<String>,
    /// The source file; the library in recordings without modules.
    pub file: Option<String>,
    /// The line in the source file.
    pub line: Option<u32>,
    /// The executable or library.
    pub module: Option<String>,
    /// The instruction's address in the module, as linked.
    pub module_address: Option<u64>,
    /// True for a frame of Python.
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
    fn a_frame_shows_as_much_as_is_known_of_it() {
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
    fn native_frames_are_left_out_before_those_of_python() {
        let native = (0..20).map(|at| named(format!("n{at}"), false));
        let python = (0..3).map(|at| named(format!("p{at}"), true));
        let mut stack = Stack { frames: native.collect() };
        assert_eq!(stack.lines(2), ["n0", "n1", "(18 more)"]);
        stack.frames.extend(python);
        assert_eq!(stack.lines(6), ["n0", "n1", "n2", "(17 more)", "p0", "p1", "p2"]);
        assert_eq!(stack.lines(3), ["n0", "(19 more)", "p0", "p1", "(1 more)"]);
        assert_eq!(stack.lines(30).len(), 23);
    }
}
