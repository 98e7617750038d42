//! Who took a chain's time lately, so that its culprit does not change with every window.

use crate::chain::{Loss, losses};

/// In seconds: what was taken before counts half.
const HALF_LIFE: f64 = 30.0;
/// How many times as much another must have taken to be blamed instead.
const MARGIN: f64 = 1.25;

/// Losses by name, the older the less.
#[derive(Debug, Default)]
pub(crate) struct RecentLosses {
    losses: Vec<Loss>,
    until: f64,
}

impl RecentLosses {
    /// Starts with the losses of a first window, which ended `until` seconds after the Unix epoch.
    pub(crate) fn new(losses: &[Loss], until: f64) -> Self {
        Self { losses: losses.to_vec(), until }
    }

    /// Adds those of a later window.
    pub(crate) fn add(&mut self, added: &[Loss], until: f64) {
        let weight = 0.5_f64.powf((until - self.until).max(0.0) / HALF_LIFE);
        self.losses.iter_mut().for_each(|loss| loss.seconds *= weight);
        losses::add(&mut self.losses, added);
        self.until = until;
    }

    /// Returns true if the blame stays in a window with another culprit or none: nobody took much more, and all others at most 60 %.
    pub(crate) fn still_blame(&self, comm: &str) -> bool {
        let most = self.losses.iter().map(|loss| loss.seconds).fold(0.0, f64::max);
        let (own, all) = (self.of(comm), self.losses.iter().map(|loss| loss.seconds).sum::<f64>());
        own > 0.0 && own * MARGIN >= most && own >= 0.4 * all
    }

    /// Returns true for causes whose losses have no names.
    pub(crate) fn is_empty(&self) -> bool {
        self.losses.is_empty()
    }

    /// Returns true if a window's culprit is to be blamed where nobody was blamed: it took at least half.
    pub(crate) fn now_blame(&self, comm: &str) -> bool {
        self.of(comm) >= 0.5 * self.losses.iter().map(|loss| loss.seconds).sum::<f64>()
    }

    fn of(&self, comm: &str) -> f64 {
        self.losses.iter().find(|loss| loss.comm == comm).map_or(0.0, |loss| loss.seconds)
    }
}
