//! Threads need records: without one, none of a thread's calls is counted.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Shorter intervals are not evaluated.
const INTERVAL: Duration = Duration::from_secs(1);

/// Threads got their records, or did not, when they last made calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ThreadRecords {
    /// All did, or none made a call yet.
    #[default]
    Granted,
    /// Some did not: their calls are lost.
    SomeRefused,
    /// None did: no call is counted.
    Refused,
}

/// Totals of the programs: hits of call probes, and those that were lost as their thread has no record.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CallTotals {
    pub(crate) hits: u64,
    pub(crate) without_record: u64,
}

/// Evaluates what happened between two readings of the totals.
#[derive(Debug, Default)]
pub(crate) struct RecordWatch(Mutex<Watch>);

#[derive(Debug, Default)]
struct Watch {
    since: Option<Instant>,
    totals: CallTotals,
    records: ThreadRecords,
}

impl RecordWatch {
    /// Begins with what calls came to before the totals were reset.
    pub(crate) fn new(before: CallTotals) -> Self {
        let records = evaluate(before.hits, before.without_record);
        if records != ThreadRecords::Granted {
            report(records, before.without_record);
        }
        Self(Mutex::new(Watch { records, ..Watch::default() }))
    }

    pub(crate) fn update(&self, totals: CallTotals, now: Instant) -> ThreadRecords {
        let mut watch = self.0.lock();
        let is_due = watch.since.is_none_or(|since| now.duration_since(since) >= INTERVAL);
        let hits = totals.hits.saturating_sub(watch.totals.hits);
        if !is_due || hits == 0 {
            return watch.records;
        }
        let refused = totals.without_record.saturating_sub(watch.totals.without_record);
        let records = evaluate(hits, refused);
        if records != watch.records {
            report(records, refused);
        }
        *watch = Watch { since: Some(now), totals, records };
        records
    }
}

/// Hits of other programs may be read in between, so all but one in a hundred is all.
fn evaluate(hits: u64, refused: u64) -> ThreadRecords {
    if refused == 0 {
        ThreadRecords::Granted
    } else if hits.saturating_sub(refused) <= hits / 100 {
        ThreadRecords::Refused
    } else {
        ThreadRecords::SomeRefused
    }
}

fn report(records: ThreadRecords, calls: u64) {
    match records {
        ThreadRecords::Granted => tracing::info!("threads get records again"),
        ThreadRecords::SomeRefused => {
            tracing::warn!(calls, "calls are lost: the kernel refuses records of threads");
        }
        ThreadRecords::Refused => {
            tracing::error!(calls, "no call is counted: the kernel refuses records of threads");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_refused_when_the_calls_of_an_interval_are_lost() {
        let watch = RecordWatch::default();
        let begin = Instant::now();
        let after = |seconds: u64, hits, without_record| {
            let now = begin + Duration::from_secs(seconds);
            watch.update(CallTotals { hits, without_record }, now)
        };
        assert_eq!(after(0, 0, 0), ThreadRecords::Granted);
        assert_eq!(after(1, 500, 500), ThreadRecords::Refused);
        assert_eq!(after(60, 500, 500), ThreadRecords::Refused, "nothing shows that it is over");
        assert_eq!(after(61, 1500, 501), ThreadRecords::SomeRefused);
        assert_eq!(after(61, 9999, 9999), ThreadRecords::SomeRefused, "too soon");
        assert_eq!(after(63, 2500, 501), ThreadRecords::Granted);
    }

    #[test]
    fn what_calls_came_to_before_a_reset_counts_until_there_are_others() {
        let totals = |hits, without_record| CallTotals { hits, without_record };
        let watch = RecordWatch::new(totals(7, 7));
        let begin = Instant::now();
        assert_eq!(watch.update(totals(0, 0), begin), ThreadRecords::Refused);
        assert_eq!(watch.update(totals(1, 0), begin), ThreadRecords::Granted);
        let begun = RecordWatch::new(totals(0, 0));
        assert_eq!(begun.update(totals(0, 0), begin), ThreadRecords::Granted);
    }
}
