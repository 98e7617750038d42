//! Functions that addresses of files are in, by their symbol tables: what a symboliser knows of, without its memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use gpucause_probes::elf::functions_around;
use gpucause_probes::mapped::FileVersion;
use gpucause_trace::symbol::function;

use super::frames::Module;

/// Functions and addresses without one that are remembered; when there are more, all are forgotten.
const MAX_REMEMBERED: usize = 16_384;

/// Name of a function; `None` where there is no symbol.
type Name = Option<Arc<str>>;

/// The functions that were found so far, by file.
#[derive(Debug, Default)]
pub(crate) struct Functions {
    /// End and name by begin.
    files: HashMap<FileVersion, BTreeMap<u64, (u64, Name)>>,
    remembered: usize,
}

impl Functions {
    /// Finds the functions that these link-time addresses of a file are in. What is not known yet takes a pass over its symbols.
    pub(crate) fn find(&mut self, module: &Module, addresses: &[u64]) {
        let known = self.files.get(&module.version);
        let is_known = |at: u64| known.is_some_and(|known| entry(known, at).is_some());
        let missing: Vec<u64> = addresses.iter().copied().filter(|&at| !is_known(at)).collect();
        if missing.is_empty() {
            return;
        }
        if self.remembered > MAX_REMEMBERED {
            *self = Self::default();
        }
        let mut found = functions_around(&module.file, &missing).unwrap_or_else(|error| {
            tracing::debug!(%error, "cannot read the symbols of a file");
            BTreeMap::new()
        });
        let known = self.files.entry(module.version).or_default();
        let before = known.len();
        for at in missing {
            let (begin, own) = found.remove(&at).map_or((at, (at + 1, None)), |own| {
                let name = function(&String::from_utf8_lossy(&own.name)).map(Arc::from);
                (own.range.start, (own.range.end, name))
            });
            known.insert(begin, own);
        }
        self.remembered += known.len() - before;
    }

    /// The function of an address that `find` was asked for.
    pub(crate) fn name(&self, module: &Module, address: u64) -> Name {
        entry(self.files.get(&module.version)?, address)?.clone()
    }
}

fn entry(known: &BTreeMap<u64, (u64, Name)>, address: u64) -> Option<&Name> {
    let (_, (end, name)) = known.range(..=address).next_back()?;
    (address < *end).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks::frames::Frames;
    use gpucause_abi::{ProcId, Tgid};

    #[inline(never)]
    fn somewhere() -> u64 {
        std::hint::black_box(3)
    }

    #[test]
    fn an_address_inside_a_function_has_its_name_and_a_second_one_takes_no_pass() {
        let begin = somewhere as *const () as u64;
        let mut frames = Frames::default();
        let found = frames.stack(ProcId(1), Tgid(std::process::id()), &[begin, begin + 1]);
        let module = found.modules[0].as_ref().unwrap();
        let addresses = [0, 1].map(|at| found.stack.frames[at].module_address.unwrap());
        let mut functions = Functions::default();
        assert_eq!(functions.name(module, addresses[0]), None);
        for _ in 0..2 {
            functions.find(module, &addresses[..1]);
            assert_eq!(functions.remembered, 1);
        }
        for at in addresses {
            assert!(functions.name(module, at).unwrap().contains("somewhere"));
        }
        functions.find(module, &[u64::MAX - 1]);
        assert_eq!((functions.name(module, u64::MAX - 1), functions.remembered), (None, 2));
    }
}
