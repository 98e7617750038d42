//! Rows of the table `events`, and what each thread did by them: when it was off the CPU and why, and what it asked of disks.

use std::collections::HashMap;

use gpucause_abi::state::Reason;
use rusqlite::Row;

use super::codes::{self, REPORTED_AT_END};
use super::lists::{Key, Lists};
use super::schema::{File, Flaw, integer, natural, text};
use crate::recording::{NodeIndex, RecordingError};

/// One row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Event {
    pub(super) node: NodeIndex,
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) source: i64,
    pub(super) op: i64,
    /// As the file tells it: a beginning or an end.
    pub(super) timestamp: i64,
    pub(super) duration: u64,
    pub(super) arg0: i64,
    pub(super) arg1: i64,
}

impl Event {
    /// When it began.
    pub(super) fn start(&self) -> i64 {
        if codes::reported_at_end(self.source, self.op) {
            self.timestamp.saturating_sub_unsigned(self.duration)
        } else {
            self.timestamp
        }
    }

    /// When it was over.
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

/// By starts; where some are equal, the longest first: it holds the others.
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

/// Shows `each` the rows that a condition chooses, in order of their starts.
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
    /// Why, where something in the file proves it.
    pub(super) reason: Option<Reason>,
    /// The task that left the CPU when this one got it, where the version tells it; who woke it of what was blocked.
    pub(super) by: Option<u32>,
}

/// What a thread did beside its calls.
#[derive(Debug, Default)]
pub(super) struct Thread {
    /// By their starts.
    pub(super) off: Vec<Off>,
    /// When requests to disks were under way: stretches that do not touch, in order.
    pub(super) io: Vec<(i64, i64)>,
    /// When it was woken, and by whom, by time.
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
    /// A wait in most of which a request of the thread was under way was for the disk. One with a wake-up in it was blocked
    /// until then. Of what else there is to tell, the task that had the CPU until the thread got it.
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

    /// Waits that have part in a stretch of time, with the time that they have in it.
    pub(super) fn waits_in(&self, start: i64, end: i64) -> impl Iterator<Item = (&Off, u64)> {
        let to = self.off.partition_point(|wait| wait.start < end);
        // They are of one thread, and so follow each other: those long before are over.
        let from = self.off[..to].iter().rposition(|wait| wait.end <= start);
        self.off[from.map_or(0, |at| at + 1)..to].iter().filter_map(move |wait| {
            let time = wait.end.min(end).saturating_sub(wait.start.max(start));
            Some((wait, u64::try_from(time).ok().filter(|&time| time > 0)?))
        })
    }

    /// How long it was off the CPU in a stretch of time.
    pub(super) fn off_in(&self, start: i64, end: i64) -> u64 {
        let all = self.waits_in(start, end).fold(0u64, |all, (_, time)| all.saturating_add(time));
        all.min(u64::try_from(end.saturating_sub(start)).unwrap_or(0))
    }
}

/// Requests to disks, by their beginnings, as stretches of time in which at least one was under way.
fn joined(requests: &[(i64, i64)]) -> Vec<(i64, i64)> {
    let mut stretches: Vec<(i64, i64)> = Vec::new();
    for &(begin, finish) in requests {
        // Disks answer within seconds: what seems to take longer did not.
        let finish = finish.min(begin.saturating_add(LONGEST_IO));
        match stretches.last_mut() {
            Some(last) if begin <= last.1 => last.1 = last.1.max(finish),
            _ => stretches.push((begin, finish)),
        }
    }
    stretches
}

/// How much of a stretch of time is in others, which do not touch and are in order. Only those that have part in it are looked
/// at, however many there are.
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
