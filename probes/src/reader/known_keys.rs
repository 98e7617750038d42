//! Reads maps to which the programs alone add entries. A walk visits every bucket of a map, and on a host with few processes nearly all
//! are empty: a map is walked only after an entry was added. Otherwise its known keys are looked up.

use std::collections::BTreeSet;
use std::io;

use gpucause_abi::record::GrowingMap;
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use parking_lot::Mutex;

use crate::batch;

/// Map with how often the programs tried to add an entry to each map.
pub(super) const ADDED: &str = ".data.added";
/// Looking up one key takes about as long as walking so many buckets.
const BUCKETS_PER_LOOKUP: usize = 256;

type KeySet = BTreeSet<Box<[u8]>>;

/// The keys of a map, and the count of additions before they were read.
#[derive(Debug)]
struct Keys {
    added: u32,
    keys: KeySet,
}

/// The known keys of a map.
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

    /// How often an entry was to be added to the map. Wraps.
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
        // Taken: who reads at the same time need not wait, and walks the map.
        let last = self.keys.lock().take();
        let keys = match last.filter(|last| last.added == added) {
            Some(Keys { keys, .. }) => Some(look_up(map, keys, &mut each)?),
            None => walk(map, &mut each)?,
        };
        *self.keys.lock() = keys.map(|keys| Keys { added, keys });
        Ok(())
    }
}

/// Looks up each of these keys. Returns those that have an entry.
fn look_up(
    map: &MapHandle,
    keys: KeySet,
    each: &mut impl FnMut(&[u8], &[u8]),
) -> io::Result<KeySet> {
    let mut value = vec![0; map.value_size() as usize];
    let mut left = KeySet::new();
    for key in keys {
        if batch::look_up(map, &key, &mut value)? {
            each(&key, &value);
            left.insert(key);
        }
    }
    Ok(left)
}

/// Walks the map. Returns its keys, or `None` if there are too many.
fn walk(map: &MapHandle, each: &mut impl FnMut(&[u8], &[u8])) -> io::Result<Option<KeySet>> {
    let most = map.max_entries() as usize / BUCKETS_PER_LOOKUP;
    let mut keys = KeySet::new();
    batch::for_each(map, |key, value| {
        if keys.len() <= most {
            keys.insert(key.into());
        }
        each(key, value);
    })?;
    Ok((keys.len() <= most).then_some(keys))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn programs_add_to_these_maps_only_where_it_is_counted() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("bpf");
        let texts = std::fs::read_dir(sources).unwrap().map(|entry| entry.unwrap().path());
        let text: String = texts.map(|path| std::fs::read_to_string(path).unwrap()).collect();
        for map in GrowingMap::ALL.iter().map(|map| map.label()) {
            assert!(text.contains(&format!("ADD_ENTRY(&{map}, ")), "nothing adds to {map}");
            let uncounted = format!("bpf_map_update_elem(&{map}, ");
            assert!(!text.contains(&uncounted), "{uncounted} is not counted");
        }
    }
}
