//! Threads of CPython's interpreters, and their frames, as the kernel programs find them.

use gpucause_abi::python::{PYTHON_FRAMES, PythonLayout, RawPythonFrame};

use super::PythonError;
use super::code::is_executable;
use super::memory::Memory;
use super::version::Version;

/// Most interpreters searched for the first one.
const MAX_INTERPRETERS: usize = 64;
/// Most threads checked for a valid one.
const MAX_THREADS: usize = 16;
/// Offset of the interpreter in a thread, in all versions.
pub(super) const THREAD_INTERPRETER: u64 = 16;

/// The first interpreter, which is last in the list.
pub(super) fn first_interpreter(
    memory: &Memory,
    version: &Version,
    runtime: u64,
) -> Result<u64, PythonError> {
    let mut interpreter = memory.word(runtime.wrapping_add(version.interpreters_head))?;
    if interpreter == 0 {
        return Err(PythonError::NotReady);
    }
    for _ in 0..MAX_INTERPRETERS {
        match memory.word(interpreter.wrapping_add(version.interpreter_next))? {
            0 => return Ok(interpreter),
            next => interpreter = next,
        }
    }
    Err(PythonError::Unsupported(format!("more than {MAX_INTERPRETERS} interpreters in a process")))
}

/// Returns true if a thread in this list is valid, and its frames, if it has any, lead to code. The newest thread may
/// have no id yet, ended ones are freed, and frames of running ones change.
pub(super) fn has_thread(
    memory: &Memory,
    layout: &PythonLayout,
    interpreter: u64,
    mut thread: u64,
) -> nix::Result<bool> {
    let (mut has_idle, mut has_other) = (false, false);
    for _ in 0..MAX_THREADS {
        let word = |offset: u64| memory.word_or_zero(thread.wrapping_add(offset));
        if word(THREAD_INTERPRETER)? == interpreter && word(layout.thread_id.into())? != 0 {
            let frames = frames(memory, layout, thread)?;
            if frames.iter().any(|frame| is_executable(memory, frame.code)) {
                return Ok(true);
            }
            has_idle |= frames.is_empty();
            has_other |= !frames.is_empty();
        }
        thread = word(layout.thread_next.into())?;
        if thread == 0 {
            break;
        }
    }
    Ok(has_idle && !has_other)
}

/// The frames of a thread, innermost first.
pub(super) fn frames(
    memory: &Memory,
    layout: &PythonLayout,
    thread: u64,
) -> nix::Result<Vec<RawPythonFrame>> {
    let word = |at: u64, offset: u16| memory.word_or_zero(at.wrapping_add(offset.into()));
    let mut frame = word(thread, layout.thread_frame)?;
    if layout.is_indirect == 1 {
        frame = word(frame, layout.indirect_frame)?;
    }
    let mut frames = Vec::new();
    while frame != 0 && frames.len() < PYTHON_FRAMES {
        let code = word(frame, layout.frame_code)?;
        let instruction = word(frame, layout.frame_instruction)?;
        frames.push(RawPythonFrame { code, instruction });
        frame = word(frame, layout.frame_back)?;
    }
    Ok(frames)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpucause_abi::Tgid;

    const LAYOUT: PythonLayout =
        PythonLayout { thread_frame: 0, thread_next: 8, thread_id: 24, ..PythonLayout::NONE };
    const OWNER: u64 = 0x5000;

    fn own_memory() -> Memory {
        Memory::of(Tgid(std::process::id()))
    }

    /// Searches a list of threads: innermost frame, interpreter and id of each, and what the last has as its next.
    fn found(threads: &[(u64, u64, u64)], last: u64) -> bool {
        let mut list = vec![[0u64; 4]; threads.len()];
        let begin = list.as_ptr() as u64;
        for (at, &(frame, of, id)) in threads.iter().enumerate() {
            let next = if at + 1 < threads.len() { begin + 32 * (at as u64 + 1) } else { last };
            list[at] = [frame, next, of, id];
        }
        has_thread(&own_memory(), &LAYOUT, OWNER, begin).unwrap()
    }

    #[test]
    fn one_thread_that_is_as_it_should_be_is_enough() {
        let [idle, new, ended] = [(0, OWNER, 7), (0, OWNER, 0), (0, 0xdead, 3)];
        assert!(found(&[idle], 0));
        assert!(found(&[new, new, idle], 0));
        assert!(found(&[ended, idle], 0));
        assert!(!found(&[new, (0, 0xdead, 7)], 0));
        assert!(!found(&[new], u64::MAX - 8), "it leads nowhere");
        assert!(!found(&[new; 100], 0));
    }

    #[test]
    fn a_thread_whose_frames_lead_to_no_code_is_none() {
        let kind = |name: &'static [u8]| [0, 0, 0, name.as_ptr() as u64];
        let object = |kind: &[u64; 4]| [0, kind.as_ptr() as u64];
        let frame = |object: &[u64; 2]| [object.as_ptr() as u64; 1];
        let kinds = [kind(b"code\0"), kind(b"NoneType\0"), kind(b"dict\0")];
        let objects = kinds.each_ref().map(object);
        let frames = objects.each_ref().map(frame);
        // The walk goes on with the object as a frame, whose words are 0.
        let thread = |at: usize| (frames[at].as_ptr() as u64, OWNER, 7);
        assert!(found(&[thread(0)], 0));
        assert!(found(&[thread(1)], 0));
        assert!(!found(&[thread(2)], 0));
        assert!(!found(&[thread(2), (0, OWNER, 7)], 0), "the layout may be another one");
        assert!(found(&[thread(2), thread(0)], 0), "the first ran on meanwhile");
        assert!(!found(&[(8, OWNER, 7)], 0), "it leads nowhere");
    }
}
