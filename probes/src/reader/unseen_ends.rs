//! Processes whose end no program saw, such as those that end while probes are detached. Their accounts must be ended and
//! their filter slots freed, or every later process with such a number would pass the filter.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use gpucause_abi::snapshot::ProcessSnapshot;
use gpucause_abi::{Nanos, Tgid};
use libbpf_rs::MapCore as _;

use super::{ReadError, Reader};

/// The program that ends them.
pub(super) const PROGRAM: &str = "end_unseen";

impl Reader {
    /// Ends the accounts of processes that existed before live threads reported at `began`, have no thread that reported,
    /// and are gone.
    pub(super) fn end_unseen(
        &self,
        processes: &BTreeMap<u32, ProcessSnapshot>,
        reported: &HashSet<u32>,
        began: Nanos,
    ) {
        for (id, process) in processes {
            let is_silent = process.ended.is_none()
                && process.first_seen < began
                && !reported.contains(id)
                && !Path::new(&format!("/proc/{}", process.tgid.0)).exists();
            // Retried at the next snapshot.
            if is_silent && let Err(error) = self.end(process.tgid, *id) {
                tracing::warn!(%error, pid = process.tgid.0, "cannot end the account of an ended process");
            }
        }
    }

    /// Ends all tracked processes. Call when nothing is attached and
    /// [`Programs::forget_tasks`](crate::program::Programs::forget_tasks) has ended the others.
    pub(crate) fn end_rest(&self) -> Result<(), ReadError> {
        let word = |bytes: &[u8]| bytes.first_chunk().copied().map(u32::from_ne_bytes);
        let keys: Vec<_> = self.tracked.handle.keys().collect();
        for key in keys {
            let id = self.tracked.lookup(&key)?;
            if let (Some(tgid), Some(id)) = (word(&key), id.as_deref().and_then(word)) {
                self.end(Tgid(tgid), id)?;
            }
        }
        // The remaining records are of threads that exited when nothing was attached.
        let keys: Vec<_> = self.hashed_threads.handle.keys().collect();
        keys.iter().try_for_each(|key| self.hashed_threads.delete(key))
    }

    fn end(&self, tgid: Tgid, id: u32) -> Result<(), ReadError> {
        self.ends.run(&[tgid.0.into(), id.into()]).map(drop)
    }
}
