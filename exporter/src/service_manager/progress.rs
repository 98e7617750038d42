//! Whether the work that goes on in the background still does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gpucause_abi::Nanos;

use crate::clock::monotonic_now;

/// Work that is done again and again on blocking threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chore {
    /// Looking for causal chains.
    Look,
    /// Dropping accounts of processes that ended.
    Reap,
}

impl Chore {
    const ALL: [Self; 2] = [Self::Look, Self::Reap];

    /// As the log tells it.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Look => "look",
            Self::Reap => "reap",
        }
    }
}

/// When each chore was last done, on the monotonic clock. Clones are of the same.
#[derive(Debug, Clone)]
pub struct Progress(Arc<[AtomicU64; Chore::ALL.len()]>);

impl Default for Progress {
    fn default() -> Self {
        Self::starting(monotonic_now())
    }
}

impl Progress {
    fn starting(now: Nanos) -> Self {
        Self(Arc::new(Chore::ALL.map(|_| AtomicU64::new(now.0))))
    }

    /// The chore was done once more.
    pub fn made(&self, chore: Chore) {
        self.made_at(chore, monotonic_now());
    }

    fn made_at(&self, chore: Chore, now: Nanos) {
        self.0[chore as usize].store(now.0, Ordering::Relaxed);
    }

    /// A chore that was last done longer ago than this.
    #[must_use]
    pub fn stuck(&self, patience: Duration) -> Option<Chore> {
        self.stuck_at(monotonic_now(), patience)
    }

    fn stuck_at(&self, now: Nanos, patience: Duration) -> Option<Chore> {
        Chore::ALL.into_iter().find(|&chore| {
            let last = self.0[chore as usize].load(Ordering::Relaxed);
            Duration::from_nanos(now.0.saturating_sub(last)) > patience
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn second(number: u64) -> Nanos {
        Nanos(number * 1_000_000_000)
    }

    #[test]
    fn either_chore_is_missed_when_only_the_other_goes_on() {
        for (going, missing) in [(Chore::Look, Chore::Reap), (Chore::Reap, Chore::Look)] {
            let progress = Progress::starting(second(1));
            assert_eq!(progress.stuck_at(second(11), PATIENCE), None);
            progress.clone().made_at(going, second(9));
            assert_eq!(progress.stuck_at(second(12), PATIENCE), Some(missing));
            progress.made_at(missing, second(13));
            assert_eq!(progress.stuck_at(second(14), PATIENCE), None);
        }
    }
}
