//! When the next scrape is expected: Prometheus asks at fixed intervals. A sample that is taken shortly before makes no scrape wait.

use std::collections::VecDeque;

use gpucause_abi::Nanos;

/// Requests that are remembered.
const MOST: usize = 64;
/// Shortest interval.
const SHORTEST: Nanos = Nanos(900_000_000);
/// By how much an interval may differ from the one before.
const JITTER: Nanos = Nanos(10_000_000);
/// An evaluation takes up to so long, and must have ended when the sample for a scrape is due.
const BEFORE: Nanos = Nanos(200_000_000);
/// Time that a large page takes.
const PAGE: Nanos = Nanos(100_000_000);

/// When pages were requested, and when the next scrapes are expected.
#[derive(Debug, Default)]
pub(crate) struct ScrapeTimes {
    requests: VecDeque<Nanos>,
    /// In order.
    expected: VecDeque<Nanos>,
    /// The one that was last sampled for.
    served: Option<Nanos>,
}

impl ScrapeTimes {
    /// A page was requested. By whom does not matter: after three in equal intervals, another one is expected.
    pub(crate) fn requested(&mut self, now: Nanos) {
        let was_requested =
            |at: u64| self.requests.iter().any(|own| own.0.abs_diff(at) <= JITTER.0);
        let repeats = |own: &&Nanos| {
            let interval = now.less(**own);
            interval >= SHORTEST && own.0.checked_sub(interval.0).is_some_and(was_requested)
        };
        if let Some(last) = self.requests.iter().rev().find(repeats) {
            let next = Nanos(now.0 + now.less(*last).0);
            let index = self.expected.partition_point(|own| *own < next);
            self.expected.insert(index, next);
        }
        if self.requests.len() == MOST {
            self.requests.pop_front();
        }
        self.requests.push_back(now);
    }

    /// The next that is expected after `now`.
    pub(crate) fn next(&mut self, now: Nanos) -> Option<Nanos> {
        while self.expected.front().is_some_and(|own| *own <= now) {
            self.expected.pop_front();
        }
        self.expected.front().copied()
    }

    /// The next that is expected has its sample.
    pub(crate) fn served(&mut self) {
        self.served = self.expected.pop_front().or(self.served);
    }

    /// How long to delay an evaluation so that it delays no page: until after one that is being made, or is expected soon.
    pub(crate) fn busy_for(&mut self, now: Nanos) -> Nanos {
        let expected = self.next(now).filter(|at| at.less(now) <= BEFORE);
        let pages = [expected, self.served, self.requests.back().copied()];
        let until = pages.into_iter().flatten().map(|at| at.0 + PAGE.0).max();
        Nanos(until.unwrap_or(0)).less(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(milliseconds: u64) -> Nanos {
        Nanos(milliseconds * 1_000_000)
    }

    fn after(requests: &[u64]) -> Option<Nanos> {
        let mut times = ScrapeTimes::default();
        requests.iter().for_each(|own| times.requested(at(*own)));
        times.next(at(*requests.last().unwrap()))
    }

    #[test]
    fn a_third_scrape_in_equal_intervals_makes_the_next_expected() {
        assert_eq!(after(&[15_000, 30_000]), None);
        assert_eq!(after(&[15_000, 30_000, 45_000]), Some(at(60_000)));
        assert_eq!(after(&[15_000, 30_004, 45_000]), Some(at(59_996)));
        assert_eq!(after(&[15_000, 30_000, 44_000]), None);
    }

    #[test]
    fn scrapers_with_intervals_of_their_own_are_all_expected() {
        let mut times = ScrapeTimes::default();
        let slow = (1..5).map(|n| n * 15_000);
        let fast = (1..12).map(|n| 2_000 + n * 5_000);
        let mut all: Vec<_> = slow.chain(fast).collect();
        all.sort_unstable();
        all.iter().for_each(|own| times.requested(at(*own)));
        assert_eq!(times.next(at(60_000)), Some(at(62_000)));
        times.served();
        assert_eq!(times.next(at(60_000)), Some(at(75_000)));
    }

    #[test]
    fn nobody_is_expected_after_requests_in_quick_succession_or_without_order() {
        assert_eq!(after(&[1_000, 1_100, 1_200, 1_300]), None);
        assert_eq!(after(&[1_000, 4_000, 4_500, 9_100]), None);
    }

    #[test]
    fn what_can_wait_waits_for_a_page_that_is_made_or_expected_soon() {
        let mut times = ScrapeTimes::default();
        assert_eq!(times.busy_for(at(10)), at(0));
        [15_000, 30_000, 45_000].iter().for_each(|own| times.requested(at(*own)));
        assert_eq!(times.busy_for(at(45_030)), at(70));
        assert_eq!(times.busy_for(at(45_100)), at(0));
        assert_eq!(times.busy_for(at(59_799)), at(0));
        assert_eq!(times.busy_for(at(59_800)), at(300));
        times.served();
        assert_eq!(times.busy_for(at(59_950)), at(150));
        // The scrape did not come.
        assert_eq!(times.busy_for(at(60_100)), at(0));
    }

    proptest! {
        #[test]
        fn what_is_kept_is_bounded_and_expected_later(gaps in prop::collection::vec(0..2_000_u64, 0..500)) {
            let (mut times, mut now) = (ScrapeTimes::default(), 0);
            for gap in gaps {
                now += gap;
                times.requested(at(now));
                prop_assert!(times.next(at(now)).is_none_or(|own| own > at(now)));
                prop_assert!(times.requests.len() <= MOST && times.expected.len() <= MOST);
            }
        }
    }
}
