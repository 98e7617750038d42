//! How far long work has come, on a terminal.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// Delay before the progress bar appears, and the interval of its updates.
const INTERVAL: Duration = Duration::from_millis(200);
/// Characters of the bar.
const WIDTH: u64 = 30;

/// A bar on standard error, when that is a terminal.
#[derive(Debug)]
pub(super) struct Progress {
    total: u64,
    drawn: Instant,
    is_shown: bool,
    is_terminal: bool,
}

impl Progress {
    pub(super) fn new(total: u64) -> Self {
        let is_terminal = io::stderr().is_terminal();
        Self { total, drawn: Instant::now(), is_shown: false, is_terminal }
    }

    /// So many events are done.
    pub(super) fn show(&mut self, events: u64) {
        if !self.is_terminal || self.drawn.elapsed() < INTERVAL {
            return;
        }
        self.drawn = Instant::now();
        self.is_shown = true;
        // Ignored: standard error is gone.
        let _ = write!(io::stderr(), "\r{}", bar(events, self.total));
    }

    /// Leaves no trace on the terminal.
    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn bar(events: u64, total: u64) -> String {
    let (events, total) = (events.min(total), total.max(1));
    let share = |of: u64| u128::from(events) * u128::from(of) / u128::from(total);
    let done: String =
        (0..u128::from(WIDTH)).map(|at| if at < share(WIDTH) { '#' } else { '.' }).collect();
    format!("[{done}] {:3} % of {total} events", share(100))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_shows_the_share_that_is_done() {
        assert_eq!(bar(0, 9), format!("[{}]   0 % of 9 events", ".".repeat(30)));
        let half = format!("[{}{}]  50 % of 10 events", "#".repeat(15), ".".repeat(15));
        assert_eq!(bar(5, 10), half);
        assert_eq!(bar(12, 10), format!("[{}] 100 % of 10 events", "#".repeat(30)));
        assert!(bar(0, 0).contains("0 %"));
        assert!(bar(u64::MAX, u64::MAX).contains("100 %"));
    }
}
