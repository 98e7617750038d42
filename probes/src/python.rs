//! Python stacks of other processes: locates CPython's threads and frames, and names code objects.
//!
//! Reads the memory of the running process without its cooperation, and trusts only what is consistent. Supports the
//! versions that were verified.

use std::sync::Arc;

use gpucause_abi::Tgid;
use gpucause_abi::python::{PythonLayout, RawPythonFrame};
use nix::errno::Errno;

use crate::elf::{ElfError, LinkAddresses, exported_data};
use crate::mapped::{MappedError, Mapping, open_mapped};

mod code;
mod known_code;
mod lines;
pub(crate) mod memory;
mod version;

use code::Code;
use known_code::KnownCode;
use memory::Memory;
use version::Version;

/// Most interpreters searched for the first one.
const MAX_INTERPRETERS: usize = 64;
/// Most threads checked for a valid one.
const MAX_THREADS: usize = 16;
/// Most files named like CPython that are examined.
const MAX_FILES: usize = 4;
/// CPython's global state.
const RUNTIME: &str = "_PyRuntime";
/// Exported version, since 3.11.
const VERSION: &str = "Py_Version";
/// File names of the interpreter's own code: below frames called by native code, in 3.12, and below those of `__init__`,
/// since 3.13.
const OWN_FILES: [&str; 2] = ["<shim>", "__init__"];
/// Offset of the interpreter in a thread, in all versions.
const THREAD_INTERPRETER: u64 = 16;

/// Python frames are not available.
#[derive(Debug, thiserror::Error)]
pub enum PythonError {
    /// No file of the process is named like CPython's.
    #[error("it runs no CPython")]
    None,
    /// Not started yet, or about to end.
    #[error("its CPython has no threads yet")]
    NotReady,
    /// Unknown version or build.
    #[error("{0} is not supported")]
    Unsupported(String),
    /// No thread matches the layout of this version: another build, or threads are starting or ending.
    #[error("the way in which {0} was built is not supported")]
    Unfit(&'static str),
    /// The file could not be opened.
    #[error(transparent)]
    Mapped(#[from] MappedError),
    /// The file is malformed.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// Memory of the process could not be read.
    #[error("its memory cannot be read: {0}; needs CAP_SYS_PTRACE")]
    Memory(#[from] Errno),
}

/// A frame of a thread's stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PythonFrame {
    /// Address of its code object.
    pub code: u64,
    /// Function name, qualified where the version provides it.
    pub function: Arc<str>,
    /// File name from the code object.
    pub file: Arc<str>,
    /// The current line.
    pub line: Option<u32>,
}

/// The CPython of a process.
#[derive(Debug)]
pub struct Python {
    memory: Memory,
    version: Version,
    layout: PythonLayout,
    /// The type of code objects, once seen.
    code_type: Option<u64>,
    known: KnownCode,
}

impl PythonError {
    /// Returns true if the process has ended, or is about to.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Mapped(MappedError::Gone(..)) | Self::Memory(Errno::ESRCH))
    }
}

impl Python {
    /// Finds the CPython of a process with these mappings.
    ///
    /// # Errors
    /// When there is none, or none that is supported and readable.
    pub fn find<'a>(
        tgid: Tgid,
        mappings: impl Iterator<Item = &'a Mapping>,
    ) -> Result<Self, PythonError> {
        for mapping in named_python(mappings) {
            let file = open_mapped(tgid, mapping)?;
            let addresses = LinkAddresses::of(&file)?;
            let Some(bias) = addresses.bias(mapping.start, mapping.offset) else { continue };
            let mut exported = exported_data(&file, &[RUNTIME, VERSION])?;
            let Some(runtime) = exported.remove(RUNTIME) else { continue };
            let version = exported.get(VERSION).map(|at| at.wrapping_add(bias));
            return Self::at(tgid, runtime.wrapping_add(bias), version, mapping);
        }
        Err(PythonError::None)
    }

    fn at(
        tgid: Tgid,
        runtime: u64,
        version: Option<u64>,
        mapping: &Mapping,
    ) -> Result<Self, PythonError> {
        // On other architectures the thread pointer does not identify a thread.
        if !cfg!(target_arch = "x86_64") {
            return Err(PythonError::Unsupported("Python on this architecture".to_owned()));
        }
        let memory = Memory::of(tgid);
        let exported = version.map(|at| memory.word(at)).transpose()?;
        let version = Version::of(&memory, runtime, exported, &mapping.path)?;
        let interpreter = first_interpreter(&memory, &version, runtime)?;
        let threads_at = interpreter.wrapping_add(version.threads_head);
        let thread = memory.word(threads_at)?;
        if thread == 0 {
            return Err(PythonError::NotReady);
        }
        if !has_thread(&memory, &version.frames, interpreter, thread)? {
            return Err(PythonError::Unfit(version.name));
        }
        let layout = PythonLayout { threads_at, ..version.frames };
        Ok(Self { memory, version, layout, code_type: None, known: KnownCode::default() })
    }

    /// The layout of its frames.
    pub fn layout(&self) -> PythonLayout {
        self.layout
    }

    /// Its version, such as `CPython 3.12`.
    pub fn version(&self) -> &'static str {
        self.version.name
    }

    /// Drops known code objects: their addresses may be reused.
    pub fn forget(&mut self) {
        self.known = KnownCode::default();
    }

    /// Memory of known code objects, in bytes.
    pub fn code_bytes(&self) -> usize {
        self.known.bytes()
    }

    /// Resolves frames whose code objects are readable, without the interpreter's own frames.
    pub fn frames(&mut self, raw: &[RawPythonFrame]) -> Vec<PythonFrame> {
        raw.iter().filter_map(|frame| self.frame(*frame)).collect()
    }

    fn frame(
        &mut self,
        RawPythonFrame { code, instruction }: RawPythonFrame,
    ) -> Option<PythonFrame> {
        let found = match self.known.get(code) {
            Some(known) => known.clone(),
            None => {
                let read = self.read(code).map(Arc::new);
                self.known.insert(code, read.clone());
                read
            }
        }?;
        if OWN_FILES.contains(&&*found.file) {
            return None;
        }
        let at = self.version.position(code, instruction);
        Some(PythonFrame {
            code,
            function: Arc::clone(&found.function),
            file: Arc::clone(&found.file),
            line: at.and_then(|at| found.line(self.version.lines, at)),
        })
    }

    fn read(&mut self, at: u64) -> Option<Code> {
        let kind = self.memory.word(at.wrapping_add(8)).ok()?;
        if self.code_type != Some(kind) {
            if !code::is_code_type(&self.memory, kind) {
                return None;
            }
            self.code_type = Some(kind);
        }
        Code::read(&self.memory, &self.version, at)
    }
}

/// The first mapping of each file named like CPython's, up to a limit.
fn named_python<'a>(mappings: impl Iterator<Item = &'a Mapping>) -> Vec<&'a Mapping> {
    let mut files = Vec::<&Mapping>::new();
    for mapping in mappings {
        let is_same = |own: &&Mapping| (own.device, own.inode) == (mapping.device, mapping.inode);
        if is_python(mapping) && !files.iter().any(is_same) {
            files.push(mapping);
            if files.len() == MAX_FILES {
                break;
            }
        }
    }
    files
}

/// Returns true if the file is named like CPython's: `python3.11`, `libpython3.12.so.1.0`.
fn is_python(mapping: &Mapping) -> bool {
    let name = mapping.path.file_name().unwrap_or_default().to_string_lossy();
    name.strip_prefix("lib").unwrap_or(&name).starts_with("python")
}

/// The first interpreter, which is last in the list.
fn first_interpreter(memory: &Memory, version: &Version, runtime: u64) -> Result<u64, PythonError> {
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

/// Returns true if a thread in this list is valid. The newest may have no id yet, and ended ones are freed.
fn has_thread(
    memory: &Memory,
    layout: &PythonLayout,
    interpreter: u64,
    mut thread: u64,
) -> nix::Result<bool> {
    let word = |at: u64, offset: u64| match memory.word(at.wrapping_add(offset)) {
        Err(Errno::EFAULT) => Ok(0),
        read => read,
    };
    for _ in 0..MAX_THREADS {
        let belongs = word(thread, THREAD_INTERPRETER)? == interpreter;
        if belongs && word(thread, layout.thread_id.into())? != 0 {
            return Ok(true);
        }
        thread = word(thread, layout.thread_next.into())?;
        if thread == 0 {
            break;
        }
    }
    Ok(false)
}

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use super::*;
    use crate::mapped::{Device, executable_mappings};
    use std::io::{BufRead as _, BufReader};
    use std::process::{Child, Command, Stdio};

    /// Python that waits in one line of a function.
    fn waiting() -> Child {
        let program = "def wait():\n    print(1, flush=True); input()\nwait()";
        let mut child = Command::new("/usr/bin/python3")
            .args(["-c", program])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        child
    }

    fn find(child: &Child) -> Result<Python, PythonError> {
        let tgid = Tgid(child.id());
        Python::find(tgid, executable_mappings(tgid).unwrap().iter())
    }

    #[test]
    fn the_frames_of_a_process_are_read_from_its_memory() {
        let mut child = waiting();
        let mut python = find(&child).unwrap();
        let PythonLayout { threads_at, thread_frame, is_indirect, indirect_frame, .. } =
            python.layout;
        let memory = python.memory;
        let word = |at: u64, offset: u16| memory.word(at + u64::from(offset)).unwrap();
        let mut frame = word(word(threads_at, 0), thread_frame);
        if is_indirect == 1 {
            frame = word(frame, indirect_frame);
        }
        let mut raw = Vec::new();
        while frame != 0 {
            let (code, instruction) = (
                word(frame, python.layout.frame_code),
                word(frame, python.layout.frame_instruction),
            );
            raw.push(RawPythonFrame { code, instruction });
            frame = word(frame, python.layout.frame_back);
        }
        let frames = python.frames(&raw);
        let frames: Vec<_> =
            frames.iter().map(|own| (&*own.function, &*own.file, own.line)).collect();
        assert_eq!(frames, [("wait", "<string>", Some(2)), ("<module>", "<string>", Some(3))]);
        assert!(python.version().starts_with("CPython 3."), "{}", python.version());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(find(&child).is_err_and(|error| matches!(error, PythonError::None)));
    }

    #[test]
    fn one_thread_that_is_as_it_should_be_is_enough() {
        let own = Memory::of(Tgid(std::process::id()));
        let layout = PythonLayout {
            thread_next: 8,
            thread_id: 24,
            threads_at: 0,
            thread_frame: 0,
            is_indirect: 0,
            indirect_frame: 0,
            frame_code: 0,
            frame_instruction: 0,
            frame_back: 0,
        };
        let interpreter = 0x5000;
        // Next, interpreter and id at offsets 8, 16 and 24.
        let found = |threads: &[(u64, u64)], last: u64| {
            let mut list = vec![[0u64; 4]; threads.len()];
            let begin = list.as_ptr() as u64;
            for (at, &(of, id)) in threads.iter().enumerate() {
                let next = if at + 1 < threads.len() { begin + 32 * (at as u64 + 1) } else { last };
                list[at] = [0, next, of, id];
            }
            has_thread(&own, &layout, interpreter, begin).unwrap()
        };
        assert!(found(&[(interpreter, 7)], 0));
        assert!(found(&[(interpreter, 0), (interpreter, 0), (interpreter, 7)], 0), "two are new");
        assert!(found(&[(0xdead, 3), (interpreter, 7)], 0), "one has ended");
        assert!(!found(&[(interpreter, 0), (0xdead, 7)], 0));
        assert!(!found(&[(interpreter, 0)], u64::MAX - 8), "it leads nowhere");
        assert!(!found(&[(interpreter, 0); 100], 0));
    }

    #[test]
    fn a_few_files_are_examined_and_each_once() {
        let mapping = |inode: u64, name: &str| Mapping {
            start: inode << 20,
            end: (inode << 20) + 4096,
            offset: 0,
            device: Device { major: 8, minor: 1 },
            inode,
            path: name.into(),
            deleted: false,
        };
        let own = [(1, "/a/python3"), (1, "/a/python3"), (2, "/b/cat"), (3, "/b/libpython3.so")];
        let mut mappings: Vec<_> = own.map(|(inode, name)| mapping(inode, name)).into();
        let files = |mappings: &[Mapping]| {
            named_python(mappings.iter()).iter().map(|own| own.inode).collect::<Vec<_>>()
        };
        assert_eq!(files(&mappings), [1, 3]);
        mappings.extend((10..10_000).map(|inode| mapping(inode, "/tmp/python")));
        assert_eq!(files(&mappings), [1, 3, 10, 11]);
    }

    #[test]
    fn frames_that_are_none_have_no_names() {
        let mut child = waiting();
        let mut python = find(&child).unwrap();
        let PythonLayout { threads_at, .. } = python.layout;
        let raw = [0, 8, threads_at, u64::MAX, u64::MAX - 8, 1 << 46];
        let raw = raw.map(|code| RawPythonFrame { code, instruction: code });
        assert_eq!(python.frames(&raw), []);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_without_python_has_none() {
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        assert!(find(&child).is_err_and(|error| matches!(error, PythonError::None)));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
