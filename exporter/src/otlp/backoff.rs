//! Pauses between attempts.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

/// The first pause, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// The longest pause that an endpoint can ask for.
const LONGEST_REQUESTED: Duration = Duration::from_secs(300);

/// Pauses that double with each failure.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The pause after another failure. `requested` is the least that the endpoint asks for.
    pub(super) fn after_failure(&mut self, requested: Option<Duration>) -> Duration {
        let (first, longest) = PAUSES;
        let pause = first.saturating_mul(1 << self.failures.min(16)).min(longest);
        self.failures = self.failures.saturating_add(1);
        // Nodes that lost the same endpoint must not come back all at once.
        let pause = pause.mul_f64(0.5 + random_share() / 2.0);
        pause.max(requested.unwrap_or_default().min(LONGEST_REQUESTED))
    }

    /// An attempt succeeded.
    pub(super) const fn reset(&mut self) {
        self.failures = 0;
    }
}

/// From 0 to 1.
fn random_share() -> f64 {
    // Its keys are random.
    RandomState::new().hash_one(()) as f64 / u64::MAX as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_a_minute_and_begin_again_after_a_success() {
        let mut backoff = Backoff::default();
        for expected in [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0] {
            let pause = backoff.after_failure(None).as_secs_f64();
            assert!((expected / 2.0..=expected).contains(&pause), "{pause} of {expected}");
        }
        backoff.reset();
        assert!(backoff.after_failure(None) <= Duration::from_secs(1));
    }

    #[test]
    fn an_endpoint_gets_the_pause_that_it_asks_for_up_to_five_minutes() {
        let mut backoff = Backoff::default();
        let mut pause = |seconds| backoff.after_failure(Some(Duration::from_secs(seconds)));
        assert_eq!(pause(30), Duration::from_secs(30));
        assert_eq!(pause(u64::MAX), LONGEST_REQUESTED);
    }
}
