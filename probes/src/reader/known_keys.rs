//! Reads maps to which the programs alone add entries. A walk visits every bucket of a map, nearly all of which are empty on a host
//! with few processes; so a map is walked only after an entry was added, and else its known entries are looked up.

use std::collections::BTreeSet;
use std::io;

use gpucause_abi::record::GrowingMap;
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use parking_lot::Mutex;

use crate::batch;

/// Map with the number of entries that were added to each map.
pub(super) const ADDED: &str = ".data.added";
/// A walk of a map takes about as long as looking up one of so many of its entries.
const WALKED_FOR_EACH: usize = 256;

/// The keys of a map, and how many entries had been added before they were read.
#[derive(Debug)]
struct Keys {
    added: u32,
    keys: BTreeSet<Box<[u8]>>,
}

/// What is known of a map's keys.
#[derive(Debug)]
pub(super) struct KnownKeys {
    counts: MapHandle,
    of: GrowingMap,
    /// `None` where there are too many, and before the first walk.
    keys: Mutex<Option<Keys>>,
}

impl KnownKeys {
    pub(super) fn new(counts: MapHandle, of: GrowingMap) -> Self {
        Self { counts, of, keys: Mutex::default() }
    }

    /// How many entries have been added to the map. Wraps.
    fn added(&self) -> io::Result<u32> {
        let counts = self.counts.lookup(&0u32.to_ne_bytes(), MapFlags::ANY);
        let counts = counts.map_err(io::Error::other)?.unwrap_or_default();
        let own = counts.chunks_exact(size_of::<u32>()).nth(self.of as usize);
        let own = own.and_then(|bytes| bytes.first_chunk().copied());
        Ok(u32::from_ne_bytes(own.ok_or(io::ErrorKind::UnexpectedEof)?))
    }

    /// Calls `each` with the key and value of every entry. Entries added meanwhile may be missed.
    pub(super) fn for_each(
        &self,
        map: &MapHandle,
        mut each: impl FnMut(&[u8], &[u8]),
    ) -> io::Result<()> {
        // Before the walk: an entry that it misses is counted later.
        let added = self.added()?;
        let mut last = self.keys.lock();
        if let Some(Keys { keys, .. }) = last.as_mut().filter(|last| last.added == added) {
            let mut value = vec![0; map.value_size() as usize];
            let mut failed = Ok(());
            keys.retain(|key| match batch::look_up(map, key, &mut value) {
                Ok(found) => {
                    if found {
                        each(key, &value);
                    }
                    found
                }
                Err(error) => {
                    failed = Err(error);
                    true
                }
            });
            return failed;
        }
        let most = map.max_entries() as usize / WALKED_FOR_EACH;
        let mut keys = BTreeSet::new();
        batch::for_each(map, |key, value| {
            if keys.len() <= most {
                keys.insert(key.into());
            }
            each(key, value);
        })?;
        *last = (keys.len() <= most).then_some(Keys { added, keys });
        Ok(())
    }
}
