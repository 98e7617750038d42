//! Functions whose code a process has replaced in its memory, or is about to replace, as UCX does with the driver's functions of memory.
//! There is no probe on them: a breakpoint would overwrite a byte of the new code, after which the kernel goes on behind the file's
//! instruction, in the middle of the new one; and where a breakpoint is first, UCX leaves the function alone and does not learn
//! of the program's memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Once};
use std::time::Instant;

use gpucause_abi::Tgid;
use gpucause_abi::op::Op;

use super::{Attach, AttachedFile, FileId, Registry};
use crate::elf::ProbeSite;
use crate::mapped::{Mapping, executable_mappings, has_memory, locate_mapped, replaces_code};

/// Compared bytes of code: as many as the shortest jump to anywhere has.
const COMPARED: usize = if cfg!(target_arch = "x86_64") { 5 } else { 4 };
type Code = [u8; COMPARED];

/// The processes that replaced the code at a file offset of a probe, one for each.
pub(super) type Replaced = BTreeMap<u64, Tgid>;

/// Returns true for the driver's functions of memory that UCX replaces.
pub(crate) fn may_be_replaced(op: &Op) -> bool {
    const NAMES: [&str; 10] = [
        "cuMemAlloc",
        "cuMemAllocAsync",
        "cuMemAllocFromPoolAsync",
        "cuMemAllocManaged",
        "cuMemAllocPitch",
        "cuMemFree",
        "cuMemFreeAsync",
        "cuMemFreeHost",
        "cuMemMap",
        "cuMemUnmap",
    ];
    NAMES.contains(&op.name)
}

impl<A: Attach> Registry<A> {
    /// Tells what processes map, before any of it is observed: who replaced code may come after another process.
    pub(crate) fn begin_scan(&mut self, found: Arc<Vec<(Tgid, Mapping)>>) {
        for (tgid, _) in found.iter().filter(|(_, mapping)| replaces_code(&mapping.path)) {
            self.add_replacer(*tgid);
        }
        self.scanned = found;
    }

    /// A process maps what replaces the code of functions that may be replaced, soon and in whatever library it maps then: no file
    /// has probes on them from now on.
    pub(super) fn add_replacer(&mut self, tgid: Tgid) {
        let is_first = self.replacers.is_empty();
        self.replacers.insert(tgid, Instant::now());
        if is_first {
            tracing::info!(
                tgid = tgid.0,
                "a process maps UCX's memory hooks: the driver's functions of memory that they replace are not probed"
            );
            self.apply_to_all();
        }
    }

    /// A child has what its parent replaced.
    pub(super) fn add_child_of_replacer(&mut self, parent: Tgid, child: Tgid) {
        if self.replacers.contains_key(&parent) {
            self.add_replacer(child);
        }
    }

    fn apply_to_all(&mut self) {
        self.generation += 1;
        for id in self.files_with(|_| true) {
            self.apply_users(id);
        }
    }

    /// Gives probes back after a scan, where those that replaced code have ended.
    pub(super) fn end_scan(&mut self, scan_started: Instant) {
        self.scanned = Arc::default();
        let had_some = !self.replacers.is_empty();
        self.replacers.retain(|_, seen| *seen >= scan_started);
        let has_none_left = had_some && self.replacers.is_empty();
        for id in self.files_with(|attached| has_none_left || !attached.replaced.is_empty()) {
            self.attach_again_where_replaced(id);
        }
        if has_none_left {
            self.apply_to_all();
        }
    }

    /// Attaches again to a file where not the same functions are replaced any more.
    fn attach_again_where_replaced(&mut self, id: FileId) {
        let Some(attached) = self.files.get(&id) else { return };
        let (mut now, mut before) = (self.replaced(id, attached), attached.replaced.clone());
        if !self.replacers.is_empty() {
            // They have no probes anyway.
            let sites = attached.image.sites.iter();
            for site in sites.filter(|site| site.op.op().is_some_and(may_be_replaced)) {
                now.remove(&site.offset);
                before.remove(&site.offset);
            }
        }
        if now.keys().eq(before.keys()) {
            return;
        }
        if let Some(mut attached) = self.files.remove(&id) {
            self.detach(&mut attached);
            self.attach(id, attached, None);
        }
    }

    /// The functions whose code was replaced in the memory of a process.
    pub(super) fn replaced(&self, id: FileId, attached: &AttachedFile<A::Links>) -> Replaced {
        let may_map = |(tgid, mapping): &(Tgid, Mapping)| {
            may_be_of(mapping, id, &attached.path).then_some(*tgid)
        };
        let mut processes: BTreeSet<Tgid> = self.scanned.iter().filter_map(may_map).collect();
        processes.extend(attached.users.keys());
        let mut replaced = Replaced::new();
        for tgid in processes {
            match replaced_by(tgid, id, attached) {
                Some(offsets) => replaced.extend(offsets.into_iter().map(|offset| (offset, tgid))),
                // The earlier answer holds.
                None => replaced.extend(attached.replaced.iter().filter(|(_, by)| **by == tgid)),
            }
        }
        replaced
    }
}

impl<L> AttachedFile<L> {
    /// The sites that get probes.
    pub(super) fn sites_to_probe(&self) -> Vec<ProbeSite> {
        let is_whole = |site: &&ProbeSite| !self.replaced.contains_key(&site.offset);
        self.image.sites.iter().filter(is_whole).cloned().collect()
    }

    /// The functions without probes, where a process `replaces` code.
    pub(super) fn replaced_functions(&self, replaces: bool) -> Vec<String> {
        let may_be = |site: &ProbeSite| site.op.op().is_some_and(may_be_replaced);
        let has_none = |site: &&ProbeSite| {
            self.replaced.contains_key(&site.offset) || (replaces && may_be(site))
        };
        self.image.sites.iter().filter(has_none).map(|site| site.symbol.clone()).collect()
    }
}

/// Returns true if a mapping may be of this file. Some file systems have another inode in the list of mappings.
fn may_be_of(mapping: &Mapping, id: FileId, path: &Path) -> bool {
    mapping.inode == id.inode || mapping.path.file_name() == path.file_name()
}

/// The offsets of sites where a process has other code in memory than the file. `None` when it cannot be compared.
fn replaced_by<L>(tgid: Tgid, id: FileId, attached: &AttachedFile<L>) -> Option<Vec<u64>> {
    let is_of_file = |mapping: &Mapping| {
        may_be_of(mapping, id, &attached.path)
            && locate_mapped(tgid, mapping).is_ok_and(|found| FileId::of(found.metadata()) == id)
    };
    let mut mappings =
        executable_mappings(tgid).inspect_err(|error| warn_once(tgid, error)).ok()?;
    mappings.retain(is_of_file);
    if mappings.is_empty() {
        return Some(Vec::new());
    }
    let memory = match File::open(format!("/proc/{tgid}/mem")) {
        Ok(memory) => memory,
        Err(_) if !has_memory(tgid) => return Some(Vec::new()),
        Err(error) => {
            warn_once(tgid, &error);
            return None;
        }
    };
    let differs = |&offset: &u64| {
        let of_file = code_at(&attached.file, offset);
        let in_memory = address_of(&mappings, offset).and_then(|address| code_at(&memory, address));
        of_file.zip(in_memory).is_some_and(|(file, memory)| is_other_code(file, memory))
    };
    let is_replaced = |site: &&ProbeSite| [site.offset].iter().chain(&site.returns).any(differs);
    Some(attached.image.sites.iter().filter(is_replaced).map(|site| site.offset).collect())
}

fn warn_once(tgid: Tgid, error: &io::Error) {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        tracing::warn!(
            tgid = tgid.0,
            %error,
            "cannot compare the code of a process with its file: a probe may destroy code that the process has replaced"
        );
    });
}

fn address_of(mappings: &[Mapping], offset: u64) -> Option<u64> {
    mappings.iter().find_map(|mapping| {
        let address = mapping.start + offset.checked_sub(mapping.offset)?;
        (address < mapping.end).then_some(address)
    })
}

fn code_at(file: &File, offset: u64) -> Option<Code> {
    let mut code = [0; COMPARED];
    file.read_exact_at(&mut code, offset).ok().map(|()| code)
}

/// Returns true if the code in memory is neither the file's nor that with breakpoints.
#[cfg(target_arch = "x86_64")]
fn is_other_code(file: Code, memory: Code) -> bool {
    const BREAKPOINT: u8 = 0xcc;
    /// Since 6.18 the kernel may make a call of this no-op where there is a probe.
    const NO_OP: Code = [0x0f, 0x1f, 0x44, 0x00, 0x00];
    const CALL: u8 = 0xe8;
    let is_call = file == NO_OP && memory[0] == CALL;
    let is_other = |(file, memory): (u8, u8)| memory != file && memory != BREAKPOINT;
    !is_call && file.into_iter().zip(memory).any(is_other)
}

/// Returns true if the code in memory is neither the file's nor a breakpoint of another tool.
#[cfg(not(target_arch = "x86_64"))]
fn is_other_code(file: Code, memory: Code) -> bool {
    /// `UPROBES_BRK_IMM` of arm64.
    const BREAKPOINT: Code = 0xd420_00a0_u32.to_le_bytes();
    memory != file && memory != BREAKPOINT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_breakpoint_is_no_other_code_and_a_jump_is() {
        const PUSH: Code = [0x55, 0x48, 0x89, 0xe5, 0x41];
        const NO_OP: Code = [0x0f, 0x1f, 0x44, 0x00, 0x00];
        for (file, memory, other) in [
            (PUSH, PUSH, false),
            (PUSH, [0xcc, 0x48, 0x89, 0xe5, 0x41], false),
            (PUSH, [0xe9, 0x1b, 0xc8, 0xdc, 0xff], true),
            (PUSH, [0xcc, 0x1b, 0xc8, 0xdc, 0xff], true),
            (PUSH, [0x55, 0x48, 0xcc, 0xe5, 0xcc], false),
            (PUSH, [0x49, 0xbb, 0x00, 0x10, 0x20], true),
            (PUSH, [0xe8, 0x00, 0x10, 0x20, 0x00], true),
            (NO_OP, [0xe8, 0x00, 0x10, 0x20, 0x00], false),
            (NO_OP, [0xe9, 0x00, 0x10, 0x20, 0x00], true),
        ] {
            assert_eq!(is_other_code(file, memory), other, "{file:x?} {memory:x?}");
        }
    }

    #[test]
    fn only_the_drivers_functions_of_memory_may_be_replaced() {
        let named = |name| gpucause_abi::op::op_of_symbol(name).and_then(|id| id.op()).unwrap();
        for (name, may_be) in [
            ("cuMemAlloc_v2", true),
            ("cuMemFreeAsync", true),
            ("cuMemMap", true),
            ("cuMemUnmap", true),
            ("cuMemCreate", false),
            ("cuLaunchKernel", false),
            ("cuMemcpyAsync", false),
            ("cudaMalloc", false),
        ] {
            assert_eq!(may_be_replaced(named(name)), may_be, "{name}");
        }
    }
}
