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
mod offsets;
mod threads;
mod version;

use code::Code;
use known_code::KnownCode;
use memory::Memory;
use threads::{first_interpreter, has_thread};
use version::Version;

/// Most files named like CPython that are examined.
const MAX_FILES: usize = 4;
/// CPython's global state.
const RUNTIME: &str = "_PyRuntime";
/// Exported version, since 3.11.
const VERSION: &str = "Py_Version";
/// File names of the interpreter's own code: below frames called by native code, in 3.12, and below those of `__init__`,
/// since 3.13.
const OWN_FILES: [&str; 2] = ["<shim>", "__init__"];

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
        let code = code::address(code);
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
        let kind = self.memory.word(at.wrapping_add(code::TYPE)).ok()?;
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

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use super::*;
    use crate::mapped::{Device, executable_mappings};
    use std::io::{BufRead as _, BufReader};
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command, Stdio};

    /// Has its input in a line of `__init__`, which the interpreter calls by itself after some calls.
    const PROGRAM: &str = "\
import sys
class Box:
    def __init__(self, last):
        if last: print(1, flush=True); input()
def wait():
    for last in [0] * 99 + [1]: Box(last)
if sys.version_info >= (3, 14):
    # Frames have tagged references to code that is never freed.
    import ctypes
    ctypes.c_uint32.from_address(id(wait.__code__)).value = 3 << 30
wait()";

    const SYSTEMS: &str = "/usr/bin/python3";

    /// Python that waits for its input.
    fn waiting(python: &Path) -> Child {
        let mut child = Command::new(python)
            .args(["-c", PROGRAM])
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

    /// The system's Python, and those that the environment names.
    fn pythons() -> Vec<PathBuf> {
        let named = std::env::var_os("GPUCAUSE_PYTHONS").unwrap_or_default();
        let named = std::env::split_paths(&named).filter(|path| path.is_absolute());
        [PathBuf::from(SYSTEMS)].into_iter().chain(named).collect()
    }

    #[test]
    fn the_frames_of_a_process_are_read_from_its_memory() {
        for path in pythons() {
            let mut child = waiting(&path);
            let mut python = find(&child).unwrap();
            let PythonLayout { threads_at, .. } = python.layout;
            let thread = python.memory.word(threads_at).unwrap();
            let raw = threads::frames(&python.memory, &python.layout, thread).unwrap();
            let frames = python.frames(&raw);
            let frames: Vec<_> =
                frames.iter().map(|own| (&*own.function, &*own.file, own.line)).collect();
            let minor: u32 = python.version().strip_prefix("CPython 3.").unwrap().parse().unwrap();
            let init = if minor >= 11 { "Box.__init__" } else { "__init__" };
            let outer = [("wait", "<string>", Some(6)), ("<module>", "<string>", Some(11))];
            assert_eq!(frames, [&[(init, "<string>", Some(4))][..], &outer].concat(), "{path:?}");
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(find(&child).is_err_and(|error| matches!(error, PythonError::None)));
        }
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
        let mut child = waiting(Path::new(SYSTEMS));
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
