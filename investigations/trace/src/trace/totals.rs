//! The accounts as tables for SQL and reports: the last snapshot of each process.

use gpucause_abi::Nanos;
use gpucause_abi::hist::Histogram;
use gpucause_abi::op::{Api, OpId};
use gpucause_abi::snapshot::ProcessSnapshot;
use gpucause_abi::state::{Phase, Reason, Role, State};
use rusqlite::params;

use super::store::{ProcessRef, Store, signed};
use super::write_error::WriteError;
use crate::recording::{CallStatistics, Completeness, Durations, ProcessIndex, WaitStatistics};

const TABLES: &[&str] = &["call_totals", "wait_totals", "waited_for", "dispatcher_time"];

/// Exact but for the percentiles, which are upper edges of the slots that they lie in, at most 6.25 % above.
fn durations(histogram: &Histogram) -> Durations {
    let quantile = |q| histogram.quantile(q).map(|Nanos(ns)| ns);
    Durations {
        count: histogram.count(),
        sum_ns: histogram.sum.0,
        p50_ns: quantile(0.5),
        p99_ns: quantile(0.99),
        max_ns: histogram.max.0,
        completeness: Completeness::Exact,
    }
}

/// Durations of a process's calls, by op and coldness.
pub fn calls_of(
    number: ProcessIndex,
    process: &ProcessSnapshot,
) -> impl Iterator<Item = CallStatistics> {
    process.calls_by_op().into_iter().map(move |(id, cold, histogram)| {
        let (api, op) = name_of(id);
        let stalls = process.stalls.iter().filter(|stall| (stall.op, stall.cold) == (id, cold));
        let off_cpu = stalls.clone().flat_map(|stall| stall.offcpu).map(|time| time.0).sum();
        CallStatistics {
            process: number,
            api,
            op: op.into(),
            cold: Some(cold),
            durations: durations(&histogram),
            stalled: Some(stalls.map(|stall| stall.calls).sum()),
            off_cpu_ns: Some(off_cpu),
        }
    })
}

/// Off-CPU time of a process, by role and reason.
pub fn waits_of(
    number: ProcessIndex,
    process: &ProcessSnapshot,
) -> impl Iterator<Item = WaitStatistics> {
    process.offcpu.iter().map(move |(role, reason, histogram)| WaitStatistics {
        process: number,
        tid: None,
        role: Some(*role),
        reason: Some(*reason),
        durations: durations(histogram),
    })
}

impl Store {
    /// Writes a process's accounts instead of those before.
    pub(crate) fn totals(
        &mut self,
        row: ProcessRef,
        process: &ProcessSnapshot,
    ) -> Result<(), WriteError> {
        self.write(|store| {
            for table in TABLES {
                let delete = format!("DELETE FROM {table} WHERE process = ?");
                store.connection.execute(&delete, [row.0])?;
            }
            Ok(())
        })?;
        // The number of a process in a recording is not that of its row, and not written.
        let number = ProcessIndex(0);
        for calls in calls_of(number, process) {
            self.call_statistics(row, &calls)?;
        }
        for waits in waits_of(number, process) {
            self.wait_statistics(row, &waits)?;
        }
        self.waited_for(row, process)?;
        self.dispatcher_time(row, process)
    }

    pub(crate) fn call_statistics(
        &mut self,
        row: ProcessRef,
        calls: &CallStatistics,
    ) -> Result<(), WriteError> {
        let CallStatistics { process: _, api, op, cold, durations, stalled, off_cpu_ns } = calls;
        let op = self.op(*api, op)?;
        let [count, sum, p50, p99, max, stored] = numbers(durations);
        let (stalled, off_cpu) = (stalled.map(signed), off_cpu_ns.map(signed));
        let insert = "INSERT INTO call_totals VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
        let row = params![row.0, op, cold, count, sum, p50, p99, max, stored, stalled, off_cpu];
        self.execute(insert, row).map(drop)
    }

    pub(crate) fn wait_statistics(
        &mut self,
        row: ProcessRef,
        waits: &WaitStatistics,
    ) -> Result<(), WriteError> {
        let WaitStatistics { process: _, tid, role, reason, durations } = waits;
        let [count, sum, p50, p99, max, stored] = numbers(durations);
        let (role, reason) = (role.map(Role::label), reason.map(Reason::label));
        let insert = "INSERT INTO wait_totals VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
        let row = params![row.0, tid, role, reason, count, sum, p50, p99, max, stored];
        self.execute(insert, row).map(drop)
    }

    fn waited_for(&mut self, row: ProcessRef, process: &ProcessSnapshot) -> Result<(), WriteError> {
        self.write(|store| {
            let insert = "INSERT INTO waited_for VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)";
            let mut insert = store.connection.prepare(insert)?;
            for wait in &process.waits {
                insert.execute(params![
                    row.0,
                    wait.tid.map(|tid| tid.0),
                    wait.phase.label(),
                    wait.reason.label(),
                    wait.on.to_text(),
                    wait.tgid.map(|tgid| tgid.0),
                    wait.relation.label(),
                    signed(wait.total.0),
                    signed(wait.held.0),
                ])?;
            }
            Ok(())
        })
    }

    fn dispatcher_time(
        &mut self,
        row: ProcessRef,
        process: &ProcessSnapshot,
    ) -> Result<(), WriteError> {
        self.write(|store| {
            let insert = "INSERT INTO dispatcher_time VALUES (?, ?, ?, ?)";
            let mut insert = store.connection.prepare(insert)?;
            for &phase in Phase::ALL {
                for state in State::all() {
                    let time = process.dispatcher_time.at(phase, state);
                    if time > Nanos(0) {
                        insert.execute(params![
                            row.0,
                            phase.label(),
                            state.label(),
                            signed(time.0)
                        ])?;
                    }
                }
            }
            Ok(())
        })
    }
}

/// Durations in the order of the columns.
fn numbers(durations: &Durations) -> [Option<i64>; 6] {
    let Durations { count, sum_ns, p50_ns, p99_ns, max_ns, completeness } = *durations;
    let stored = match completeness {
        Completeness::Exact => None,
        Completeness::Sample { stored } => Some(stored),
    };
    [Some(count), Some(sum_ns), p50_ns, p99_ns, Some(max_ns), stored].map(|own| own.map(signed))
}

/// The op's name; one of a newer table goes by its number.
fn name_of(op: OpId) -> (Api, String) {
    match op.op() {
        Some(op) => (op.api, op.name.to_owned()),
        None => (Api::Runtime, format!("op {}", op.0)),
    }
}
