//! Which file of a process an address is from, and where in it.

use std::collections::HashMap;
use std::fs::File;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use gpucause_abi::{ProcId, Tgid};
use gpucause_investigations::recording::{Stack, StackFrame};
use gpucause_probes::elf::LinkAddresses;
use gpucause_probes::mapped::{FileVersion, Mapping, executable_mappings, locate_mapped};

use crate::kernel_names::readable::one_line;

/// Characters of a path that are kept.
const MAX_PATH: usize = 256;
/// How often a process is looked at again: each look reads all that it has mapped, and there may be code in no file.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Looks that may follow at once, for a process that loads its libraries.
const LOOKS_AT_ONCE: u32 = 8;

/// A file with code, open as long as a process has it mapped, whatever becomes of its name.
#[derive(Debug)]
pub(super) struct Module {
    pub(super) version: FileVersion,
    pub(super) file: File,
    addresses: Option<LinkAddresses>,
}

/// A part of a process, with its file once that was asked for.
#[derive(Debug)]
struct Part {
    mapping: Mapping,
    module: Option<Option<Arc<Module>>>,
}

/// The code of a process, ordered by address, as it was when it was looked at.
#[derive(Debug)]
struct Process {
    parts: Vec<Part>,
    /// When the looks so far have had their time.
    looked_until: Instant,
}

/// A stack as its addresses tell it, and the files in which each of its frames is.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) stack: Stack,
    pub(super) modules: Vec<Option<Arc<Module>>>,
}

/// The code that processes have mapped, as seen when a stack was last in code that was not known.
#[derive(Debug, Default)]
pub(super) struct Frames {
    mapped: HashMap<ProcId, Process>,
    modules: HashMap<FileVersion, Weak<Module>>,
}

fn found(parts: &[Part], address: u64) -> Option<usize> {
    parts.iter().position(|own| (own.mapping.start..own.mapping.end).contains(&address))
}

impl Process {
    /// Whether it is time for another look, which is taken then.
    fn is_due(&mut self, now: Instant) -> bool {
        let from = self.looked_until.max(now);
        let is_due = from < now + LOOK_EVERY * LOOKS_AT_ONCE;
        if is_due {
            self.looked_until = from + LOOK_EVERY;
        }
        is_due
    }
}

impl Frames {
    /// Looks at a process again, unless it was often of late: it may have loaded libraries. One that ended keeps what it had.
    fn refresh(&mut self, id: ProcId, tgid: Tgid) {
        let now = Instant::now();
        if self.mapped.get_mut(&id).is_some_and(|known| !known.is_due(now)) {
            return;
        }
        let mappings = match executable_mappings(tgid) {
            Ok(mappings) if !mappings.is_empty() => mappings,
            Ok(_) => return,
            Err(error) => {
                tracing::debug!(%tgid, %error, "stacks stay without files");
                return;
            }
        };
        let known = self.mapped.entry(id);
        let known =
            known.or_insert_with(|| Process { parts: Vec::new(), looked_until: now + LOOK_EVERY });
        let before = std::mem::take(&mut known.parts).into_iter();
        let mut before: HashMap<u64, Part> = before.map(|own| (own.mapping.start, own)).collect();
        let part = |mapping: Mapping| {
            let same = before.remove(&mapping.start).filter(|own| own.mapping == mapping);
            same.unwrap_or(Part { mapping, module: None })
        };
        known.parts = mappings.into_iter().map(part).collect();
    }

    /// Nothing more is asked of these.
    pub(super) fn forget(&mut self, ended: impl Fn(ProcId) -> bool) {
        self.mapped.retain(|id, _| !ended(*id));
        self.modules.retain(|_, module| module.strong_count() > 0);
    }

    /// The code of a process, as mapped now where that is not known.
    pub(super) fn mappings(&mut self, id: ProcId, tgid: Tgid) -> impl Iterator<Item = &Mapping> {
        if !self.mapped.contains_key(&id) {
            self.refresh(id, tgid);
        }
        self.mapped.get(&id).into_iter().flat_map(|known| &known.parts).map(|part| &part.mapping)
    }

    /// The stack of these addresses, the innermost first.
    pub(super) fn stack(&mut self, id: ProcId, tgid: Tgid, addresses: &[u64]) -> Found {
        let known = self.mapped.get(&id).map(|own| own.parts.as_slice()).unwrap_or_default();
        if addresses.iter().any(|&address| found(known, address).is_none()) {
            self.refresh(id, tgid);
        }
        let Self { mapped, modules } = self;
        let parts = mapped.get_mut(&id).map(|own| own.parts.as_mut_slice()).unwrap_or_default();
        let mut answer = Found { stack: Stack::default(), modules: Vec::new() };
        for &address in addresses {
            let part = found(parts, address).and_then(|at| parts.get_mut(at));
            let mut frame = StackFrame { address, ..StackFrame::default() };
            let mut module = None;
            if let Some(Part { mapping, module: known }) = part {
                module.clone_from(known.get_or_insert_with(|| open(modules, tgid, mapping)));
                let offset = (address - mapping.start).saturating_add(mapping.offset);
                let addresses = module.as_ref().and_then(|own| own.addresses.as_ref());
                frame.module = Some(one_line(&mapping.path.to_string_lossy(), MAX_PATH));
                frame.module_address = addresses.and_then(|own| own.at(offset));
            }
            answer.stack.frames.push(frame);
            answer.modules.push(module);
        }
        // Threads begin in a file. What ends elsewhere has followed a register that was no frame pointer there.
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
            .inspect_err(|error| tracing::debug!(path = ?mapping.path, %error, "stacks stay without addresses"))
            .ok();
        let module = Arc::new(Module { version, file, addresses });
        modules.insert(version, Arc::downgrade(&module));
        Ok(module)
    });
    opened.inspect_err(|error| tracing::debug!(%error, "stacks stay without functions")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn somewhere() {}

    #[test]
    fn a_process_with_code_in_no_file_is_looked_at_once_a_second() {
        let now = Instant::now();
        let mut process = Process { parts: Vec::new(), looked_until: now };
        let looks = |process: &mut Process, at| (0..100).filter(|_| process.is_due(at)).count();
        assert_eq!(looks(&mut process, now), 8, "a process that loads its libraries");
        for second in 1..5 {
            assert_eq!(looks(&mut process, now + LOOK_EVERY * second), 1, "{second}");
        }
        assert_eq!(looks(&mut process, now + LOOK_EVERY * 100), 8);
    }

    #[test]
    fn a_second_look_keeps_the_files_that_are_open() {
        let (id, own) = (ProcId(1), Tgid(std::process::id()));
        let mut frames = Frames::default();
        let found = frames.stack(id, own, &[somewhere as *const () as u64]);
        assert!(found.modules[0].is_some());
        let open = |frames: &Frames| {
            frames.mapped[&id].parts.iter().filter(|part| part.module.is_some()).count()
        };
        assert_eq!(open(&frames), 1);
        let looked_until = frames.mapped[&id].looked_until;
        frames.stack(id, own, &[0x10]);
        assert!(frames.mapped[&id].looked_until > looked_until, "it was looked at again");
        assert_eq!(open(&frames), 1);
    }
}
