//! Functions whose code a process has replaced in its memory, or is about to replace, as UCX does with the driver's functions of memory.
//! There is no probe on them: a breakpoint would overwrite a byte of the new code, after which the kernel goes on behind the file's
//! instruction, in the middle of the new one; and where a breakpoint is first, UCX leaves the function alone and does not learn
//! of the program's memory.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use gpucause_abi::Tgid;
use gpucause_abi::op::{Api, Class, Op};

use super::{Attach, AttachedFile, FileId, Registry};
use crate::elf::ProbeSite;
use crate::mapped::{Mapping, executable_mappings, locate_mapped};

/// Compared bytes of code: as many as the shortest jump to anywhere has.
const COMPARED: usize = if cfg!(target_arch = "x86_64") { 5 } else { 4 };
type Code = [u8; COMPARED];

/// The processes that replaced the code at a file offset of a probe, one for each.
pub(super) type Replaced = BTreeMap<u64, Tgid>;
/// Processes by the inode of what they map, found before any of it is attached to.
pub(crate) type Mappers = HashMap<u64, Vec<Tgid>>;

/// Returns true for the driver's functions that allocate and free.
pub(crate) fn may_be_replaced(op: &Op) -> bool {
    op.api == Api::Driver && matches!(op.class, Class::Alloc | Class::Free)
}

impl<A: Attach> Registry<A> {
    /// Tells who maps what, before a scan observes it: who replaced code may be observed after another process.
    pub(crate) fn set_mappers(&mut self, mappers: Mappers) {
        self.mappers = mappers;
    }

    /// A process maps what replaces the code of functions that may be replaced.
    pub(crate) fn add_replacer(&mut self, tgid: Tgid) {
        if self.replacers.insert(tgid, Instant::now()).is_some() {
            return;
        }
        self.generation += 1;
        tracing::info!(
            tgid = tgid.0,
            "a process maps UCX's memory hooks: the driver's functions of memory are not probed in the libraries that it maps"
        );
        for id in self.files_with(|attached| attached.users.contains_key(&tgid)) {
            self.apply_users(id);
        }
    }

    /// Gives probes back after a scan, where those that replaced code have ended.
    pub(super) fn forget_replacers(&mut self, scan_started: Instant) {
        let before = self.replacers.len();
        self.replacers.retain(|_, seen| *seen >= scan_started);
        let is_fewer = self.replacers.len() < before;
        self.generation += u64::from(is_fewer);
        for id in self.files_with(|attached| is_fewer || !attached.replaced.is_empty()) {
            self.apply_users(id);
        }
    }

    /// Returns true if a process that uses a file replaces code.
    pub(super) fn has_replacer(&self, attached: &AttachedFile<A::Links>) -> bool {
        attached.users.keys().any(|user| self.replacers.contains_key(user))
    }

    /// Returns true if not the same functions as at the last attach are replaced, of those that have probes now or should have.
    pub(super) fn has_other_replaced(&self, id: FileId, attached: &AttachedFile<A::Links>) -> bool {
        let mut now = self.replaced(id, attached);
        let mut before = attached.replaced.clone();
        if self.has_replacer(attached) {
            let sites = attached.image.sites.iter();
            for site in sites.filter(|site| site.op.op().is_some_and(may_be_replaced)) {
                now.remove(&site.offset);
                before.remove(&site.offset);
            }
        }
        !now.keys().eq(before.keys())
    }

    /// The functions whose code was replaced in the memory of a process.
    pub(super) fn replaced(&self, id: FileId, attached: &AttachedFile<A::Links>) -> Replaced {
        let mapping = self.mappers.get(&id.inode).into_iter().flatten();
        let mut processes: Vec<Tgid> = attached.users.keys().chain(mapping).copied().collect();
        processes.sort_unstable();
        processes.dedup();
        let mut replaced = Replaced::new();
        for tgid in processes {
            for offset in replaced_by(tgid, id, &attached.file, &attached.image.sites) {
                replaced.insert(offset, tgid);
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

/// The offsets of sites where a process has other code in memory than the file.
fn replaced_by(tgid: Tgid, id: FileId, file: &File, sites: &[ProbeSite]) -> Vec<u64> {
    let is_of_file = |mapping: &Mapping| {
        mapping.inode == id.inode
            && locate_mapped(tgid, mapping).is_ok_and(|found| FileId::of(found.metadata()) == id)
    };
    let mut mappings = executable_mappings(tgid).unwrap_or_default();
    mappings.retain(is_of_file);
    if mappings.is_empty() {
        return Vec::new();
    }
    let memory = match File::open(format!("/proc/{tgid}/mem")) {
        Ok(memory) => memory,
        Err(error) => {
            tracing::debug!(tgid = tgid.0, %error, "cannot compare the code of a process with its file");
            return Vec::new();
        }
    };
    let differs = |&offset: &u64| {
        let of_file = code_at(file, offset);
        let in_memory = address_of(&mappings, offset).and_then(|address| code_at(&memory, address));
        of_file.zip(in_memory).is_some_and(|(file, memory)| is_other_code(file, memory))
    };
    let is_replaced = |site: &&ProbeSite| [site.offset].iter().chain(&site.returns).any(differs);
    sites.iter().filter(is_replaced).map(|site| site.offset).collect()
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

/// Returns true if the code in memory is neither the file's nor that with a breakpoint of another tool.
#[cfg(target_arch = "x86_64")]
fn is_other_code(file: Code, memory: Code) -> bool {
    const BREAKPOINT: u8 = 0xcc;
    /// Since 6.18 the kernel may make a call of this no-op where there is a probe.
    const NO_OP: Code = [0x0f, 0x1f, 0x44, 0x00, 0x00];
    const CALL: u8 = 0xe8;
    let [first, rest @ ..] = memory;
    let is_probed = first == BREAKPOINT && rest == file[1..] || file == NO_OP && first == CALL;
    memory != file && !is_probed
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
            ("cuLaunchKernel", false),
            ("cuMemcpyAsync", false),
            ("cudaMalloc", false),
        ] {
            assert_eq!(may_be_replaced(named(name)), may_be, "{name}");
        }
    }
}
