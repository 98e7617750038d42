//! Progress of the background tasks, for the watchdog.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gpucause_abi::Nanos;
use gpucause_observe::clock::monotonic_now;

/// A periodic background task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Evaluates causal chains.
    Evaluate,
    /// Drops accounts of exited processes.
    Reap,
}

impl Task {
    const ALL: [Self; 2] = [Self::Evaluate, Self::Reap];

    /// Its name in the log.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Evaluate => "evaluate",
            Self::Reap => "reap",
        }
    }
}

/// When each task last completed, on the monotonic clock; shared by clones.
#[derive(Debug, Clone)]
pub struct Progress(Arc<[AtomicU64; Task::ALL.len()]>);

impl Default for Progress {
    fn default() -> Self {
        Self::starting(monotonic_now())
    }
}

impl Progress {
    fn starting(now: Nanos) -> Self {
        Self(Arc::new(Task::ALL.map(|_| AtomicU64::new(now.0))))
    }

    /// Records that the task completed.
    pub fn made(&self, task: Task) {
        self.made_at(task, monotonic_now());
    }

    fn made_at(&self, task: Task, now: Nanos) {
        self.0[task as usize].store(now.0, Ordering::Relaxed);
    }

    /// A task that last completed longer ago than this.
    #[must_use]
    pub fn stuck(&self, timeout: Duration) -> Option<Task> {
        self.stuck_at(monotonic_now(), timeout)
    }

    fn stuck_at(&self, now: Nanos, timeout: Duration) -> Option<Task> {
        Task::ALL.into_iter().find(|&task| {
            let last = self.0[task as usize].load(Ordering::Relaxed);
            Duration::from_nanos(now.0.saturating_sub(last)) > timeout
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn second(number: u64) -> Nanos {
        Nanos(number * 1_000_000_000)
    }

    #[test]
    fn a_stuck_task_is_found_while_the_other_one_makes_progress() {
        for (going, missing) in [(Task::Evaluate, Task::Reap), (Task::Reap, Task::Evaluate)] {
            let progress = Progress::starting(second(1));
            assert_eq!(progress.stuck_at(second(11), TIMEOUT), None);
            progress.clone().made_at(going, second(9));
            assert_eq!(progress.stuck_at(second(12), TIMEOUT), Some(missing));
            progress.made_at(missing, second(13));
            assert_eq!(progress.stuck_at(second(14), TIMEOUT), None);
        }
    }
}
