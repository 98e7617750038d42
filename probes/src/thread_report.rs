//! Completes the time account that a live thread reports.
//!
//! The report and the account are copied one after the other while the thread may go on, so they need not agree. The account
//! tells for itself: its open cell is the one below zero, because the present moment has not been added to what was
//! subtracted when the stretch began; without one the thread is off the CPU. Completed, all cells add up to wall time. What
//! is missing by then is the time that copying took, and belongs to running.

use gpucause_abi::Nanos;
use gpucause_abi::record::{ACCOUNT_CELLS, AccountRecord, STATES, ThreadReport};
use gpucause_abi::snapshot::TimeAccount;
use gpucause_abi::state::{Reason, State};

/// The cells as they are kept, in times.
pub(crate) fn time_account(record: &AccountRecord) -> TimeAccount {
    let mut account = TimeAccount::default();
    for (cell, ns) in account.0.iter_mut().flatten().zip(record.cells_ns) {
        // Negative only where additions were caught half way.
        *cell = Nanos(if is_negative(ns) { 0 } else { ns });
    }
    account
}

/// The account of a live thread up to the moment of its report, and the wall time that it adds up to.
pub(crate) fn settle(report: &ThreadReport, record: &AccountRecord) -> (TimeAccount, Nanos) {
    let wall = report.now_ns.saturating_sub(report.account_since_ns);
    let phase = (report.phase as usize).min(ACCOUNT_CELLS / STATES - 1);
    let mut cells = record.cells_ns;
    let mut running = phase * STATES + State::Running.index();
    let mut is_open = false;
    for (index, cell) in cells.iter_mut().enumerate().filter(|(_, cell)| is_negative(**cell)) {
        *cell = cell.wrapping_add(report.now_ns);
        running = index;
        is_open = true;
    }
    // A thread that came back and left again since it reported has its report's interval in the account already: adding it
    // then makes the sum wrong rather than right.
    if !is_open && missing(wall, &cells) > 0 {
        let mut with_unfinished = cells;
        for (state, ns) in unfinished(report) {
            let cell = &mut with_unfinished[phase * STATES + state.index()];
            *cell = cell.wrapping_add(ns);
        }
        if missing(wall, &with_unfinished).abs() < missing(wall, &cells).abs() {
            cells = with_unfinished;
        }
    }
    let rest = missing(wall, &cells);
    cells[running] = cells[running].saturating_add_signed(rest);
    (time_account(&AccountRecord { cells_ns: cells }), Nanos(wall))
}

fn is_negative(cell: u64) -> bool {
    cell > i64::MAX as u64
}

fn missing(wall: u64, cells: &[u64; ACCOUNT_CELLS]) -> i64 {
    cells.iter().fold(wall, |rest, &ns| rest.wrapping_sub(ns)).cast_signed()
}

/// The states of the stretch off the CPU that has not ended.
fn unfinished(report: &ThreadReport) -> Vec<(State, u64)> {
    let (now, since) = (report.now_ns, report.off_since_ns);
    if since == 0 || since > now {
        return Vec::new();
    }
    let reason =
        u8::try_from(report.off_reason).ok().and_then(Reason::from_raw).unwrap_or(Reason::Other);
    if reason == Reason::Preempted {
        return vec![(State::Off(reason), now - since)];
    }
    let woken = report.woken_ns;
    if woken < report.on_since_ns || woken == 0 || woken > now {
        return vec![(State::Off(reason), now - since)];
    }
    let woken = woken.max(since);
    vec![(State::Off(reason), woken - since), (State::Off(Reason::Runqueue), now - woken)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpucause_abi::state::Phase;
    use proptest::prelude::*;

    fn report(now_ns: u64) -> ThreadReport {
        ThreadReport {
            now_ns,
            account_since_ns: 1_000,
            off_since_ns: 0,
            on_since_ns: 1_000,
            woken_ns: 0,
            inflight_since_ns: 0,
            proc_id: 1,
            tid: 1,
            phase: Phase::Launch as u32,
            off_reason: 0,
            inflight_op: 0,
            pad: 0,
        }
    }

    fn record(cells: &[(Phase, State, u64)]) -> AccountRecord {
        let mut cells_ns = [0u64; ACCOUNT_CELLS];
        for &(phase, state, ns) in cells {
            let cell = &mut cells_ns[phase as usize * STATES + state.index()];
            *cell = cell.wrapping_add(ns);
        }
        AccountRecord { cells_ns }
    }

    #[test]
    fn the_open_stretch_of_a_running_thread_is_running_time_of_its_phase() {
        let record = record(&[
            (Phase::Host, State::Running, 500),
            (Phase::Launch, State::Running, 0u64.wrapping_sub(1_500)),
        ]);
        let (time, wall) = settle(&report(1_700), &record);
        assert_eq!(wall, Nanos(700));
        assert_eq!(time.at(Phase::Host, State::Running), Nanos(500));
        assert_eq!(time.at(Phase::Launch, State::Running), Nanos(200));
    }

    #[test]
    fn a_thread_that_was_woken_and_still_waits_is_in_the_run_queue() {
        let record = record(&[(Phase::Launch, State::Running, 100)]);
        let report = ThreadReport {
            off_since_ns: 1_100,
            woken_ns: 1_400,
            off_reason: Reason::Futex as u32,
            ..report(1_900)
        };
        let (time, _) = settle(&report, &record);
        assert_eq!(time.at(Phase::Launch, State::Off(Reason::Futex)), Nanos(300));
        assert_eq!(time.at(Phase::Launch, State::Off(Reason::Runqueue)), Nanos(500));
        assert_eq!(time.at(Phase::Launch, State::Running), Nanos(100));
    }

    #[test]
    fn a_phase_that_changed_since_the_report_is_told_by_the_account() {
        let moved_on = record(&[
            (Phase::Launch, State::Running, 400),
            (Phase::Host, State::Running, 0u64.wrapping_sub(1_400)),
        ]);
        let (time, wall) = settle(&report(1_400), &moved_on);
        assert_eq!(time.total(), wall);
        assert_eq!(time.at(Phase::Launch, State::Running), Nanos(400));
        assert_eq!(time.at(Phase::Host, State::Running), Nanos(0));
    }

    #[test]
    fn a_wait_that_ended_since_the_report_counts_once() {
        let back = record(&[
            (Phase::Launch, State::Running, 100),
            (Phase::Launch, State::Off(Reason::Futex), 5_000),
            (Phase::Launch, State::Running, 0u64.wrapping_sub(6_100)),
        ]);
        let report =
            ThreadReport { off_since_ns: 1_100, off_reason: Reason::Futex as u32, ..report(6_099) };
        let (time, wall) = settle(&report, &back);
        assert_eq!(wall, Nanos(5_099));
        assert_eq!(time.at(Phase::Launch, State::Off(Reason::Futex)), Nanos(5_000));
        assert_eq!(time.at(Phase::Launch, State::Running), Nanos(99));
    }

    proptest! {
        #[test]
        fn every_consistent_account_adds_up_to_wall_time(
            stretches in prop::collection::vec((0usize..8, 0usize..11, 1u64..1_000_000), 1..50), open in 0u64..1_000_000,
        ) {
            let mut now = 1_000u64;
            let mut cells = vec![(Phase::Host, State::Running, 0u64.wrapping_sub(now))];
            let mut phase = Phase::Host;
            for (to, state, ns) in stretches {
                let state = State::all().nth(state).unwrap();
                now += ns;
                if state == State::Running {
                    cells.push((phase, State::Running, now));
                    phase = Phase::ALL[to];
                    cells.push((phase, State::Running, 0u64.wrapping_sub(now)));
                } else {
                    cells.push((phase, state, ns));
                    cells.push((phase, State::Running, 0u64.wrapping_sub(ns)));
                }
            }
            let report = ThreadReport { phase: phase as u32, ..report(now + open) };
            let (time, wall) = settle(&report, &record(&cells));
            prop_assert_eq!(time.total(), wall);
        }
    }
}
