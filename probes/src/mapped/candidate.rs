//! Which mapped files to examine, by name.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::elf::{ElfError, LibraryImage, read_library, read_module, read_program};

/// Why a mapped file may export CUDA symbols.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Candidate {
    /// Named like a CUDA library: expected to have symbols.
    Library,
    /// Not named like a shared library, as main programs: the CUDA runtime may be statically linked.
    Program,
    /// Another non-system shared library, such as a Python module: the CUDA runtime may be statically linked.
    Module,
}

const LIBRARIES: [&[u8]; 3] = [b"libcudart", b"libcuda", b"libnccl"];
/// The library of UCX that replaces the code of CUDA functions.
const REPLACER: &[u8] = b"libucm";
/// Prefixes of mappings that are not files.
const PSEUDO_FILES: [&[u8]; 6] =
    [MEMORY_FILE, b"/dev/zero", b"/SYSV", b"/anon_hugepage", b"/dmabuf:", b"/["];

const MEMORY_FILE: &[u8] = b"/memfd:";

/// System library directories: mapped by every process, never linked with the runtime.
const SYSTEM: [&[u8]; 2] = [b"/usr/lib", b"/lib"];

/// Classifies the path of an executable mapping. Cheap: called for nearly every mapping of the host.
///
/// Does not use `/proc/PID/exe`: by now the process may run another program.
pub fn candidate(path: &Path) -> Option<Candidate> {
    let whole = path.as_os_str().as_bytes();
    let name = name_of(whole);
    if !whole.starts_with(b"/") || whole.starts_with(b"//") || name.is_empty() {
        return None;
    }
    // A memfd has a name but no directory.
    let name =
        name.strip_prefix(b"memfd:").filter(|_| whole.starts_with(MEMORY_FILE)).unwrap_or(name);
    if LIBRARIES.iter().any(|library| name.strip_prefix(*library).is_some_and(is_version)) {
        return Some(Candidate::Library);
    }
    let is_below = |prefix: &&[u8]| whole.starts_with(prefix);
    if PSEUDO_FILES.iter().any(is_below) {
        return None;
    }
    match is_shared_library(name) {
        false => Some(Candidate::Program),
        true => (!SYSTEM.iter().any(is_below)).then_some(Candidate::Module),
    }
}

/// Not `Path::file_name`, which parses the path from both ends.
fn name_of(path: &[u8]) -> &[u8] {
    path.rsplit(|&b| b == b'/').next().unwrap_or(path)
}

/// Returns true for a library that replaces the code of CUDA functions in its process. As cheap as [`candidate`].
pub(crate) fn replaces_code(path: &Path) -> bool {
    name_of(path.as_os_str().as_bytes()).strip_prefix(REPLACER).is_some_and(is_version)
}

impl Candidate {
    /// Reads the file's symbols with the function for such files.
    ///
    /// # Errors
    /// When the file is not ELF64 for this machine, is malformed, or cannot be read.
    pub fn read(self, file: &File) -> Result<LibraryImage, ElfError> {
        match self {
            Self::Library => read_library(file),
            Self::Program => read_program(file),
            Self::Module => read_module(file),
        }
    }
}

/// Matches `.so`, `.so.12` etc., and the `-1a2b3c4d.so.12` of libraries in Python wheels.
fn is_version(rest: &[u8]) -> bool {
    let rest = match rest.strip_prefix(b"-") {
        Some(tagged) => {
            let tag = tagged.iter().take_while(|b| b.is_ascii_hexdigit()).count();
            &tagged[tag..]
        }
        None => rest,
    };
    rest.strip_prefix(b".so").is_some_and(|after| after.is_empty() || after.starts_with(b"."))
}

fn is_shared_library(name: &[u8]) -> bool {
    name.windows(3)
        .enumerate()
        .any(|(at, part)| part == b".so" && matches!(name.get(at + 3), None | Some(b'.')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuda_libraries_are_known_by_name() {
        for path in [
            "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
            "/usr/lib/libcuda.so.550.54.15",
            "/usr/local/cuda/lib64/libcudart.so",
            "/a b/nvidia/cuda_runtime/lib/libcudart.so.12",
            "/v/torch/lib/libcudart-1234abcd.so.12.0",
            "/v/nvidia/nccl/lib/libnccl.so.2",
            "/v/lib/libnccl-0a1b2c3d.so.2.21.5",
            "/memfd:libcudart.so.12",
        ] {
            assert_eq!(candidate(Path::new(path)), Some(Candidate::Library), "{path}");
        }
    }

    #[test]
    fn the_memory_hooks_of_ucx_are_known_by_name() {
        for (path, is_it) in [
            ("/usr/lib/x86_64-linux-gnu/libucm.so.0", true),
            ("/v/site-packages/libucx/lib/libucm.so.0.0.0", true),
            ("/v/nixl_cu12.libs/libucm-2be5ac2f.so.0.0.0", true),
            ("/usr/lib/ucx/libucm_cuda.so.0", false),
            ("/usr/lib/libucs.so.0", false),
        ] {
            assert_eq!(replaces_code(Path::new(path)), is_it, "{path}");
        }
    }

    #[test]
    fn other_libraries_of_the_system_are_ignored() {
        for path in [
            "/usr/lib/libc.so.6",
            "/usr/lib/libcudadebugger.so.1",
            "/usr/lib/libcudnn.so.9",
            "/usr/lib/libnccl-net.so",
            "/usr/lib/libcuda.sock.so",
            "/usr/lib/libcublas.so.12",
            "/lib64/ld-linux-x86-64.so.2",
        ] {
            assert_eq!(candidate(Path::new(path)), None, "{path}");
        }
    }

    #[test]
    fn libraries_that_did_not_come_with_the_system_may_have_the_runtime_linked_in() {
        for path in [
            "/v/site-packages/cupy_backends/cuda/api/runtime.cpython-312-x86_64-linux-gnu.so",
            "/opt/llama/libggml-cuda.so",
            "/usr/local/lib/libfaiss.so.1.8",
        ] {
            assert_eq!(candidate(Path::new(path)), Some(Candidate::Module), "{path}");
        }
    }

    #[test]
    fn files_that_are_no_libraries_may_be_programs() {
        for path in ["/usr/bin/python3.12", "/a/train.software", "/x/libcuda.sox", "/a/b\n.c"] {
            assert_eq!(candidate(Path::new(path)), Some(Candidate::Program), "{path}");
        }
    }

    #[test]
    fn memory_without_a_file_is_ignored() {
        for path in [
            "",
            "//anon",
            "[vdso]",
            "/memfd:jit",
            "/memfd:libjit.so",
            "/dev/zero",
            "/SYSV00000000",
            "/",
            "x",
        ] {
            assert_eq!(candidate(Path::new(path)), None, "{path}");
        }
    }
}
