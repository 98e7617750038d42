//! Names of functions in a process, from the symbols of its mapped files.
//!
//! Reads the files instead of mapping them, as symbolisers do: they are untrusted, and truncation of a mapped file kills
//! the reader with SIGBUS.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;

use gpucause_abi::Tgid;

use crate::elf::{KernelHandle, LinkAddresses, kernel_handles, symbols_at};
use crate::mapped::{FileVersion, Mapping, executable_mappings, locate_mapped};
use crate::python::memory::Memory;

/// Limit of remembered functions of all files; when exceeded, all are dropped.
const MAX_REMEMBERED: usize = 16_384;

/// Limit of remembered kernel handle variables of all files; when exceeded, all are dropped.
const MAX_VARIABLES: usize = 131_072;
/// Limit of bytes read at once to find handles; twice what the largest libraries need.
const MAX_SPAN: u64 = 1 << 20;

/// The kernel handle variables of a file, by address.
type Variables = Arc<[KernelHandle]>;

/// Mangled name of a function; `None` without symbol.
pub type FunctionName = Option<Arc<[u8]>>;

/// Function names by file, shared between processes.
#[derive(Debug, Default)]
pub struct HostFunctions {
    files: HashMap<FileVersion, HashMap<u64, FunctionName>>,
    remembered: usize,
    variables: HashMap<FileVersion, Variables>,
}

impl HostFunctions {
    /// Names of the functions that start at these addresses of a process. Addresses whose process or file is gone or
    /// unreachable are left out.
    ///
    /// # Errors
    /// When CAP_SYS_PTRACE is missing for another user's process.
    pub fn names(
        &mut self,
        tgid: Tgid,
        addresses: &[u64],
    ) -> io::Result<BTreeMap<u64, FunctionName>> {
        let mappings = executable_mappings(tgid)?;
        let mut names = BTreeMap::new();
        // An ended process has no mappings.
        if mappings.is_empty() {
            return Ok(names);
        }
        let mut by_mapping: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        let mut handles = Vec::new();
        for &address in addresses {
            let holds = |mapping: &Mapping| (mapping.start..mapping.end).contains(&address);
            match mappings.iter().position(holds) {
                Some(index) => by_mapping.entry(index).or_default().push(address),
                None => {
                    names.insert(address, None);
                    handles.push(address);
                }
            }
        }
        if !handles.is_empty() {
            for mapping in &mappings {
                self.name_handles(tgid, mapping, &handles, &mut names);
            }
        }
        for (index, addresses) in by_mapping {
            if let Some(mapping) = mappings.get(index) {
                self.in_mapping(tgid, mapping, &addresses, &mut names);
            }
        }
        Ok(names)
    }

    /// Names the handles stored in variables of a mapped file.
    fn name_handles(
        &mut self,
        tgid: Tgid,
        mapping: &Mapping,
        handles: &[u64],
        names: &mut BTreeMap<u64, FunctionName>,
    ) {
        let Ok(file) = locate_mapped(tgid, mapping) else { return };
        let version = FileVersion::of(file.metadata());
        let known = self.variables.get(&version).cloned();
        if known.as_ref().is_some_and(|variables| variables.is_empty()) {
            return;
        }
        let Ok(opened) = file.open() else { return };
        let variables = known.unwrap_or_else(|| {
            let mut variables = kernel_handles(&opened).unwrap_or_default();
            variables.sort_unstable();
            let remembered: usize = self.variables.values().map(|own| own.len() + 1).sum();
            if remembered + variables.len() >= MAX_VARIABLES {
                self.variables.clear();
            }
            Arc::clone(self.variables.entry(version).or_insert_with(|| variables.into()))
        });
        let bias = LinkAddresses::of(&opened).ok();
        let bias = bias.and_then(|own| own.bias(mapping.start, mapping.offset));
        let Some(bias) = bias else { return };
        let memory = Memory::of(tgid);
        let mut rest = &variables[..];
        while let Some(&(first, _)) = rest.first() {
            let near = rest.partition_point(|&(address, _)| address - first <= MAX_SPAN);
            let (span, more) = rest.split_at(near);
            rest = more;
            let length = span.last().map_or(0, |&(last, _)| last - first + 8);
            let Ok(length) = usize::try_from(length) else { continue };
            let Ok(bytes) = memory.bytes(bias.wrapping_add(first), length) else { continue };
            for (address, name) in span {
                let at = usize::try_from(address - first).unwrap_or(usize::MAX);
                let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
                let Some(handle) = word.map(|word| u64::from_ne_bytes(*word)) else { continue };
                if handle != 0 && handles.contains(&handle) {
                    names.insert(handle, Some(Arc::from(&**name)));
                }
            }
        }
    }

    fn in_mapping(
        &mut self,
        tgid: Tgid,
        mapping: &Mapping,
        addresses: &[u64],
        names: &mut BTreeMap<u64, FunctionName>,
    ) {
        let file = match locate_mapped(tgid, mapping) {
            Ok(file) => file,
            Err(error) => {
                tracing::debug!(%error, "cannot read the symbols of a file");
                return;
            }
        };
        let version = FileVersion::of(file.metadata());
        let offset = |address: u64| (address - mapping.start).saturating_add(mapping.offset);
        let known = self.files.entry(version).or_default();
        let mut missing: Vec<u64> = addresses.iter().map(|&address| offset(address)).collect();
        missing.retain(|offset| !known.contains_key(offset));
        if !missing.is_empty() {
            let opened = match file.open() {
                Ok(opened) => opened,
                Err(error) => {
                    tracing::debug!(%error, "cannot read the symbols of a file");
                    return;
                }
            };
            let mut found = symbols_at(&opened, &missing).unwrap_or_else(|error| {
                tracing::debug!(path = ?mapping.path, %error, "cannot open a mapped file");
                BTreeMap::new()
            });
            self.remembered += missing.len();
            known.extend(missing.into_iter().map(|at| (at, found.remove(&at).map(Arc::from))));
        }
        for &address in addresses {
            names.insert(address, known.get(&offset(address)).cloned().flatten());
        }
        if self.remembered > MAX_REMEMBERED {
            self.files.clear();
            self.remembered = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[unsafe(no_mangle)]
    extern "C" fn gpucause_test_function() -> u32 {
        std::hint::black_box(7)
    }

    #[test]
    fn a_function_of_a_process_has_the_name_that_its_file_gives_it() {
        let at = gpucause_test_function as *const () as u64;
        let data = std::ptr::from_ref(&MAX_REMEMBERED) as u64;
        let mut functions = HostFunctions::default();
        for _ in 0..2 {
            let names = functions.names(Tgid(std::process::id()), &[at, at + 1, data]).unwrap();
            assert_eq!(names[&at].as_deref(), Some(&b"gpucause_test_function"[..]));
            assert_eq!((names[&(at + 1)].as_ref(), names[&data].as_ref()), (None, None));
            assert_eq!(functions.remembered, 2, "each is looked up once");
        }
    }

    /// Handle variable of `void add(float *)` as nvcc 13 names it.
    #[unsafe(export_name = "_ZZ22__device_stub__Z3addPfPfE8__handle")]
    static HANDLE: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

    #[test]
    fn a_handle_that_a_program_keeps_has_the_name_of_its_kernel() {
        let (kept, other) = (0x5612_3456_7890_u64, 0x5612_3456_7898);
        HANDLE.store(kept, std::sync::atomic::Ordering::Relaxed);
        let mut functions = HostFunctions::default();
        for _ in 0..2 {
            let names = functions.names(Tgid(std::process::id()), &[kept, other]).unwrap();
            assert_eq!(names[&kept].as_deref(), Some(&b"__device_stub__Z3addPf"[..]));
            assert_eq!(names[&other], None);
        }
    }

    #[test]
    fn nothing_is_said_of_a_process_that_is_gone() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert_eq!(
            HostFunctions::default().names(Tgid(child.id()), &[0x1000]).unwrap(),
            BTreeMap::new()
        );
    }
}
