//! How long the accounts of ended processes are kept. Bookkeeping only: the maps are not touched here.

use gpucause_abi::{Nanos, ProcId, Tgid};
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

/// A process over all its images: its PID, and when it began.
pub(crate) type Process = (Tgid, Nanos);

/// Which ended processes are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// How long a process stays after its end.
    pub keep_for: Duration,
    /// How many ended processes stay at most.
    pub max_ended: usize,
}

impl Policy {
    /// Keeps every process.
    pub const FOREVER: Self = Self { keep_for: Duration::MAX, max_ended: usize::MAX };
}

impl Default for Policy {
    fn default() -> Self {
        Self { keep_for: Duration::from_secs(300), max_ended: 48 }
    }
}

/// Chooses the processes to remove, and counts those that are removed early.
#[derive(Debug, Default)]
pub struct Retention {
    policy: Policy,
    removed_early: u64,
    /// Counted in `removed_early` and still in the maps, so that each is counted once.
    counted: HashSet<Process>,
}

impl Retention {
    /// With nothing removed yet.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self { policy, ..Self::default() }
    }

    /// Applies another policy from now on.
    pub const fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// Processes removed before their retention was over because too many had ended.
    #[must_use]
    pub const fn removed_early(&self) -> u64 {
        self.removed_early
    }

    /// Returns true if the retention of a process that ended at this time is over.
    #[must_use]
    pub fn is_over(&self, now: Nanos, ended: Option<Nanos>) -> bool {
        let keep_ns = u64::try_from(self.policy.keep_for.as_nanos()).unwrap_or(u64::MAX);
        ended.is_some_and(|ended| now.0.saturating_sub(ended.0) >= keep_ns)
    }

    /// Returns true if `garbage_collect` would remove any of these, each with the time of its end.
    #[must_use]
    pub fn has_excess(&self, now: Nanos, ended: &[(ProcId, Nanos)]) -> bool {
        ended.len() > self.policy.max_ended
            || ended.iter().any(|&(_, ended)| self.is_over(now, Some(ended)))
    }

    /// Returns the images to remove at `now`, out of all images with the end of their process (both on the monotonic clock): images of the
    /// processes whose retention is over, and of the oldest others beyond the limit. A process goes as a whole, however often it executed
    /// itself: its counters would decrease without its first images. A live process is never removed.
    pub(crate) fn garbage_collect(
        &mut self,
        now: Nanos,
        images: impl IntoIterator<Item = (Process, ProcId, Option<Nanos>)>,
    ) -> Vec<ProcId> {
        let mut drop = Vec::new();
        let mut kept: BTreeMap<(Nanos, Process), Vec<ProcId>> = BTreeMap::new();
        for (process, id, ended) in images {
            let Some(ended) = ended else { continue };
            if self.is_over(now, Some(ended)) {
                drop.push(id);
            } else {
                kept.entry((ended, process)).or_default().push(id);
            }
        }
        let excess = kept.len().saturating_sub(self.policy.max_ended);
        let mut early = HashSet::new();
        for ((_, process), images) in kept.into_iter().take(excess) {
            early.insert(process);
            drop.extend(images);
        }
        self.removed_early += early.difference(&self.counted).count() as u64;
        self.counted = early;
        drop
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn image(process: u32, id: u32, ended: Option<u64>) -> (Process, ProcId, Option<Nanos>) {
        let ended = ended.map(|second| Nanos(second * SECOND));
        ((Tgid(process), Nanos(0)), ProcId(id), ended)
    }

    fn ended(id: u32, second: u64) -> (Process, ProcId, Option<Nanos>) {
        image(id, id, Some(second))
    }

    fn live(id: u32) -> (Process, ProcId, Option<Nanos>) {
        image(id, id, None)
    }

    fn retention(max_ended: usize) -> Retention {
        Retention::new(Policy { keep_for: Duration::from_secs(10), max_ended })
    }

    #[test]
    fn a_process_is_removed_when_its_retention_is_over() {
        let mut retention = retention(100);
        let processes = [live(1), ended(2, 5), ended(3, 6)];
        assert_eq!(retention.garbage_collect(Nanos(14 * SECOND), processes), []);
        assert_eq!(retention.garbage_collect(Nanos(15 * SECOND), processes), [ProcId(2)]);
        assert_eq!(
            retention.garbage_collect(Nanos(99 * SECOND), processes),
            [ProcId(2), ProcId(3)]
        );
        assert_eq!(retention.removed_early(), 0);
    }

    #[test]
    fn the_oldest_are_removed_first_when_too_many_have_ended() {
        let mut retention = retention(2);
        let processes = [ended(1, 9), ended(2, 7), ended(3, 8), ended(4, 6), live(5)];
        assert_eq!(
            retention.garbage_collect(Nanos(10 * SECOND), processes),
            [ProcId(4), ProcId(2)]
        );
        assert_eq!(retention.removed_early(), 2);
    }

    #[test]
    fn images_of_one_process_are_removed_together_and_count_as_one() {
        let mut retention = retention(1);
        let images: Vec<_> = (1..=70).map(|id| image(1, id, Some(9))).collect();
        assert_eq!(retention.garbage_collect(Nanos(10 * SECOND), images.clone()), []);
        let newer = images.into_iter().chain([image(2, 71, Some(10))]);
        let removed = retention.garbage_collect(Nanos(10 * SECOND), newer);
        assert_eq!((removed.len(), retention.removed_early()), (70, 1));
    }

    #[test]
    fn a_process_that_is_still_in_the_maps_is_counted_once() {
        let mut retention = retention(1);
        let now = Nanos(10 * SECOND);
        retention.garbage_collect(now, [ended(1, 1), ended(2, 2)]);
        retention.garbage_collect(now, [ended(1, 1), ended(2, 2)]);
        assert_eq!(retention.removed_early(), 1);
        retention.garbage_collect(now, [ended(2, 2), ended(3, 3)]);
        assert_eq!(retention.removed_early(), 2);
    }

    #[test]
    fn an_end_after_the_snapshot_was_taken_is_not_over() {
        assert_eq!(retention(5).garbage_collect(Nanos(0), [ended(1, 5)]), []);
    }

    #[test]
    fn no_retention_removes_everything_that_has_ended() {
        let mut retention = Retention::new(Policy { keep_for: Duration::ZERO, max_ended: 5 });
        assert_eq!(retention.garbage_collect(Nanos(SECOND), [ended(1, 1), live(2)]), [ProcId(1)]);
        assert_eq!(retention.removed_early(), 0);
    }
}
