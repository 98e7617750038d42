//! The file of a process that an address is in, and where in it.

use std::collections::HashMap;
use std::fs::File;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use gpucause_abi::{ProcId, Tgid};
use gpucause_probes::elf::LinkAddresses;
use gpucause_probes::mapped::{FileVersion, Mapping, executable_mappings, locate_mapped};
use gpucause_trace::recording::{Stack, StackFrame};

use gpucause_trace::symbol::one_line;

/// Characters of a path that are kept.
const MAX_PATH: usize = 256;
/// Between two reads of a process's mappings: each reads all of them, and there may be code in no file.
const READ_EVERY: Duration = Duration::from_secs(1);
/// Reads that may follow at once, for a process that loads its libraries.
const MAX_BURST: u32 = 8;

/// A file with code, open as long as a process has it mapped, whatever becomes of its name.
#[derive(Debug)]
pub struct Module {
    /// Its version when it was opened.
    pub version: FileVersion,
    /// The open file.
    pub file: File,
    addresses: Option<LinkAddresses>,
}

/// A mapping of a process, with its file once that was needed.
#[derive(Debug)]
struct Region {
    mapping: Mapping,
    module: Option<Option<Arc<Module>>>,
}

/// The code of a process at the last read, ordered by address.
#[derive(Debug)]
struct Process {
    regions: Vec<Region>,
    /// Token bucket: the time that the reads so far have used up.
    used_until: Instant,
}

/// A stack without function names, and the file of each of its frames.
#[derive(Debug)]
pub struct Found {
    /// The frames, innermost first.
    pub stack: Stack,
    /// The module of each frame; `None` where it has none.
    pub modules: Vec<Option<Arc<Module>>>,
}

/// The code that processes have mapped, read again when a stack has an unknown address.
#[derive(Debug, Default)]
pub struct Frames {
    mapped: HashMap<ProcId, Process>,
    modules: HashMap<FileVersion, Weak<Module>>,
}

fn found(regions: &[Region], address: u64) -> Option<usize> {
    regions.iter().position(|own| (own.mapping.start..own.mapping.end).contains(&address))
}

impl Process {
    /// Returns true if another read may be done, which is then counted.
    fn is_due(&mut self, now: Instant) -> bool {
        let from = self.used_until.max(now);
        let is_due = from < now + READ_EVERY * MAX_BURST;
        if is_due {
            self.used_until = from + READ_EVERY;
        }
        is_due
    }
}

impl Frames {
    /// Reads the mappings of a process again, unless that was done too often: it may have loaded libraries. An ended process keeps
    /// its mappings.
    fn refresh(&mut self, id: ProcId, tgid: Tgid) {
        let now = Instant::now();
        if self.mapped.get_mut(&id).is_some_and(|known| !known.is_due(now)) {
            return;
        }
        let mappings = match executable_mappings(tgid) {
            Ok(mappings) if !mappings.is_empty() => mappings,
            Ok(_) => return,
            Err(error) => {
                tracing::debug!(%tgid, %error, "stacks have no files");
                return;
            }
        };
        let known = self.mapped.entry(id);
        let known =
            known.or_insert_with(|| Process { regions: Vec::new(), used_until: now + READ_EVERY });
        let before = std::mem::take(&mut known.regions).into_iter();
        let mut before: HashMap<u64, Region> = before.map(|own| (own.mapping.start, own)).collect();
        let region = |mapping: Mapping| {
            let same = before.remove(&mapping.start).filter(|own| own.mapping == mapping);
            same.unwrap_or(Region { mapping, module: None })
        };
        known.regions = mappings.into_iter().map(region).collect();
    }

    /// Removes ended processes.
    pub fn forget(&mut self, ended: impl Fn(ProcId) -> bool) {
        self.mapped.retain(|id, _| !ended(*id));
        self.modules.retain(|_, module| module.strong_count() > 0);
    }

    /// The code of a process, which is read if it is not known.
    pub(crate) fn mappings(&mut self, id: ProcId, tgid: Tgid) -> impl Iterator<Item = &Mapping> {
        if !self.mapped.contains_key(&id) {
            self.refresh(id, tgid);
        }
        self.mapped
            .get(&id)
            .into_iter()
            .flat_map(|known| &known.regions)
            .map(|region| &region.mapping)
    }

    /// The stack of these addresses, the innermost first.
    pub fn stack(&mut self, id: ProcId, tgid: Tgid, addresses: &[u64]) -> Found {
        let known = self.mapped.get(&id).map(|own| own.regions.as_slice()).unwrap_or_default();
        if addresses.iter().any(|&address| found(known, address).is_none()) {
            self.refresh(id, tgid);
        }
        let Self { mapped, modules } = self;
        let regions = mapped.get_mut(&id).map(|own| own.regions.as_mut_slice()).unwrap_or_default();
        let mut answer = Found { stack: Stack::default(), modules: Vec::new() };
        for &address in addresses {
            let region = found(regions, address).and_then(|at| regions.get_mut(at));
            let mut frame = StackFrame { address, ..StackFrame::default() };
            let mut module = None;
            if let Some(Region { mapping, module: known }) = region {
                module.clone_from(known.get_or_insert_with(|| open(modules, tgid, mapping)));
                let offset = (address - mapping.start).saturating_add(mapping.offset);
                let addresses = module.as_ref().and_then(|own| own.addresses.as_ref());
                frame.module = Some(one_line(&mapping.path.to_string_lossy(), MAX_PATH));
                frame.module_address = addresses.and_then(|own| own.at(offset));
            }
            answer.stack.frames.push(frame);
            answer.modules.push(module);
        }
        // Threads start in a file: frames beyond the last one in a file come from a register that was no frame pointer.
        let in_file = |frame: &StackFrame| frame.module.is_some();
        if let Some(last) = answer.stack.frames.iter().rposition(in_file) {
            answer.stack.frames.truncate(last + 1);
            answer.modules.truncate(last + 1);
        }
        answer
    }
}

/// The file of a mapping: as it is mapped, in whatever mount namespace, deleted or not.
fn open(
    modules: &mut HashMap<FileVersion, Weak<Module>>,
    tgid: Tgid,
    mapping: &Mapping,
) -> Option<Arc<Module>> {
    let opened = locate_mapped(tgid, mapping).and_then(|located| {
        let version = FileVersion::of(located.metadata());
        if let Some(known) = modules.get(&version).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let file = located.open()?;
        let addresses = LinkAddresses::of(&file)
            .inspect_err(|error| tracing::debug!(path = ?mapping.path, %error, "stacks have no file addresses"))
            .ok();
        let module = Arc::new(Module { version, file, addresses });
        modules.insert(version, Arc::downgrade(&module));
        Ok(module)
    });
    opened.inspect_err(|error| tracing::debug!(%error, "stacks have no functions")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn somewhere() {}

    #[test]
    fn a_process_with_code_in_no_file_is_read_once_a_second() {
        let now = Instant::now();
        let mut process = Process { regions: Vec::new(), used_until: now };
        let reads = |process: &mut Process, at| (0..100).filter(|_| process.is_due(at)).count();
        assert_eq!(reads(&mut process, now), 8, "a process that loads its libraries");
        for second in 1..5 {
            assert_eq!(reads(&mut process, now + READ_EVERY * second), 1, "{second}");
        }
        assert_eq!(reads(&mut process, now + READ_EVERY * 100), 8);
    }

    #[test]
    fn a_second_read_keeps_the_files_that_are_open() {
        let (id, own) = (ProcId(1), Tgid(std::process::id()));
        let mut frames = Frames::default();
        let found = frames.stack(id, own, &[somewhere as *const () as u64]);
        assert!(found.modules[0].is_some());
        let open = |frames: &Frames| {
            frames.mapped[&id].regions.iter().filter(|region| region.module.is_some()).count()
        };
        assert_eq!(open(&frames), 1);
        let used_until = frames.mapped[&id].used_until;
        frames.stack(id, own, &[0x10]);
        assert!(frames.mapped[&id].used_until > used_until, "it was read again");
        assert_eq!(open(&frames), 1);
    }
}
