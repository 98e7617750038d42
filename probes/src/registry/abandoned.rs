//! Files with probes whose processes have ended: until a scan finds no other, only these keep their mounts busy.

use std::time::{Duration, Instant};

use super::{Attach, AttachedFile, Registry};
use crate::mapped::has_memory;

/// How long a file without living processes keeps its probes: programs that start often would pay for each attach.
pub const ABANDONED_GRACE: Duration = Duration::from_secs(2);

impl<L> AttachedFile<L> {
    pub(super) fn is_abandoned(&self, now: Instant) -> bool {
        self.abandoned.is_some_and(|at| now.saturating_duration_since(at) >= ABANDONED_GRACE)
    }
}

impl<A: Attach> Registry<A> {
    /// Returns true if a file waits for nothing but a scan that finds no process with it.
    pub(crate) fn has_abandoned(&mut self, now: Instant) -> bool {
        let mut found = false;
        for attached in self.files.values_mut() {
            let is_used = attached.users.keys().any(|user| has_memory(*user));
            attached.abandoned = (!is_used).then(|| attached.abandoned.unwrap_or(now));
            found |= attached.is_abandoned(now);
        }
        found
    }

    /// Returns true if no file is known that has probes.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }
}
