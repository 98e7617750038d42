//! Which file of a process an address is from.

use std::collections::HashMap;

use gpucause_abi::{ProcId, Tgid};
use gpucause_investigations::recording::{Stack, StackFrame};
use gpucause_probes::mapped::{Mapping, executable_mappings};

/// The code that processes have mapped, as seen when a stack was last in code that was not known.
#[derive(Debug, Default)]
pub(super) struct Frames {
    mapped: HashMap<ProcId, Vec<Mapping>>,
}

fn found(mappings: &[Mapping], address: u64) -> Option<&Mapping> {
    mappings.iter().find(|own| (own.start..own.end).contains(&address))
}

impl Frames {
    /// Looks at a process again: it may have loaded libraries. One that ended keeps what it had.
    fn refresh(&mut self, id: ProcId, tgid: Tgid) {
        match executable_mappings(tgid) {
            Ok(mappings) if !mappings.is_empty() => {
                self.mapped.insert(id, mappings);
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%tgid, %error, "stacks stay without files"),
        }
    }

    /// Nothing more is asked of these.
    pub(super) fn forget(&mut self, ended: impl Fn(ProcId) -> bool) {
        self.mapped.retain(|id, _| !ended(*id));
    }

    /// The stack of these addresses, the innermost first: each by its file and the offset there.
    pub(super) fn stack(&mut self, id: ProcId, tgid: Tgid, addresses: &[u64]) -> Stack {
        let known = self.mapped.get(&id).map(Vec::as_slice).unwrap_or_default();
        if addresses.iter().any(|&address| found(known, address).is_none()) {
            self.refresh(id, tgid);
        }
        let mappings = self.mapped.get(&id).map(Vec::as_slice).unwrap_or_default();
        let frame = |&address: &u64| {
            let found = found(mappings, address);
            let place = found.map(|own| {
                let file = own.path.file_name().unwrap_or_default().to_string_lossy();
                format!("{file}+{:#x}", address - own.start + own.offset)
            });
            let file = found.map(|own| own.path.to_string_lossy().into_owned());
            StackFrame { address, function: place, file, line: None }
        };
        Stack { frames: addresses.iter().map(frame).collect() }
    }
}
