//! Tracks descendants that are older than the tracking of a dispatcher.

use std::io::Read as _;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use gpucause_abi::Tgid;
use libbpf_rs::{Iter, Link, MapCore as _, MapFlags};
use parking_lot::Mutex;

use super::orphans::{Dispatcher, owners};
use super::{Map, ReadError, failed};

/// Map with the number of processes that have become dispatchers.
pub(super) const MAP: &str = ".data.adopt";
/// Map with the processes that orphans work for.
pub(super) const ORPHANS: &str = "orphans";

/// Runs the iterator over all tasks only when another process has become a dispatcher.
#[derive(Debug)]
pub(super) struct Adoption {
    dispatchers: Map,
    orphans: Map,
    program: Mutex<Option<Link>>,
    /// The number of dispatchers at the last run.
    done: AtomicU32,
}

impl Adoption {
    pub(super) fn new(dispatchers: Map, orphans: Map) -> Self {
        Self { dispatchers, orphans, program: Mutex::default(), done: AtomicU32::new(0) }
    }

    /// Replaces the iterator.
    pub(super) fn set_program(&self, program: Option<Link>) {
        *self.program.lock() = program;
    }

    #[expect(clippy::significant_drop_tightening, reason = "the link must stay while it is read")]
    pub(super) fn run_if_due(
        &self,
        live: impl FnOnce() -> Result<Vec<Dispatcher>, ReadError>,
    ) -> Result<(), ReadError> {
        let program = self.program.lock();
        let Some(program) = &*program else { return Ok(()) };
        let bytes = self.dispatchers.lookup(&0u32.to_ne_bytes())?;
        let bytes = bytes.as_ref().and_then(|bytes| bytes.first_chunk().copied());
        let dispatchers = u32::from_ne_bytes(bytes.ok_or(ReadError::Layout(MAP))?);
        if self.done.load(Ordering::Relaxed) == dispatchers {
            return Ok(());
        }
        let orphans = adopt(program)?;
        if !orphans.is_empty() {
            self.adopt_orphans(program, &orphans, &live()?)?;
        }
        self.done.store(dispatchers, Ordering::Relaxed);
        Ok(())
    }

    fn adopt_orphans(
        &self,
        program: &Link,
        orphans: &[Tgid],
        live: &[Dispatcher],
    ) -> Result<(), ReadError> {
        let owners = owners(Path::new("/proc"), orphans, live);
        let Map { name, handle, .. } = &self.orphans;
        for (orphan, owner) in &owners {
            let (key, value) = (orphan.0.to_ne_bytes(), owner.0.to_ne_bytes());
            handle.update(&key, &value, MapFlags::ANY).map_err(failed(name))?;
        }
        if !owners.is_empty() {
            adopt(program)?;
        }
        owners.iter().try_for_each(|(orphan, _)| self.orphans.delete(&orphan.0.to_ne_bytes()))
    }
}

/// Runs the iterator; returns the processes whose parents may have ended and that belong to no dispatcher.
fn adopt(program: &Link) -> Result<Vec<Tgid>, ReadError> {
    let mut bytes = Vec::new();
    let walk = Iter::new(program).map_err(failed(MAP))?.read_to_end(&mut bytes);
    walk.map_err(ReadError::Reports)?;
    let words = bytes.chunks_exact(size_of::<u32>()).filter_map(|word| word.first_chunk().copied());
    Ok(words.map(u32::from_ne_bytes).map(Tgid).collect())
}
