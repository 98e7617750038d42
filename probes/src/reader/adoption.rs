//! Tracks children that are older than the tracking of their parents.

use std::io::Read as _;
use std::sync::atomic::{AtomicU32, Ordering};

use libbpf_rs::{Iter, Link};
use parking_lot::Mutex;

use super::{Map, ReadError, failed};

/// Map with the number of processes that have become dispatchers.
pub(super) const MAP: &str = ".data.adopt";

/// Runs the iterator over all tasks only when another process has become a dispatcher.
#[derive(Debug)]
pub(super) struct Adoption {
    dispatchers: Map,
    program: Mutex<Option<Link>>,
    /// The number of dispatchers at the last run.
    done: AtomicU32,
}

impl Adoption {
    pub(super) fn new(dispatchers: Map) -> Self {
        Self { dispatchers, program: Mutex::default(), done: AtomicU32::new(0) }
    }

    /// Replaces the iterator.
    pub(super) fn set_program(&self, program: Option<Link>) {
        *self.program.lock() = program;
    }

    #[expect(clippy::significant_drop_tightening, reason = "the link must stay while it is read")]
    pub(super) fn run_if_due(&self) -> Result<(), ReadError> {
        let program = self.program.lock();
        let Some(program) = &*program else { return Ok(()) };
        let bytes = self.dispatchers.lookup(&0u32.to_ne_bytes())?;
        let bytes = bytes.as_ref().and_then(|bytes| bytes.first_chunk().copied());
        let dispatchers = u32::from_ne_bytes(bytes.ok_or(ReadError::Layout(MAP))?);
        if self.done.load(Ordering::Relaxed) == dispatchers {
            return Ok(());
        }
        let walk = Iter::new(program).map_err(failed(MAP))?.read_to_end(&mut Vec::new());
        walk.map_err(ReadError::Reports)?;
        self.done.store(dispatchers, Ordering::Relaxed);
        Ok(())
    }
}
