//! Which file of a process an address is from.

use std::collections::HashMap;

use gpucause_abi::Tgid;
use gpucause_investigations::recording::{Stack, StackFrame};
use gpucause_probes::mapped::{Mapping, executable_mappings};

/// The code that processes have mapped, as last seen.
#[derive(Debug, Default)]
pub(super) struct Frames {
    mapped: HashMap<Tgid, Vec<Mapping>>,
}

impl Frames {
    /// Looks at a process again: it may have loaded libraries. One that ended keeps what it had.
    pub(super) fn refresh(&mut self, tgid: Tgid) {
        match executable_mappings(tgid) {
            Ok(mappings) if !mappings.is_empty() => {
                self.mapped.insert(tgid, mappings);
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%tgid, %error, "stacks stay without files"),
        }
    }

    /// The stack of these addresses, the innermost first: each by its file and the offset there, for `addr2line`.
    pub(super) fn stack(&mut self, tgid: Tgid, addresses: &[u64]) -> Stack {
        if !self.mapped.contains_key(&tgid) {
            self.refresh(tgid);
        }
        let mappings = self.mapped.get(&tgid).map(Vec::as_slice).unwrap_or_default();
        let frame = |&address: &u64| {
            let found = mappings.iter().find(|own| (own.start..own.end).contains(&address));
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
