//! When a process is observed that is observed for a share of the time, and what that says of its launches.
//!
//! Time is cut into stretches of random length; one short slice of each is observed, at a random place. So bursts, phases and
//! idle times are seen in proportion, and at a constant share the observed part of any time differs from it by at most three
//! mean slices.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use gpucause_abi::snapshot::RateEstimate;

/// Mean length of a slice, where probes change fast enough.
const SLICE: Duration = Duration::from_millis(75);
/// Most that the hits of a slice take of a thread on average.
const SLICE_TAKES: Duration = Duration::from_millis(15);
/// Part of the time that attaching and detaching may take, of all processes together.
const CHANGES: f64 = 0.25;
/// Slices of this time say what the rate is, if so many are of partial observation.
const WINDOW: Duration = Duration::from_secs(10);
const LEAST_SLICES: f64 = 12.0;
/// Part of the fastest slice's rate that the next slice leaves.
const FASTEST_FADES: f64 = 0.999;
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

/// Mean length of slices of a process whose hits take this part of its time, where a change of probes takes this long and so many
/// processes are partly observed.
pub(crate) fn mean_length(share: f64, taken: f64, change: Duration, processes: usize) -> f64 {
    let least = change.as_secs_f64() * processes as f64 / CHANGES * share;
    let most = SLICE_TAKES.as_secs_f64() / taken.max(f64::EPSILON);
    SLICE.as_secs_f64().min(most).max(least)
}

/// Where a process is in its stretches. Their lengths differ, so that no period of a program is theirs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stretch {
    /// Length of this stretch, as a multiple of the mean.
    factor: f64,
    /// Remaining time of it after its slice.
    rest: Duration,
    share: f64,
}

impl Default for Stretch {
    fn default() -> Self {
        Self { factor: 1.0, rest: Duration::ZERO, share: 1.0 }
    }
}

impl Stretch {
    /// Lengths of the slice that begins now, of `mean` seconds on average, and of the pause after it, which ends anywhere in the next stretch.
    pub(crate) fn next(
        &mut self,
        share: f64,
        mean: f64,
        random: &mut Random,
    ) -> (Duration, Duration) {
        self.share = share;
        let slice = mean * self.factor;
        self.factor = 0.5 + random.next();
        let unobserved = mean * self.factor * (1.0 - share) / share;
        let before = unobserved * random.next();
        let pause = self.rest + Duration::from_secs_f64(before);
        self.rest = Duration::from_secs_f64(unobserved - before);
        (Duration::from_secs_f64(slice), pause)
    }

    /// The share for which the last slice was begun.
    pub(crate) const fn share(&self) -> f64 {
        self.share
    }
}

/// The slices of the last seconds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Slices {
    /// Begin of the first of all.
    since: Option<Instant>,
    last: VecDeque<Slice>,
    /// Most launches a second of any slice; forgotten within minutes.
    fastest: f64,
}

#[derive(Debug, Clone, Copy)]
struct Slice {
    ended: Instant,
    /// Seconds and launches of all the time that it stands for: the share that is observed changes with the rate.
    seconds: f64,
    launches: f64,
    share: f64,
}

impl Slices {
    /// A slice has ended, of a process that is observed for this share of the time: 1 where there is no pause before the next.
    pub(crate) fn add(&mut self, ended: Instant, length: Duration, launches: u32, share: f64) {
        let (seconds, launches) = (length.as_secs_f64(), f64::from(launches));
        self.since.get_or_insert(ended - length);
        self.last.push_back(Slice {
            ended,
            seconds: seconds / share,
            launches: launches / share,
            share,
        });
        self.fastest = (self.fastest * FASTEST_FADES).max(launches / seconds.max(1e-3));
        while self.last.front().is_some_and(|first| ended - first.ended > WINDOW) {
            self.last.pop_front();
        }
    }

    /// The rate of launches. `taken` is the share of its thread's time that counting takes: a thread that is always busy makes
    /// so many more while it is not observed.
    pub(crate) fn rate(&self, taken: f64) -> Option<RateEstimate> {
        let total = |of: fn(&Slice) -> f64| self.last.iter().map(of).sum::<f64>();
        let (seconds, launches) = (total(|slice| slice.seconds), total(|slice| slice.launches));
        let paused = total(|slice| slice.seconds * (1.0 - slice.share));
        let squares = total(|slice| (slice.seconds * (1.0 - slice.share)).powi(2));
        // So many slices that stand for pauses of equal length say as much of them.
        let count = paused.powi(2) / squares.max(f64::MIN_POSITIVE);
        let covered = self.last.back()?.ended - self.since?;
        if count < LEAST_SLICES || covered < WINDOW || launches <= 0.0 {
            return None;
        }
        let seen = launches / seconds;
        let off =
            |slice: &Slice| (slice.launches - seen * slice.seconds).powi(2) * (1.0 - slice.share);
        let variance = self.last.iter().map(off).sum::<f64>() * count / (count - 1.0);
        let by_chance = 2.0 * variance.sqrt() / launches;
        let unobserved = total(|slice| slice.launches * (1.0 - slice.share)) / launches;
        let more = unobserved * taken / (1.0 - taken.min(0.9)) / 2.0;
        // Phases that no slice saw take less than three slices' share of the time in which there were pauses, with a probability of
        // 95 %, and launch nothing, or as fast as any did.
        let in_pauses =
            total(|slice| if slice.share < 1.0 { slice.seconds } else { 0.0 }) / seconds;
        let unseen = 3.0 / count * in_pauses * (self.fastest / seen - 1.0).max(1.0);
        let (per_second, error) = (seen * (1.0 + more), by_chance + more + unseen);
        (error <= MOST_ERROR).then_some(RateEstimate { per_second, error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CHANGE: Duration = Duration::from_millis(40);

    fn observed(
        share: f64,
        seed: u64,
        made: impl Fn(f64) -> f64,
    ) -> (Vec<(f64, f64)>, Option<RateEstimate>) {
        observed_in(|_| share, seed, made)
    }

    /// Observes a program for a minute, in a share that changes; `made` says how many launches it made until when. The slices, as
    /// begin and end in seconds, and what is said of the launches.
    fn observed_in(
        share: impl Fn(f64) -> f64,
        seed: u64,
        made: impl Fn(f64) -> f64,
    ) -> (Vec<(f64, f64)>, Option<RateEstimate>) {
        let (mut random, mut slices) = (Random::new(seed), Slices::default());
        let (began, mut at, mut stretch, mut all) =
            (Instant::now(), 0.0, Stretch::default(), Vec::new());
        while at < 60.0 {
            let mean = mean_length(share(at), 0.03, CHANGE, 1);
            let (slice, pause) = stretch.next(share(at), mean, &mut random);
            let end = at + slice.as_secs_f64();
            let launches = (made(end) - made(at)).round();
            let ended = began + Duration::from_secs_f64(end);
            slices.add(ended, slice, launches as u32, stretch.share());
            all.push((at, end));
            at = end + pause.as_secs_f64();
        }
        (all, slices.rate(0.0))
    }

    /// The mean of the known rates over 50 seeds; NaN where no rate is known.
    fn mean_rate(share: impl Fn(f64) -> f64, made: impl Fn(f64) -> f64) -> f64 {
        let rates = (0..50).filter_map(|seed| observed_in(&share, seed, &made).1);
        let (sum, count) =
            rates.fold((0.0, 0.0), |(sum, count), rate| (sum + rate.per_second, count + 1.0));
        sum / count
    }

    #[test]
    fn a_drop_after_which_more_is_observed_counts_as_much_as_the_time_before() {
        let made = |at: f64| at.min(55.0) * 30_000.0 + (at - 55.0).max(0.0) * 2_000.0;
        let mean = mean_rate(|at| if at < 55.0 { 0.5 } else { 0.9 }, made);
        assert!((mean / 16_000.0 - 1.0).abs() < 0.03, "{mean}");
    }

    #[test]
    fn a_rise_after_which_less_is_observed_counts_no_more_than_the_time_before() {
        let made = |at: f64| at.min(54.0) * 2_000.0 + (at - 54.0).max(0.0) * 30_000.0;
        let mean = mean_rate(|at| if at < 54.0 { 1.0 } else { 0.3 }, made);
        assert!((mean / 18_800.0 - 1.0).abs() < 0.03, "{mean}");
    }

    #[test]
    fn a_rate_whose_share_has_changed_is_seldom_off_by_more_than_the_stated_error() {
        for (before, after) in [(0.9, 0.1), (0.3, 0.9), (0.9, 0.2), (0.2, 0.6)] {
            for period in [0.1, 0.3, 2.0] {
                let share = |at| if at < 55.0 { before } else { after };
                let rate = |seed| observed_in(share, seed, in_phases(period, 0.5)).1;
                let off = |rate: &RateEstimate| {
                    (rate.per_second / 50_000.0 - 1.0).abs() > rate.error + 0.01
                };
                let wrong = (0..100).filter_map(rate).filter(off).count();
                assert!(wrong <= 10, "{before} to {after}, period {period} s: {wrong} of 100");
            }
        }
    }

    #[test]
    fn the_rate_of_the_last_seconds_is_not_known_before_they_have_passed() {
        let mut slices = Slices::default();
        let began = Instant::now();
        for number in 1..60 {
            let ended = began + Duration::from_millis(number * 200);
            slices.add(ended, Duration::from_millis(50), 5_000, 0.25);
            assert_eq!(slices.rate(0.0).is_some(), number > 50, "{number}");
        }
    }

    #[test]
    fn the_rate_of_a_steady_program_is_known() {
        let rate = observed(0.2, 7, |at| at * 100_000.0).1.unwrap();
        assert!((rate.per_second / 100_000.0 - 1.0).abs() < 0.01 && rate.error < 0.15, "{rate:?}");
    }

    #[test]
    fn the_rate_of_a_steady_program_is_known_if_an_eighth_of_its_time_is_observed() {
        for (share, is_known) in [(0.05, false), (0.125, true), (0.5, true)] {
            let known = (0..50).filter_map(|seed| observed(share, seed, |at| at * 100_000.0).1);
            assert_eq!(known.count() > 45, is_known, "{share}");
        }
    }

    #[test]
    fn a_slice_of_a_process_that_does_nothing_but_launch_is_short() {
        let mean = |taken, change| mean_length(0.01, taken, Duration::from_millis(change), 1);
        assert_eq!((mean(0.03, 40), mean(0.75, 40), mean(0.75, 1_000)), (0.075, 0.02, 0.04));
    }

    #[test]
    fn the_rate_of_rare_bursts_is_not_known() {
        let burst = |at: f64| (at / 5.0).floor() * 500_000.0 + (at % 5.0).min(0.5) * 1_000_000.0;
        assert_eq!(observed(0.3, 7, burst).1, None);
    }

    #[test]
    fn bursts_that_no_slice_saw_lately_are_in_the_error() {
        let bursts = |at: f64| (at / 2.0).floor() * 10_000.0 + (at % 2.0).min(0.1) * 100_000.0;
        let rate = |seed| observed(0.15, seed, |at| at * 1_000.0 + bursts(at)).1;
        let wrong = (0..100).filter_map(rate).filter(|rate| rate.per_second < 4_000.0).count();
        assert!(wrong <= 10, "{wrong} of 100");
    }

    #[test]
    fn what_counting_takes_of_a_busy_thread_is_part_of_the_error() {
        let mut slices = Slices::default();
        let began = Instant::now();
        for number in 1..40 {
            let slice = Duration::from_millis(50);
            slices.add(began + Duration::from_millis(number * 300), slice, 5_000, 0.2);
        }
        let rate = slices.rate(0.2).unwrap();
        let (slow, fast) = (100_000.0, 120_000.0);
        let within = |truth: f64| (truth / rate.per_second - 1.0).abs() <= rate.error + 1e-9;
        assert!(within(slow) && within(fast) && rate.error < 0.21, "{rate:?}");
    }

    /// Launches until then of a program that makes them in the first part of each period.
    fn in_phases(period: f64, part: f64) -> impl Fn(f64) -> f64 {
        move |at| {
            100_000.0 * ((at / period).floor() * part + (at / period).fract().min(part)) * period
        }
    }

    #[test]
    fn in_programs_with_phases_the_rate_is_seldom_off_by_more_than_the_stated_error() {
        const RUNS: u64 = 100;
        for share in [0.05, 0.1, 0.2, 0.5, 0.8] {
            for period in [0.02, 0.1, 0.16, 0.3, 0.75, 2.0] {
                for part in [0.1, 0.3, 0.7, 0.9] {
                    let off = |rate: &RateEstimate| {
                        (rate.per_second / (100_000.0 * part) - 1.0).abs() > rate.error + 0.01
                    };
                    let rate = |seed| observed(share, seed, in_phases(period, part)).1;
                    let wrong = (0..RUNS).filter_map(rate).filter(off).count();
                    assert!(
                        wrong <= 10,
                        "share {share}, period {period} s, {part} of it: {wrong} of {RUNS}"
                    );
                }
            }
        }
    }

    proptest! {
        #[test]
        fn time_is_observed_in_its_share(share in 0.03f64..0.9, seed in any::<u64>()) {
            let mean = mean_length(share, 0.03, CHANGE, 1);
            let slices = observed(share, seed, |_| 0.0).0;
            for (first, (begin, _)) in slices.iter().enumerate() {
                let mut seen = 0.0;
                for (other, end) in &slices[first..] {
                    seen += end - other;
                    let due = share * (end - begin);
                    prop_assert!((seen - due).abs() < 3.0 * mean, "{seen} s in place of {due} s");
                }
            }
        }
    }
}
