//! How long the accounts of ended processes are kept. Bookkeeping only: the maps are not touched here.

use gpucause_abi::{Nanos, ProcId};
use std::collections::HashSet;
use std::time::Duration;

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
    counted: HashSet<ProcId>,
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

    /// Whether the retention of a process that ended then is over.
    #[must_use]
    pub fn is_over(&self, now: Nanos, ended: Option<Nanos>) -> bool {
        let keep_ns = u64::try_from(self.policy.keep_for.as_nanos()).unwrap_or(u64::MAX);
        ended.is_some_and(|ended| now.0.saturating_sub(ended.0) >= keep_ns)
    }

    /// Whether [`Self::garbage_collect`] would remove any of these, each with the time of its end.
    #[must_use]
    pub fn has_excess(&self, now: Nanos, ended: &[(ProcId, Nanos)]) -> bool {
        ended.len() > self.policy.max_ended
            || ended.iter().any(|&(_, ended)| self.is_over(now, Some(ended)))
    }

    /// Of all processes with the time of their end, those to remove at `now` (both on the monotonic clock): the ones whose
    /// retention is over, and the oldest of the others beyond the limit. A live process is never removed.
    pub fn garbage_collect(
        &mut self,
        now: Nanos,
        processes: impl IntoIterator<Item = (ProcId, Option<Nanos>)>,
    ) -> Vec<ProcId> {
        let (mut drop, mut kept) = (Vec::new(), Vec::new());
        for (id, ended) in processes {
            let Some(ended) = ended else { continue };
            if self.is_over(now, Some(ended)) {
                drop.push(id);
            } else {
                kept.push((ended, id));
            }
        }
        kept.sort_unstable();
        let excess = kept.len().saturating_sub(self.policy.max_ended);
        let early: HashSet<_> = kept[..excess].iter().map(|&(_, id)| id).collect();
        self.removed_early += early.difference(&self.counted).count() as u64;
        drop.extend(kept[..excess].iter().map(|&(_, id)| id));
        self.counted = early;
        drop
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn ended(id: u32, second: u64) -> (ProcId, Option<Nanos>) {
        (ProcId(id), Some(Nanos(second * SECOND)))
    }

    fn retention(max_ended: usize) -> Retention {
        Retention::new(Policy { keep_for: Duration::from_secs(10), max_ended })
    }

    #[test]
    fn a_process_is_removed_when_its_retention_is_over() {
        let mut retention = retention(100);
        let processes = [(ProcId(1), None), ended(2, 5), ended(3, 6)];
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
        let processes = [ended(1, 9), ended(2, 7), ended(3, 8), ended(4, 6), (ProcId(5), None)];
        assert_eq!(
            retention.garbage_collect(Nanos(10 * SECOND), processes),
            [ProcId(4), ProcId(2)]
        );
        assert_eq!(retention.removed_early(), 2);
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
        assert_eq!(
            retention.garbage_collect(Nanos(SECOND), [ended(1, 1), (ProcId(2), None)]),
            [ProcId(1)]
        );
        assert_eq!(retention.removed_early(), 0);
    }
}
