//! Durations of calls and waits, stored or only counted.
//!
//! Aggregates include the stored events. Where a minute has more rows than the aggregate's `stored`, counting began within it: the
//! surplus rows are added, at the mean of the minute's rows.

use std::collections::{BTreeMap, HashMap};

use gpucause_abi::state::Reason;

use super::Ingero;
use super::codes;
use super::lists::Key;
use super::rows;
use gpucause_trace::recording::{
    CallStatistics, Completeness, Durations, NodeIndex, Process, ProcessIndex, RecordingError,
    WaitStatistics,
};

/// The key of an aggregate: node, column `pid`, source and operation.
type Counted = (NodeIndex, u32, i64, i64);

const MINUTE: i64 = 60_000_000_000;

/// Rows of one kind in one minute.
#[derive(Debug, Default, Clone, Copy)]
struct Minute {
    count: u64,
    sum_ns: u64,
}

/// Totals of the rows of each minute.
#[derive(Debug, Default)]
struct Minutes(HashMap<(Counted, i64), Minute>);

impl Minutes {
    fn add(&mut self, event: &rows::Event) {
        let counted = (event.node, event.pid, event.source, event.op);
        let bucket = event.timestamp.saturating_sub(event.timestamp.rem_euclid(MINUTE));
        let minute = self.0.entry((counted, bucket)).or_default();
        minute.count += 1;
        minute.sum_ns = minute.sum_ns.saturating_add(event.duration);
    }
}

/// Totals of events that are not stored.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Unstored {
    pub(super) count: u64,
    pub(super) sum_ns: u64,
    max_ns: u64,
}

pub(super) type AllUnstored = BTreeMap<Counted, Unstored>;

fn unstored(file: &Ingero, minutes: &Minutes) -> AllUnstored {
    let mut all = AllUnstored::new();
    for aggregate in &file.aggregates {
        let Some(node) = file.node_of_aggregate(aggregate) else { continue };
        let counted = (node, aggregate.pid, aggregate.source, aggregate.op);
        let rows = minutes.0.get(&(counted, aggregate.bucket)).copied().unwrap_or_default();
        let entry = all.entry(counted).or_default();
        entry.max_ns = entry.max_ns.max(aggregate.max_ns);
        let known = if rows.count <= aggregate.stored {
            rows
        } else {
            let part =
                u128::from(rows.sum_ns) * u128::from(aggregate.stored) / u128::from(rows.count);
            Minute { count: aggregate.stored, sum_ns: u64::try_from(part).unwrap_or(u64::MAX) }
        };
        entry.count = entry.count.saturating_add(aggregate.count.saturating_sub(known.count));
        entry.sum_ns = entry.sum_ns.saturating_add(aggregate.sum_ns.saturating_sub(known.sum_ns));
    }
    all
}

/// Statistics of stored and unstored events together.
fn durations(mut rows: Vec<u64>, unstored: Unstored) -> Durations {
    rows.sort_unstable();
    let stored = u64::try_from(rows.len()).unwrap_or(u64::MAX);
    let sum_ns = rows.iter().fold(unstored.sum_ns, |sum, &duration| sum.saturating_add(duration));
    Durations {
        count: stored.saturating_add(unstored.count),
        sum_ns,
        p50_ns: nearest_rank(&rows, 50),
        p99_ns: nearest_rank(&rows, 99),
        max_ns: rows.last().copied().unwrap_or(0).max(unstored.max_ns),
        completeness: match unstored.count {
            0 => Completeness::Exact,
            _ => Completeness::Sample { stored },
        },
    }
}

/// A percentile by nearest rank.
pub(super) fn nearest_rank(sorted: &[u64], percent: usize) -> Option<u64> {
    let rank = sorted.len().checked_mul(percent)?.div_ceil(100);
    sorted.get(rank.checked_sub(1)?).copied()
}

/// Calls of one function by one process.
#[derive(Debug, Default)]
struct Calls {
    durations: Vec<u64>,
    stalled: u64,
    off_ns: u64,
    /// True if the file has waits of all their threads.
    captured: bool,
}

impl Ingero {
    /// Totals of events that were counted but not stored.
    pub(super) fn unstored(&self) -> Result<AllUnstored, RecordingError> {
        let mut minutes = Minutes::default();
        if !self.aggregates.is_empty() {
            rows::each(&self.file, &self.lists, "1", |event| {
                minutes.add(&event);
                Ok(())
            })?;
        }
        Ok(unstored(self, &minutes))
    }

    pub(super) fn call_statistics(&self) -> Result<Vec<CallStatistics>, RecordingError> {
        let threads = rows::Threads::read(&self.file, &self.lists)?;
        let mut calls: BTreeMap<(ProcessIndex, i64, i64), Calls> = BTreeMap::new();
        rows::each(&self.file, &self.lists, "source NOT IN (3, 5, 6, 7)", |event| {
            let process = self.lists.process(event.node, event.pid);
            let (Some(process), Some(_)) = (process, self.codes.function(event.source, event.op))
            else {
                return Ok(());
            };
            let calls = calls
                .entry((process, event.source, event.op))
                .or_insert_with(|| Calls { captured: true, ..Calls::default() });
            calls.durations.push(event.duration);
            match threads.get(event.node, event.tid).filter(|thread| !thread.off.is_empty()) {
                Some(thread) => {
                    let off = thread.off_in(event.start(), event.end());
                    calls.stalled += u64::from(off > 0);
                    calls.off_ns = calls.off_ns.saturating_add(off);
                }
                None => calls.captured = false,
            }
            Ok(())
        })?;
        let mut unstored = self.unstored()?;
        let mut statistics = Vec::new();
        for &(node, pid, source, op) in unstored.keys() {
            let function = self.codes.function(source, op);
            if let (Some(process), Some(_)) = (self.lists.process(node, pid), function) {
                calls.entry((process, source, op)).or_default();
            }
        }
        for ((process, source, op), calls) in calls {
            let (Some(function), Some(Process { node, pid, .. })) =
                (self.codes.function(source, op), self.lists.get(process))
            else {
                continue;
            };
            let unstored = unstored.remove(&(*node, *pid, source, op)).unwrap_or_default();
            // Off-CPU time within unstored calls is unknown.
            let captured = calls.captured && unstored.count == 0;
            statistics.push(CallStatistics {
                process,
                api: function.api,
                op: function.name.clone(),
                cold: None,
                durations: durations(calls.durations, unstored),
                stalled: captured.then_some(calls.stalled),
                off_cpu_ns: captured.then_some(calls.off_ns),
            });
        }
        Ok(statistics)
    }

    pub(super) fn wait_statistics(&self) -> Result<Vec<WaitStatistics>, RecordingError> {
        type Waits = BTreeMap<(Key, Option<Reason>), Vec<u64>>;
        let threads = rows::Threads::read(&self.file, &self.lists)?;
        let mut waits = Waits::new();
        for (&key, thread) in threads.iter() {
            for wait in &thread.off {
                let time = wait.end.abs_diff(wait.start);
                waits.entry((key, wait.reason)).or_default().push(time);
            }
        }
        let mut unstored = self.unstored()?;
        unstored.retain(|&(.., source, op), unstored| {
            (source, op) == (codes::HOST, codes::SCHED_SWITCH) && unstored.count > 0
        });
        // The reason of unstored waits is unknown.
        for &(node, tid, ..) in unstored.keys() {
            waits.entry(((node, tid), None)).or_default();
        }
        let mut statistics = Vec::new();
        for (((node, tid), reason), rows) in waits {
            let Some(process) = self.lists.process_of_thread(node, tid) else { continue };
            let counted = (node, tid, codes::HOST, codes::SCHED_SWITCH);
            let unstored = match reason {
                None => unstored.remove(&counted).unwrap_or_default(),
                Some(_) => Unstored::default(),
            };
            let durations = durations(rows, unstored);
            statistics.push(WaitStatistics {
                process,
                tid: Some(tid),
                role: None,
                reason,
                durations,
            });
        }
        Ok(statistics)
    }
}
