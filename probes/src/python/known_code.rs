//! A bounded cache of code objects; their size is chosen by the process.

use std::collections::HashMap;
use std::sync::Arc;

use super::code::Code;

/// Cache limit: thousands of typical code objects with overhead.
const MAX_BYTES: usize = 16 << 20;
/// Overhead per address.
const EACH: usize = 256;

/// Code objects by address; `None` where there is none.
#[derive(Debug, Default)]
pub(super) struct KnownCode {
    codes: HashMap<u64, Option<Arc<Code>>>,
    bytes: usize,
}

impl KnownCode {
    pub(super) fn get(&self, at: u64) -> Option<&Option<Arc<Code>>> {
        self.codes.get(&at)
    }

    /// Inserts an unknown address. Clears the cache when it is full.
    pub(super) fn insert(&mut self, at: u64, code: Option<Arc<Code>>) {
        let bytes = EACH + code.as_ref().map_or(0, |code| code.bytes());
        if self.bytes + bytes > MAX_BYTES {
            *self = Self::default();
        }
        self.bytes += bytes;
        self.codes.insert(at, code);
    }

    /// Memory in use, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_takes_bounded_memory_however_long_its_tables_are() {
        for length in [0, 1000, 1 << 18] {
            let mut known = KnownCode::default();
            for at in 0..100_000_000 / (EACH + length) as u64 {
                let code = Code { table: Some(vec![0; length]), ..Code::default() };
                known.insert(at, Some(Arc::new(code)));
                assert!(known.bytes() <= MAX_BYTES);
                assert!(known.bytes() >= known.codes.len() * (EACH + length));
                assert!(known.get(at).is_some());
            }
            assert!(known.get(0).is_none(), "it was forgotten");
        }
    }

    #[test]
    fn addresses_without_code_take_memory() {
        let mut known = KnownCode::default();
        (0..1_000_000).for_each(|at| known.insert(at, None));
        assert!(known.codes.len() <= MAX_BYTES / EACH);
    }
}
