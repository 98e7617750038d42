//! Python frames, as stored by the kernel programs.

use crate::c_record::{CRecord, records};

/// Most Python frames of a stack.
pub const PYTHON_FRAMES: usize = 64;

records! {
    /// Where the threads and frames of a process's CPython are: offsets in bytes, and one address. Written by user space.
    PythonLayout as "python_layout" {
        /// Address of the pointer to the first thread.
        threads_at: u64,
        /// Within a thread: the next, and what `pthread_self()` gives in it.
        thread_next: u16,
        thread_id: u16,
        /// Within a thread: the innermost frame or, with `is_indirect`, what has it at `indirect_frame`.
        thread_frame: u16,
        is_indirect: u16,
        indirect_frame: u16,
        /// Within a frame: the code object, the position in its code, the frame of the caller.
        frame_code: u16,
        frame_instruction: u16,
        frame_back: u16,
    }

    /// Which call a stack is of.
    PythonCall as "python_call" { start_ns: u64, tid: u32, pad: u32 }

    /// The frames of one thread, the innermost first.
    PythonStack as "python_stack" {
        /// Addresses of code objects.
        code: [u64; PYTHON_FRAMES],
        /// The word that encodes the position in its code.
        instruction: [u64; PYTHON_FRAMES],
        frames: u32,
        /// 1 when there were more.
        has_more: u32,
    }
}

/// A Python frame as read from a process; untrusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RawPythonFrame {
    /// Address of the code object.
    pub code: u64,
    /// The word that encodes the position in its code.
    pub instruction: u64,
}

impl PythonLayout {
    /// Layout of a process without Python.
    pub const NONE: Self = zerocopy::transmute!([0u8; size_of::<Self>()]);
}

impl PythonStack {
    /// The frames in a record, the innermost first.
    pub fn frames(&self) -> impl Iterator<Item = RawPythonFrame> {
        let frames = self.code.iter().zip(&self.instruction).take(self.frames as usize);
        frames.map(|(&code, &instruction)| RawPythonFrame { code, instruction })
    }
}
