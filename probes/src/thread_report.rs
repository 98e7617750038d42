//! Completes the time account reported for a live thread.
//!
//! The record is copied while the thread runs, so its parts may not agree. The open cell is the negative one: the start of
//! the current stretch was subtracted, but its end is not added yet. Without an open cell the thread is off the CPU.
//! Completed, all cells add up to wall time; the rest is copying time, which counts as running.

use gpucause_abi::Nanos;
use gpucause_abi::record::{ACCOUNT_CELLS, AccountRecord, STATES, ThreadRecord};
use gpucause_abi::snapshot::TimeAccount;
use gpucause_abi::state::{Reason, Role, State};

/// Longest time to copy a record: a cell exceeding wall time by more was copied in two parts.
const COPYING: u64 = 100_000_000;

/// Converts cells to durations.
pub(crate) fn time_account(record: &AccountRecord) -> TimeAccount {
    let mut account = TimeAccount::default();
    for (cell, ns) in account.0.iter_mut().flatten().zip(record.cells_ns) {
        // Negative only if an addition was copied in part.
        *cell = Nanos(if is_negative(ns) { 0 } else { ns });
    }
    account
}

/// The account of a live thread up to its report, and its wall time.
pub(crate) fn settle(now: u64, thread: &ThreadRecord) -> (TimeAccount, Nanos) {
    let wall = now.saturating_sub(thread.account_since_ns);
    let phase = (thread.phase as usize).min(ACCOUNT_CELLS / STATES - 1);
    let mut cells = cells(thread);
    let mut running = phase * STATES + State::Running.index();
    let mut is_open = false;
    let most = wall.saturating_add(COPYING);
    for (index, cell) in cells.iter_mut().enumerate().filter(|(_, cell)| **cell > most) {
        let open = cell.wrapping_add(now);
        if open <= most {
            (*cell, running, is_open) = (open, index, true);
            continue;
        }
        // The thread was switched and changed its phase between the copies of the cell's two parts.
        let closed = cell.wrapping_sub(now);
        *cell = if closed <= most { closed } else { 0 };
    }
    // If the thread ran and left the CPU again since its report, the account already has the reported interval; adding it
    // would increase the error.
    if !is_open && missing(wall, &cells) > 0 {
        let mut with_unfinished = cells;
        for (state, ns) in unfinished(now, thread) {
            let cell = &mut with_unfinished[phase * STATES + state.index()];
            *cell = cell.wrapping_add(ns);
        }
        if missing(wall, &with_unfinished).abs() < missing(wall, &cells).abs() {
            cells = with_unfinished;
        }
    }
    let rest = missing(wall, &cells);
    cells[running] = cells[running].saturating_add_signed(rest);
    let reclaimed = reclaimed(now, thread).min(cells[running]);
    cells[running] -= reclaimed;
    cells[running / STATES * STATES + State::Off(Reason::PageFault).index()] += reclaimed;
    (time_account(&AccountRecord { cells_ns: cells }), Nanos(wall))
}

/// The account including what the call programs moved within it.
fn cells(thread: &ThreadRecord) -> [u64; ACCOUNT_CELLS] {
    let mut cells = thread.account.cells_ns;
    for (states, moved) in cells.chunks_exact_mut(STATES).zip(thread.moved_ns) {
        let running = &mut states[State::Running.index()];
        *running = running.wrapping_add(moved);
    }
    cells
}

fn is_negative(cell: u64) -> bool {
    cell > i64::MAX as u64
}

fn missing(wall: u64, cells: &[u64; ACCOUNT_CELLS]) -> i64 {
    cells.iter().fold(wall, |rest, &ns| rest.wrapping_sub(ns)).cast_signed()
}

/// How long the thread has run to free memory, of what its account still has as running time.
fn reclaimed(now: u64, thread: &ThreadRecord) -> u64 {
    let since = thread.reclaim_since_ns;
    if thread.role != Role::Dispatcher as u32 || since == 0 || since < thread.account_since_ns {
        return 0;
    }
    let until = if thread.off_since_ns == 0 { now } else { thread.off_since_ns };
    let offcpu = thread.offcpu_total_ns.wrapping_sub(thread.reclaim_offcpu_ns);
    until.saturating_sub(since).saturating_sub(offcpu)
}

/// The states of the current off-CPU stretch.
fn unfinished(now: u64, thread: &ThreadRecord) -> Vec<(State, u64)> {
    let since = thread.off_since_ns;
    if since == 0 || since > now {
        return Vec::new();
    }
    let reason =
        u8::try_from(thread.off_reason).ok().and_then(Reason::from_raw).unwrap_or(Reason::Other);
    if reason == Reason::Preempted {
        return vec![(State::Off(reason), now - since)];
    }
    let woken = thread.woken_ns;
    let is_older = woken < thread.on_since_ns || woken == thread.awake_ns;
    if is_older || woken == 0 || woken > now {
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
    use zerocopy::FromZeros as _;

    fn thread(account: AccountRecord) -> ThreadRecord {
        ThreadRecord {
            proc_id: 1,
            tgid: 1,
            on_since_ns: 1_000,
            phase: Phase::Launch as u32,
            account_since_ns: 1_000,
            account,
            ..ThreadRecord::new_zeroed()
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
        let (time, wall) = settle(1_700, &thread(record));
        assert_eq!(wall, Nanos(700));
        assert_eq!(time.at(Phase::Host, State::Running), Nanos(500));
        assert_eq!(time.at(Phase::Launch, State::Running), Nanos(200));
    }

    #[test]
    fn a_thread_that_frees_memory_waits_for_a_page_though_it_runs() {
        let record = record(&[(Phase::Launch, State::Running, 0u64.wrapping_sub(1_000))]);
        let thread = ThreadRecord {
            role: Role::Dispatcher as u32,
            reclaim_since_ns: 1_200,
            reclaim_offcpu_ns: 7_000,
            offcpu_total_ns: 7_100,
            ..thread(record)
        };
        let (time, wall) = settle(1_700, &thread);
        assert_eq!(time.at(Phase::Launch, State::Running), Nanos(300));
        assert_eq!(time.at(Phase::Launch, State::Off(Reason::PageFault)), Nanos(400));
        assert_eq!(wall, Nanos(700));
    }

    #[test]
    fn a_thread_that_was_woken_and_still_waits_is_in_the_run_queue() {
        let record = record(&[(Phase::Launch, State::Running, 100)]);
        let thread = ThreadRecord {
            off_since_ns: 1_100,
            woken_ns: 1_400,
            off_reason: Reason::Futex as u32,
            ..thread(record)
        };
        let (time, _) = settle(1_900, &thread);
        assert_eq!(time.at(Phase::Launch, State::Off(Reason::Futex)), Nanos(300));
        assert_eq!(time.at(Phase::Launch, State::Off(Reason::Runqueue)), Nanos(500));
        assert_eq!(time.at(Phase::Launch, State::Running), Nanos(100));
    }

    #[test]
    fn a_thread_that_was_woken_before_it_left_the_cpu_still_waits() {
        let thread = ThreadRecord {
            off_since_ns: 1_500,
            woken_ns: 1_400,
            awake_ns: 1_400,
            off_reason: Reason::Futex as u32,
            ..thread(record(&[(Phase::Launch, State::Running, 500)]))
        };
        let (time, _) = settle(1_900, &thread);
        assert_eq!(time.at(Phase::Launch, State::Off(Reason::Futex)), Nanos(400));
        assert_eq!(time.at(Phase::Launch, State::Off(Reason::Runqueue)), Nanos(0));
    }

    #[test]
    fn a_phase_that_changed_since_the_report_comes_from_the_account() {
        let moved_on = record(&[
            (Phase::Launch, State::Running, 400),
            (Phase::Host, State::Running, 0u64.wrapping_sub(1_400)),
        ]);
        let (time, wall) = settle(1_400, &thread(moved_on));
        assert_eq!(time.total(), wall);
        assert_eq!(time.at(Phase::Launch, State::Running), Nanos(400));
        assert_eq!(time.at(Phase::Host, State::Running), Nanos(0));
    }

    #[test]
    fn a_cell_whose_parts_were_copied_at_two_times_has_no_more_than_the_wall_time() {
        const SECOND: u64 = 1_000_000_000;
        let (began, now) = (5_000 * SECOND, 5_010 * SECOND);
        let mut thread = thread(record(&[(Phase::Host, State::Running, 2 * SECOND)]));
        thread.account_since_ns = began;
        // Switched in after the account was copied, and entered a call before this was.
        thread.moved_ns[Phase::Host as usize] = now - 10;
        thread.moved_ns[Phase::Launch as usize] = 0u64.wrapping_sub(now - 10);
        let (time, wall) = settle(now, &thread);
        assert_eq!(wall, Nanos(10 * SECOND));
        assert_eq!(time.at(Phase::Host, State::Running), Nanos(2 * SECOND - 10));
        assert_eq!(time.total(), wall);
        // Left the CPU in a call, which returned after it was back.
        let mut thread =
            ThreadRecord { account: record(&[(Phase::Launch, State::Running, SECOND)]), ..thread };
        thread.moved_ns[Phase::Launch as usize] = now - 10;
        thread.moved_ns[Phase::Host as usize] = 0u64.wrapping_sub(now - 10);
        let (time, wall) = settle(now, &thread);
        assert_eq!(time.at(Phase::Launch, State::Running), Nanos(SECOND - 10));
        assert_eq!(time.total(), wall);
    }

    #[test]
    fn a_wait_that_ended_since_the_report_counts_once() {
        let back = record(&[
            (Phase::Launch, State::Running, 100),
            (Phase::Launch, State::Off(Reason::Futex), 5_000),
            (Phase::Launch, State::Running, 0u64.wrapping_sub(6_100)),
        ]);
        let thread =
            ThreadRecord { off_since_ns: 1_100, off_reason: Reason::Futex as u32, ..thread(back) };
        let (time, wall) = settle(6_099, &thread);
        assert_eq!(wall, Nanos(5_099));
        assert_eq!(time.at(Phase::Launch, State::Off(Reason::Futex)), Nanos(5_000));
        assert_eq!(time.at(Phase::Launch, State::Running), Nanos(99));
    }

    proptest! {
        #[test]
        fn every_consistent_account_adds_up_to_wall_time(
            stretches in prop::collection::vec((0usize..8, 0usize..STATES, 1u64..1_000_000), 1..50), open in 0u64..1_000_000,
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
            let thread = ThreadRecord { phase: phase as u32, ..thread(record(&cells)) };
            let (time, wall) = settle(now + open, &thread);
            prop_assert_eq!(time.total(), wall);
        }
    }
}
