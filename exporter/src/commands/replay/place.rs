//! How far a replay has come, on a terminal.

use gpucause_trace::recording::{NodeIndex, Recording};

use crate::progress::Progress;

/// The place in a recording: runs of the recorder follow each other without the pauses between them.
#[derive(Debug)]
pub(super) struct Place {
    progress: Progress,
    runs: Runs,
}

/// Start and end of each run, in seconds since the Unix epoch.
#[derive(Debug, PartialEq)]
struct Runs(Vec<(f64, f64)>);

impl Place {
    /// Returns the place in the recording of a node; `None` where the end of a run is unknown.
    pub(super) fn of(recording: &dyn Recording, node: NodeIndex) -> Option<Self> {
        let own = recording.sessions().iter().filter(|session| session.node == node);
        let seconds = |ns: i64| ns as f64 / 1e9;
        let runs: Option<Vec<_>> = own
            .map(|session| Some((seconds(session.started_ns), seconds(session.ended_ns?))))
            .collect();
        let runs = Runs(runs?);
        let progress = Progress::of(whole(runs.until(f64::INFINITY)), "s of the recording");
        Some(Self { progress, runs })
    }

    /// Shows that the replay has come to this time, in seconds since the Unix epoch.
    pub(super) fn at(&self, unix_seconds: f64) {
        self.progress.at(whole(self.runs.until(unix_seconds)));
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
const fn whole(seconds: f64) -> u64 {
    seconds as u64
}

impl Runs {
    /// Recorded seconds until this time.
    fn until(&self, unix_seconds: f64) -> f64 {
        self.0.iter().map(|(start, end)| (unix_seconds.min(*end) - start).max(0.0)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_between_runs_are_left_out() {
        let runs = Runs(vec![(100.0, 110.0), (500.0, 530.0)]);
        let at = [0.0, 104.0, 300.0, 510.0, 600.0].map(|seconds| runs.until(seconds));
        assert_eq!(at, [0.0, 4.0, 10.0, 20.0, 40.0]);
        assert_eq!(whole(runs.until(f64::INFINITY)), 40);
    }
}
