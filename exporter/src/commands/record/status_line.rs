//! Counts of a recording so far, on a terminal.

use std::time::{Duration, Instant};

use gpucause_engine::quantity::long_duration;
use indicatif::{HumanBytes, HumanCount};

use crate::progress::Progress;

/// Between two updates.
const EVERY: Duration = Duration::from_secs(1);

/// A line with the counts, the rate and the time.
#[derive(Debug)]
pub(super) struct StatusLine {
    progress: Progress,
    size_limit: u64,
    began: Instant,
    time: Option<Duration>,
    updated: Instant,
    /// Events written until then.
    before: u64,
}

/// Counts of a recording so far.
#[derive(Debug, Clone, Copy)]
pub(super) struct Recorded {
    /// Events in the file.
    pub(super) events: u64,
    /// Events written, those included that were deleted since.
    pub(super) written: u64,
    /// Bytes of the file.
    pub(super) bytes: u64,
    pub(super) lost: u64,
}

impl StatusLine {
    /// Starts the line of a recording that begins now; `time` is how long it takes, where it ends by itself.
    pub(super) fn new(size_limit: u64, time: Option<Duration>) -> Self {
        let now = Instant::now();
        let progress = Progress::line();
        Self { progress, size_limit, began: now, time, updated: now, before: 0 }
    }

    /// Returns true if it is time to update the line.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        Progress::is_shown() && now.duration_since(self.updated) >= EVERY
    }

    pub(super) fn update(&mut self, now: Instant, recorded: Recorded) {
        let seconds = now.duration_since(self.updated).as_secs_f64();
        let written = recorded.written.saturating_sub(self.before);
        let rate = if seconds > 0.0 { written as f64 / seconds } else { 0.0 };
        let elapsed = now.duration_since(self.began);
        self.progress.say(text(recorded, rate, self.size_limit, (elapsed, self.time)));
        (self.updated, self.before) = (now, recorded.written);
    }

    /// The recording is over, and its file is being completed.
    pub(super) fn completing(&self) {
        self.progress.say("completing the file: names of functions, index".into());
    }
}

fn text(
    recorded: Recorded,
    rate: f64,
    size_limit: u64,
    (elapsed, time): (Duration, Option<Duration>),
) -> String {
    let Recorded { events, bytes, lost, .. } = recorded;
    let (events, bytes, limit) = (HumanCount(events), HumanBytes(bytes), HumanBytes(size_limit));
    let lost = match lost {
        0 => "none lost".to_owned(),
        lost => format!("{} lost", HumanCount(lost)),
    };
    let time = match time {
        Some(time) => format!("{} left", long_duration(time.saturating_sub(elapsed).as_secs())),
        None => format!("{}; Ctrl-C ends", long_duration(elapsed.as_secs())),
    };
    format!("recording: {events} events, {rate:.0}/s, {lost}, {bytes} of {limit}, {time}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_events_rate_size_lost_and_time() {
        let recorded = Recorded { events: 12_345, written: 20_000, bytes: 5 << 20, lost: 0 };
        let time = (Duration::from_secs(3), Some(Duration::from_secs(120)));
        assert_eq!(
            text(recorded, 1234.4, 1 << 30, time),
            "recording: 12,345 events, 1234/s, none lost, 5.00 MiB of 1.00 GiB, 1 min 57 s left"
        );
        let recorded = Recorded { lost: 1_000, ..recorded };
        assert_eq!(
            text(recorded, 0.0, 1 << 30, (Duration::from_secs(3), None)),
            "recording: 12,345 events, 0/s, 1,000 lost, 5.00 MiB of 1.00 GiB, 3 s; Ctrl-C ends"
        );
    }
}
