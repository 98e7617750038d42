//! How many threads of a program and of its workers use CPUs at the same time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::process_details::threads::Usage;

/// Least part of the time that a thread which uses a CPU runs, in percent.
const MIN_PERCENT: u128 = 5;
/// Shorter times between two readings say little.
const MIN_SPAN: Duration = Duration::from_millis(500);

/// The last reading: for how long each thread had run.
#[derive(Debug, Default)]
pub(super) struct BusyThreads {
    last: Option<(Instant, HashMap<u32, u64>)>,
    count: usize,
}

impl BusyThreads {
    /// The threads that ran since the last reading; 0 at the first, and where one process could not be read.
    pub(super) fn update(&mut self, now: Instant, usages: Option<&[&Usage]>) -> usize {
        let Some(usages) = usages else {
            *self = Self::default();
            return 0;
        };
        let span = self.last.as_ref().map(|(last, _)| now.saturating_duration_since(*last));
        if span.is_some_and(|span| span < MIN_SPAN) {
            return self.count;
        }
        let threads = usages.iter().flat_map(|usage| &usage.threads);
        let ran: HashMap<u32, u64> = threads.map(|thread| (thread.tid, thread.ran)).collect();
        let is_busy = |(tid, ran): &(&u32, &u64), span: Duration, before: &HashMap<u32, u64>| {
            let since = ran.saturating_sub(before.get(tid).copied().unwrap_or_default());
            100 * u128::from(since) >= MIN_PERCENT * span.as_nanos()
        };
        self.count = match (&self.last, span) {
            (Some((_, before)), Some(span)) => {
                ran.iter().filter(|own| is_busy(own, span, before)).count()
            }
            _ => 0,
        };
        self.last = Some((now, ran));
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process_details::threads::Thread;

    fn usage(ran: &[(u32, u64)]) -> Usage {
        let thread =
            |&(tid, ms): &(u32, u64)| Thread { tid, ran: ms * 1_000_000, ..Thread::default() };
        Usage { threads: ran.iter().map(thread).collect(), ran: None }
    }

    #[test]
    fn threads_that_ran_since_the_last_reading_are_counted_over_all_processes() {
        let mut busy = BusyThreads::default();
        let (begin, second) = (Instant::now(), Duration::from_secs(1));
        let (train, worker) = (usage(&[(10, 5_000), (11, 70), (12, 9)]), usage(&[(20, 0)]));
        assert_eq!(busy.update(begin, Some(&[&train, &worker])), 0, "nothing is measured");
        let (train, worker) = (usage(&[(10, 5_500), (11, 110), (12, 70)]), usage(&[(20, 900)]));
        assert_eq!(busy.update(begin + second, Some(&[&train, &worker])), 3);
        let soon = begin + second + second / 10;
        assert_eq!(busy.update(soon, Some(&[&train, &worker])), 3, "as before");
        assert_eq!(busy.update(begin + 2 * second, None), 0, "one cannot be read");
        assert_eq!(busy.update(begin + 3 * second, Some(&[&train])), 0, "nothing is measured");
    }
}
