//! For how long each GPU ran below its clock, from what its driver says now and then.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// Harmless reasons: the GPU idles, or its clock was set by the user.
const HARMLESS: u64 = 0x1 | 0x2;

/// Returns true if reasons, in the bits of NVML and DCGM, hold the clock down.
#[must_use]
pub(crate) const fn holds_clock_down(reasons: u64) -> bool {
    reasons & !HARMLESS != 0
}

/// Adds up throttled time. A GPU's state holds until `note` reports another one.
#[derive(Debug, Default)]
pub(crate) struct ClockWatch {
    gpus: BTreeMap<String, Gpu>,
    interval_start: Option<Instant>,
}

#[derive(Debug)]
struct Gpu {
    throttled: bool,
    since: Instant,
    time: Duration,
}

impl Gpu {
    fn advance(&mut self, now: Instant) {
        if self.throttled {
            self.time += now.saturating_duration_since(self.since);
        }
        self.since = now;
    }
}

impl ClockWatch {
    /// Takes note of every GPU there is, and whether its clock is held down; where that is said twice of one, once is enough.
    pub(crate) fn note<'a>(&mut self, now: Instant, gpus: impl Iterator<Item = (&'a str, bool)>) {
        self.interval_start.get_or_insert(now);
        let mut before = std::mem::take(&mut self.gpus);
        for (gpu, throttled) in gpus {
            if let Some(known) = self.gpus.get_mut(gpu) {
                known.throttled |= throttled;
                continue;
            }
            let mut state = before.remove(gpu).unwrap_or(Gpu {
                throttled: false,
                since: now,
                time: Duration::ZERO,
            });
            state.advance(now);
            state.throttled = throttled;
            self.gpus.insert(gpu.to_owned(), state);
        }
    }

    /// The share of the time since the last call in which each GPU's clock was held down.
    pub(crate) fn shares(&mut self, now: Instant) -> HashMap<String, f64> {
        let begin = self.interval_start.replace(now).unwrap_or(now);
        let elapsed = now.saturating_duration_since(begin).as_secs_f64();
        let share = |(gpu, state): (&String, &mut Gpu)| {
            state.advance(now);
            let time = std::mem::take(&mut state.time).as_secs_f64();
            (gpu.clone(), if elapsed > 0.0 { (time / elapsed).min(1.0) } else { 0.0 })
        };
        self.gpus.iter_mut().map(share).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idleness_and_chosen_clocks_hold_no_clock_down() {
        for (reasons, held) in [(0, false), (1, false), (3, false), (4, true), (0x41, true)] {
            assert_eq!(holds_clock_down(reasons), held, "{reasons:#x}");
        }
    }

    #[test]
    fn every_gpu_has_its_share_of_the_time_between_looks() {
        let (mut watch, begin) = (ClockWatch::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        watch.note(at(0), [("a", true), ("b", false)].into_iter());
        watch.note(at(3), [("a", false), ("b", false), ("b", true)].into_iter());
        let shares = watch.shares(at(4));
        assert_eq!((shares["a"], shares["b"]), (0.75, 0.25));
        let shares = watch.shares(at(5));
        assert_eq!((shares["a"], shares["b"]), (0.0, 1.0));
        watch.note(at(6), std::iter::empty());
        assert!(watch.shares(at(7)).is_empty());
    }
}
