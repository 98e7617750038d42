//! Frames of Python, as the kernel programs keep them.

use crate::record::{CRecord, records};

/// Frames of Python that are kept of a stack.
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
        /// The word that tells the position in its code.
        instruction: [u64; PYTHON_FRAMES],
        frames: u32,
        /// 1 when there were more.
        has_more: u32,
    }
}

impl PythonLayout {
    /// The record as it lies in memory.
    #[must_use]
    pub fn to_bytes(self) -> [u8; size_of::<Self>()] {
        let Self { threads_at, thread_next, thread_id, thread_frame, is_indirect, .. } = self;
        let Self { indirect_frame, frame_code, frame_instruction, frame_back, .. } = self;
        let mut bytes = [0; size_of::<Self>()];
        let first = [thread_next, thread_id, thread_frame, is_indirect];
        let last = [indirect_frame, frame_code, frame_instruction, frame_back];
        let offsets = first.iter().chain(&last).flat_map(|offset| offset.to_ne_bytes());
        let words = threads_at.to_ne_bytes().into_iter().chain(offsets);
        bytes.iter_mut().zip(words).for_each(|(to, from)| *to = from);
        bytes
    }
}

impl PythonCall {
    /// The key as it lies in memory.
    #[must_use]
    pub fn to_bytes(self) -> [u8; size_of::<Self>()] {
        let mut bytes = [0; size_of::<Self>()];
        let words = self.start_ns.to_ne_bytes().into_iter().chain(self.tid.to_ne_bytes());
        bytes.iter_mut().zip(words).for_each(|(to, from)| *to = from);
        bytes
    }

    /// The call that a key is of.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (start_ns, rest) = bytes.split_first_chunk::<8>()?;
        let (tid, _) = rest.split_first_chunk::<4>()?;
        Some(Self {
            start_ns: u64::from_ne_bytes(*start_ns),
            tid: u32::from_ne_bytes(*tid),
            pad: 0,
        })
    }
}

/// A frame of Python as it was read from a process: neither need be what it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RawPythonFrame {
    /// Address of the code object.
    pub code: u64,
    /// The word that tells the position in its code.
    pub instruction: u64,
}

impl PythonStack {
    /// The frames in a record, the innermost first.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Vec<RawPythonFrame> {
        let word = |at: usize| {
            let found = bytes.get(at..)?.first_chunk::<8>()?;
            Some(u64::from_ne_bytes(*found))
        };
        let at = std::mem::offset_of!(Self, frames);
        let count = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
        let count = count.map_or(0, |count| u32::from_ne_bytes(*count) as usize);
        let frame = |index: usize| {
            let code = word(std::mem::offset_of!(Self, code) + 8 * index)?;
            let instruction = word(std::mem::offset_of!(Self, instruction) + 8 * index)?;
            Some(RawPythonFrame { code, instruction })
        };
        (0..count.min(PYTHON_FRAMES)).map_while(frame).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_layout_and_a_call_lie_in_memory_as_c_has_them() {
        let layout = PythonLayout {
            threads_at: 1,
            thread_next: 2,
            thread_id: 3,
            thread_frame: 4,
            is_indirect: 5,
            indirect_frame: 6,
            frame_code: 7,
            frame_instruction: 8,
            frame_back: 9,
        };
        let bytes = layout.to_bytes();
        let at = |offset: usize| u16::from_ne_bytes([bytes[offset], bytes[offset + 1]]);
        assert_eq!(at(std::mem::offset_of!(PythonLayout, thread_next)), 2);
        assert_eq!(at(std::mem::offset_of!(PythonLayout, indirect_frame)), 6);
        assert_eq!(at(std::mem::offset_of!(PythonLayout, frame_back)), 9);
        let call = PythonCall { start_ns: 7, tid: 8, pad: 0 };
        assert_eq!(PythonCall::from_bytes(&call.to_bytes()), Some(call));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_bounded_stack(bytes in prop::collection::vec(any::<u8>(), 0..1200)) {
            prop_assert!(PythonStack::decode(&bytes).len() <= PYTHON_FRAMES);
        }
    }
}
