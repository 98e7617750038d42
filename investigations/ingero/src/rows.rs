//! Rows of the table `events`, and the off-CPU waits and disk requests of each thread.

use std::collections::HashMap;

use gpucause_abi::state::Reason;
use rusqlite::Row;

use super::codes::{self, REPORTED_AT_END};
use super::lists::{Key, Lists};
use super::schema::{File, Flaw, integer, natural, text};
use gpucause_trace::recording::{NodeIndex, RecordingError};

/// One row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Event {
    pub(super) node: NodeIndex,
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) source: i64,
    pub(super) op: i64,
    /// Start or end, see [`codes::reported_at_end`].
    pub(super) timestamp: i64,
    pub(super) duration: u64,
    pub(super) arg0: i64,
    pub(super) arg1: i64,
}

impl Event {
    pub(super) fn start(&self) -> i64 {
        if codes::reported_at_end(self.source, self.op) {
            self.timestamp.saturating_sub_unsigned(self.duration)
        } else {
            self.timestamp
        }
    }

    pub(super) fn end(&self) -> i64 {
        self.start().saturating_add_unsigned(self.duration)
    }
}

/// The columns that [`event`] reads, from position 0 on.
pub(super) fn columns(file: &File) -> String {
    let column = |name, default| file.column("events", name, default).to_owned();
    format!(
        "{}, pid, tid, source, op, timestamp, duration, {}, {}",
        column("node", "''"),
        column("arg0", "0"),
        column("arg1", "0")
    )
}

/// By start, the longest first: it encloses the others.
pub(super) fn in_order() -> String {
    format!(
        "CASE WHEN {REPORTED_AT_END} THEN timestamp - duration ELSE timestamp END, duration DESC"
    )
}

pub(super) fn event(row: &Row<'_>, lists: &Lists) -> Result<Event, Flaw> {
    Ok(Event {
        node: lists.node_of(&text(row, 0)?)?,
        pid: super::schema::id32(row, 1)?,
        tid: super::schema::id32(row, 2)?,
        source: integer(row, 3)?,
        op: integer(row, 4)?,
        timestamp: integer(row, 5)?,
        duration: natural(row, 6)?,
        arg0: integer(row, 7)?,
        arg1: integer(row, 8)?,
    })
}

/// Passes the rows that meet a condition to `each`, in the order of their starts.
pub(super) fn each(
    file: &File,
    lists: &Lists,
    condition: &str,
    mut each: impl FnMut(Event) -> Result<(), Flaw>,
) -> Result<(), RecordingError> {
    let sql =
        format!("SELECT {} FROM events WHERE {condition} ORDER BY {}", columns(file), in_order());
    file.each(&sql, |row| each(event(row, lists)?))
}

/// A stretch of time off the CPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Off {
    pub(super) start: i64,
    pub(super) end: i64,
    /// Why, where the file proves it.
    pub(super) reason: Option<Reason>,
    /// The task that left the CPU when this one got it, where the version stores it; the waker of a blocked task.
    pub(super) by: Option<u32>,
}

/// Waits and disk requests of a thread.
#[derive(Debug, Default)]
pub(super) struct Thread {
    /// By their starts.
    pub(super) off: Vec<Off>,
    /// Times with a disk request in progress: disjoint intervals in order.
    pub(super) io: Vec<(i64, i64)>,
    /// Wake-ups with their wakers, by time.
    wakes: Vec<(i64, u32)>,
}

/// All threads.
#[derive(Debug, Default)]
pub(super) struct Threads(HashMap<Key, Thread>);

impl Threads {
    pub(super) fn read(file: &File, lists: &Lists) -> Result<Self, RecordingError> {
        let mut threads: HashMap<Key, Thread> = HashMap::new();
        let condition = "(source = 3 AND op IN (1, 2)) OR source = 5";
        each(file, lists, condition, |event| {
            let key = (event.node, event.tid);
            let other = u32::try_from(event.arg1).ok().filter(|&task| task != 0);
            match (event.source, event.op) {
                (codes::HOST, codes::SCHED_WAKEUP) => {
                    // The row is that of the waker.
                    if let Some(wakee) = other {
                        let woken = threads.entry((event.node, wakee)).or_default();
                        woken.wakes.push((event.timestamp, event.tid));
                    }
                }
                (codes::HOST, _) => threads.entry(key).or_default().off.push(Off {
                    start: event.start(),
                    end: event.end(),
                    reason: None,
                    // Older versions repeat the task itself there.
                    by: other.filter(|&task| task != event.tid && task != event.pid),
                }),
                _ => threads.entry(key).or_default().io.push((event.start(), event.end())),
            }
            Ok(())
        })?;
        for thread in threads.values_mut() {
            thread.io = joined(&thread.io);
            thread.find_reasons();
        }
        Ok(Self(threads))
    }

    /// A thread, if the file has rows of it.
    pub(super) fn get(&self, node: NodeIndex, tid: u32) -> Option<&Thread> {
        self.0.get(&(node, tid))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &Thread)> {
        self.0.iter()
    }
}

impl Thread {
    /// A wait that a disk request of the thread covers for at least half was for the disk. One with a wake-up was blocked until
    /// then. Others are preemptions by the task that left the CPU when the thread got it, where known.
    fn find_reasons(&mut self) {
        let Self { off, io, wakes } = self;
        for wait in off.iter_mut() {
            let length = wait.end.saturating_sub(wait.start);
            let for_disk = covered(io, wait.start, wait.end);
            let woken = wakes.partition_point(|&(at, _)| at <= wait.start);
            let woken = wakes.get(woken).filter(|&&(at, _)| at < wait.end);
            if for_disk > 0 && for_disk.saturating_mul(2) >= length {
                (wait.reason, wait.by) = (Some(Reason::Io), None);
            } else if let Some(&(at, waker)) = woken {
                let queued = wait.end.saturating_sub(at);
                if queued.saturating_mul(2) >= length {
                    wait.reason = Some(Reason::Runqueue);
                } else {
                    (wait.reason, wait.by) = (Some(Reason::Other), Some(waker));
                }
            } else if wait.by.is_some() {
                wait.reason = Some(Reason::Preempted);
            }
        }
    }

    /// Waits that overlap an interval, with the time of the overlap.
    pub(super) fn waits_in(&self, start: i64, end: i64) -> impl Iterator<Item = (&Off, u64)> {
        let to = self.off.partition_point(|wait| wait.start < end);
        // Waits of one thread do not overlap each other.
        let from = self.off[..to].iter().rposition(|wait| wait.end <= start);
        self.off[from.map_or(0, |at| at + 1)..to].iter().filter_map(move |wait| {
            let time = wait.end.min(end).saturating_sub(wait.start.max(start));
            Some((wait, u64::try_from(time).ok().filter(|&time| time > 0)?))
        })
    }

    /// Off-CPU time within an interval.
    pub(super) fn off_in(&self, start: i64, end: i64) -> u64 {
        let all = self.waits_in(start, end).fold(0u64, |all, (_, time)| all.saturating_add(time));
        all.min(u64::try_from(end.saturating_sub(start)).unwrap_or(0))
    }
}

/// Merges disk requests, in the order of their starts, into disjoint intervals.
fn joined(requests: &[(i64, i64)]) -> Vec<(i64, i64)> {
    let mut stretches: Vec<(i64, i64)> = Vec::new();
    for &(begin, finish) in requests {
        // A longer request is an error of the recording.
        let finish = finish.min(begin.saturating_add(LONGEST_IO));
        match stretches.last_mut() {
            Some(last) if begin <= last.1 => last.1 = last.1.max(finish),
            _ => stretches.push((begin, finish)),
        }
    }
    stretches
}

/// The part of an interval that disjoint, ordered intervals cover. Visits overlapping ones only.
pub(super) fn covered(others: &[(i64, i64)], start: i64, end: i64) -> i64 {
    let from = others.partition_point(|&(_, finish)| finish <= start);
    let within = others.iter().skip(from).take_while(|&&(begin, _)| begin < end);
    within.fold(0, |time, &(begin, finish)| {
        time.saturating_add(finish.min(end).saturating_sub(begin.max(start)).max(0))
    })
}

/// In nanoseconds.
const LONGEST_IO: i64 = 60_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn disks_are_waited_for_whenever_one_request_at_least_is_under_way(
            mut requests in prop::collection::vec((0i64..100, 0i64..30), 0..40),
            (start, length) in (-5i64..110, 0i64..60),
        ) {
            requests.sort_unstable();
            let requests: Vec<_> = requests.iter().map(|(at, time)| (*at, at + time)).collect();
            let stretches = joined(&requests);
            prop_assert!(stretches.is_sorted_by(|one, next| one.1 < next.0));
            let is_busy = |at: &i64| requests.iter().any(|(begin, end)| (*begin..*end).contains(at));
            let expected = (start..start + length).filter(is_busy).count();
            prop_assert_eq!(covered(&stretches, start, start + length), expected as i64);
        }
    }

    #[test]
    fn a_request_that_seems_to_take_hours_does_not() {
        let hours = 10_000 * 1_000_000_000;
        let stretches = joined(&[(0, hours)]);
        assert_eq!(covered(&stretches, 0, hours), LONGEST_IO);
        assert_eq!(covered(&stretches, i64::MIN, i64::MAX), LONGEST_IO);
    }
}
