//! When a process is observed that is observed part of the time: in short slices at irregular times, so that bursts, phases
//! and idle times are seen in proportion; and what they say of its launches.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use gpucause_abi::snapshot::RateEstimate;

/// Mean length of a slice.
const SLICE: Duration = Duration::from_millis(75);
/// Part of the time that attaching and detaching may take, of all processes together.
const CHANGES: f64 = 0.25;
/// The longest pause, as a multiple of the mean.
const LONGEST: f64 = 4.0;
/// Slices of this time say what the rate is, if there are so many.
const WINDOW: Duration = Duration::from_secs(10);
const LEAST_SLICES: usize = 8;
/// A rate that may be further off is not known.
const MOST_ERROR: f64 = 0.25;

/// Random numbers: any will do.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Above 0 and up to 1.
    fn next(&mut self) -> f64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((mixed ^ (mixed >> 31)) >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

/// The mean length of slices where a change of probes takes this long and so many processes are partly observed.
fn mean(share: f64, change: Duration, processes: usize) -> f64 {
    let least = change.as_secs_f64() * processes as f64 / CHANGES * share;
    SLICE.as_secs_f64().max(least)
}

/// Lengths of the next slice and of the pause after it.
pub(crate) fn next(
    share: f64,
    change: Duration,
    processes: usize,
    random: &mut Random,
) -> (Duration, Duration) {
    let slice = mean(share, change, processes) * (0.5 + random.next());
    let mean = mean(share, change, processes) * (1.0 - share) / share;
    // Events in a program fall at any time of a pause.
    let pause = mean * (-random.next().ln()).min(LONGEST);
    (Duration::from_secs_f64(slice), Duration::from_secs_f64(pause))
}

/// The slices of the last seconds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Slices(VecDeque<Slice>);

#[derive(Debug, Clone, Copy)]
struct Slice {
    ended: Instant,
    seconds: f64,
    launches: f64,
}

impl Slices {
    pub(crate) fn add(&mut self, ended: Instant, length: Duration, launches: u32) {
        let (seconds, launches) = (length.as_secs_f64(), f64::from(launches));
        self.0.push_back(Slice { ended, seconds, launches });
        while self.0.front().is_some_and(|first| ended - first.ended > WINDOW) {
            self.0.pop_front();
        }
    }

    /// The rate of launches. `taken` is the share of its thread's time that counting takes: a thread that is always busy makes
    /// so many more while it is not observed.
    pub(crate) fn rate(&self, share: f64, taken: f64) -> Option<RateEstimate> {
        let count = self.0.len() as f64;
        let seconds: f64 = self.0.iter().map(|slice| slice.seconds).sum();
        let launches: f64 = self.0.iter().map(|slice| slice.launches).sum();
        if self.0.len() < LEAST_SLICES || seconds <= 0.0 || launches <= 0.0 {
            return None;
        }
        let seen = launches / seconds;
        let off = |slice: &Slice| (slice.launches - seen * slice.seconds).powi(2);
        let variance = self.0.iter().map(off).sum::<f64>() * count / (count - 1.0);
        let by_chance = 2.0 * (variance * (1.0 - share)).sqrt() / launches;
        let more = (1.0 - share) * taken / (1.0 - taken.min(0.9)) / 2.0;
        // Launches that are rarer than one slice were not seen.
        let (per_second, error) = (seen * (1.0 + more), by_chance + more + 1.0 / count);
        (error <= MOST_ERROR).then_some(RateEstimate { per_second, error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Observes a program for this time; `made` says how many launches it made until when. What is said of it at the end.
    fn observed(share: f64, seed: u64, made: impl Fn(f64) -> f64) -> (f64, Option<RateEstimate>) {
        let (mut random, mut slices) = (Random::new(seed), Slices::default());
        let (began, mut at, mut seen) = (Instant::now(), 0.0, 0.0);
        while at < 60.0 {
            let (slice, pause) = next(share, Duration::from_millis(40), 1, &mut random);
            let end = at + slice.as_secs_f64();
            let launches = (made(end) - made(at)).round();
            slices.add(began + Duration::from_secs_f64(end), slice, launches as u32);
            (at, seen) = (end + pause.as_secs_f64(), seen + slice.as_secs_f64());
        }
        (seen / at, slices.rate(share, 0.0))
    }

    #[test]
    fn the_rate_of_a_steady_program_is_known() {
        let rate = observed(0.2, 7, |at| at * 100_000.0).1.unwrap();
        assert!((rate.per_second / 100_000.0 - 1.0).abs() < 0.01 && rate.error < 0.06, "{rate:?}");
    }

    #[test]
    fn the_rate_of_rare_bursts_is_not_known() {
        let burst = |at: f64| (at / 5.0).floor() * 500_000.0 + (at % 5.0).min(0.5) * 1_000_000.0;
        assert_eq!(observed(0.05, 7, burst).1, None);
    }

    #[test]
    fn what_counting_takes_of_a_busy_thread_is_part_of_the_error() {
        let mut slices = Slices::default();
        let began = Instant::now();
        for number in 1..20 {
            let slice = Duration::from_millis(50);
            slices.add(began + Duration::from_millis(number * 300), slice, 5_000);
        }
        let rate = slices.rate(0.2, 0.2).unwrap();
        let (slow, fast) = (100_000.0, 120_000.0);
        let within = |truth: f64| (truth / rate.per_second - 1.0).abs() <= rate.error + 1e-9;
        assert!(within(slow) && within(fast) && rate.error < 0.17, "{rate:?}");
    }

    proptest! {
        /// In programs with phases, whatever their length, the truth is nearly always within the stated error.
        #[test]
        fn time_is_observed_in_its_share_and_the_error_holds(
            share in 0.03f64..0.9, seed in any::<u64>(), period in 0.02f64..2.0, duty in 0.1f64..1.0,
        ) {
            let made = |at: f64| 100_000.0 * ((at / period).floor() * duty + (at / period).fract().min(duty)) * period;
            let (seen, rate) = observed(share, seed, made);
            prop_assert!((seen / share - 1.0).abs() < 0.5, "{seen} in place of {share}");
            if let Some(rate) = rate {
                let off = (rate.per_second / (100_000.0 * duty) - 1.0).abs();
                prop_assert!(off <= 3.0 * rate.error + 0.02, "{off} off, {rate:?}");
            }
        }
    }
}
