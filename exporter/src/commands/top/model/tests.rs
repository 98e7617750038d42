//! Rows from observations made by hand.

use gpucause_observe::clock::WallClock;

use super::*;
use crate::time_shares::Part;
use gpucause_abi::Tid;
use gpucause_abi::hist::slot_of;
use gpucause_abi::op::op_of_symbol;
use gpucause_abi::record::{COMM_LEN, REASONS};
use gpucause_abi::snapshot::{
    self, CallSnapshot, Comm, DispatcherSnapshot, MemorySnapshot, Snapshot, StallSnapshot,
    TimeAccount,
};
use gpucause_abi::state::{Phase, Reason, Relation, State};
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;

fn op(name: &str) -> OpId {
    op_of_symbol(name).unwrap()
}

fn comm(name: &str) -> Comm {
    let mut raw = [0; COMM_LEN];
    raw[..name.len()].copy_from_slice(name.as_bytes());
    Comm(raw)
}

/// So many values of so many nanoseconds.
fn histogram(values: &[(u64, u64)]) -> Histogram {
    let slots = values
        .iter()
        .map(|&(ns, count)| (u16::try_from(slot_of(Nanos(ns))).unwrap(), count))
        .collect();
    Histogram {
        sum: Nanos(values.iter().map(|(ns, count)| ns * count).sum()),
        max: Nanos(values.iter().map(|&(ns, _)| ns).max().unwrap_or(0)),
        slots,
    }
}

fn account(cells: &[(Phase, State, u64)]) -> TimeAccount {
    let mut account = TimeAccount::default();
    for &(phase, state, ms) in cells {
        account.0[phase as usize][state.index()] = Nanos(ms * 1_000_000);
    }
    account
}

fn calls(name: &str, cold: bool, values: &[(u64, u64)]) -> CallSnapshot {
    CallSnapshot::unstalled(op(name), cold, histogram(values))
}

fn wait(reason: Reason, name: &str, ms: u64) -> snapshot::Wait {
    snapshot::Wait::host(reason, comm(name), Nanos(ms * 1_000_000))
}

fn process(id: u32, name: &str) -> ProcessSnapshot {
    ProcessSnapshot {
        dispatches: true,
        first_seen: Nanos(SECOND),
        ..ProcessSnapshot::new(ProcId(id), Tgid(4241 + id), comm(name))
    }
}

fn observation(at: u64, processes: Vec<ProcessSnapshot>) -> Arc<Observation> {
    let snapshot = Snapshot { taken_at: Nanos(at), processes, ..Snapshot::default() };
    Observation::new(snapshot, Nanos(0), WallClock::with_origin(Duration::ZERO)).into()
}

/// The rows of the second of two observations.
fn between(before: Vec<ProcessSnapshot>, seconds: u64, now: Vec<ProcessSnapshot>) -> Vec<Row> {
    let mut intervals = Intervals::default();
    assert_eq!(intervals.next(observation(10 * SECOND, before), None), View::default());
    let view = intervals.next(observation((10 + seconds) * SECOND, now), None);
    assert_eq!(view.elapsed, Some(Nanos(seconds * SECOND)));
    view.rows
}

fn healthy(time: u64) -> ProcessSnapshot {
    ProcessSnapshot {
        calls: vec![
            calls("cudaLaunchKernel", false, &[(5_000, 990 * time), (7_000, 10 * time)]),
            calls("cudaLaunchKernel", true, &[(90_000_000, 2)]),
            calls("cudaStreamSynchronize", false, &[(900_000, 1000 * time)]),
        ],
        dispatcher_time: account(&[
            (Phase::Host, State::Running, 70 * time),
            (Phase::Launch, State::Running, 30 * time),
            (Phase::Sync, State::Off(Reason::GpuDriver), 800 * time),
            (Phase::Sync, State::Running, 80 * time),
            (Phase::Host, State::Off(Reason::Lock), 20 * time),
        ]),
        waits: vec![
            wait(Reason::GpuDriver, "kernel", 800 * time),
            wait(Reason::Lock, "pt_autograd_0", 15 * time),
        ],
        memory: MemorySnapshot { allocated: 3 << 30, freed: 1 << 30 },
        launch_gap: histogram(&[(40_000, 1000 * time)]),
        dispatchers: vec![DispatcherSnapshot {
            tid: Tid(4242),
            wall: Nanos(time * SECOND),
            time: TimeAccount::default(),
            inflight: Some((op("cudaStreamSynchronize"), Nanos(1_200_000))),
        }],
        ..process(1, "healthy")
    }
}

fn starved(time: u64) -> ProcessSnapshot {
    let mut offcpu = [Nanos(0); REASONS];
    offcpu[Reason::Preempted as usize] = Nanos(480_000_000 * time);
    ProcessSnapshot {
        calls: vec![calls(
            "cudaLaunchKernel",
            false,
            &[(100_000, 450 * time), (4_000_000, 50 * time)],
        )],
        stalls: vec![StallSnapshot {
            op: op("cudaLaunchKernel"),
            cold: false,
            nested: false,
            calls: 60 * time,
            offcpu,
        }],
        dispatcher_time: account(&[
            (Phase::Launch, State::Running, 500 * time),
            (Phase::Launch, State::Off(Reason::Preempted), 480 * time),
            (Phase::Host, State::Off(Reason::Runqueue), 20 * time),
        ]),
        waits: vec![
            snapshot::Wait {
                tgid: Some(Tgid(28576)),
                ..wait(Reason::Preempted, "cpu-burner", 480 * time)
            },
            wait(Reason::Runqueue, "cpu-burner", 15 * time),
            wait(Reason::Runqueue, "kworker/0:1", 2 * time),
            wait(Reason::Runqueue, "kworker/1:0", 3 * time),
        ],
        ..process(2, "starved")
    }
}

/// A process that is well and one that is starved, over two seconds, for tests of what shows them.
pub(in super::super) fn rows() -> Vec<Row> {
    let rows = between(vec![healthy(1), starved(1)], 2, vec![healthy(3), starved(3)]);
    let mut view = View { elapsed: None, rows };
    view.name_owners(|pid, comm| {
        ((pid.0, comm) == (28576, "cpu-burner")).then(|| "fluent-bit.service".to_owned())
    });
    view.rows
}

#[test]
fn a_row_shows_only_what_happened_between_the_observations() {
    let rows = rows();
    let [healthy, starved] = &rows[..] else { panic!("{rows:?}") };
    assert!((healthy.numbers.launches_per_second - 1000.0).abs() < 1e-9, "no cold launch was made");
    assert!((starved.numbers.launches_per_second - 500.0).abs() < 1e-9);
    assert!(healthy.numbers.spread.unwrap() < 1.1 && starved.numbers.spread.unwrap() > 30.0);
    assert_eq!(healthy.numbers.dispatcher_seconds, 2.0);
    let gpu = healthy.numbers.parts.of(Part::Gpu);
    assert_eq!(gpu, Nanos(2 * 880_000_000), "blocked or polling in sync");
    assert_eq!(healthy.numbers.lost_share, Some(0.02));
    assert_eq!(starved.numbers.lost_share, Some(0.5));
    assert_eq!(healthy.live_bytes, 2 << 30);
    assert_eq!(healthy.in_flight, Some(("cudaStreamSynchronize", Nanos(1_200_000))));
    assert_eq!(healthy.gaps.count(), 2000);
    let ops: Vec<_> = healthy.ops.iter().map(|op| (op.name, op.calls, op.stalled)).collect();
    assert_eq!(ops, [("cudaStreamSynchronize", 2000, 0), ("cudaLaunchKernel", 2000, 0)]);
    assert_eq!(starved.ops[0].stalled, 120);
}

#[test]
fn a_culprit_is_blamed_for_lost_time_only() {
    let rows = rows();
    let (wait, share) = rows[0].culprit.clone().unwrap();
    assert_eq!((wait.text().as_str(), share), ("lock: pt_autograd_0", 0.015));
    let (wait, share) = rows[1].culprit.clone().unwrap();
    assert_eq!(
        (wait.text().as_str(), share),
        ("CPU: cpu-burner (28576, fluent-bit.service)", 0.495)
    );
    assert_eq!(rows[0].blocked_on[0].name, "kernel", "which is no culprit, but is shown");
    let kworker = rows[1].preempted_by.iter().find(|wait| wait.name == "kworker").unwrap();
    assert_eq!(kworker.time, Nanos(10_000_000));
}

#[test]
fn threads_of_the_own_process_have_no_pid_and_owners_are_looked_up_once() {
    let own = snapshot::Wait { tgid: Some(Tgid(4242)), ..wait(Reason::Lock, "holder", 9) };
    let of =
        |pid, ms| snapshot::Wait { tgid: Some(Tgid(pid)), ..wait(Reason::Preempted, "burner", ms) };
    // Two processes of one name: the one that took more is named.
    let now = ProcessSnapshot { waits: vec![own, of(7, 30), of(8, 20)], ..healthy(1) };
    let mut view = View { elapsed: None, rows: between(vec![], 1, vec![now]) };
    let asked = std::cell::RefCell::new(Vec::new());
    view.name_owners(|pid, _| {
        asked.borrow_mut().push(pid.0);
        Some("pod ml/\u{1b}x".into())
    });
    let row = &view.rows[0];
    assert_eq!(row.blocked_on[0].whom(), "holder");
    assert_eq!(row.preempted_by[0].whom(), "burner (7, pod ml/?x)");
    assert_eq!(*asked.borrow(), [7]);
}

#[test]
fn another_blocker_is_the_culprit_where_no_time_is_lost() {
    let idle = |lock| ProcessSnapshot {
        dispatcher_time: account(&[
            (Phase::Host, State::Off(Reason::Net), 900),
            (Phase::Host, State::Off(Reason::Lock), lock),
        ]),
        waits: vec![wait(Reason::Net, "client", 900), wait(Reason::Lock, "holder", lock)],
        ..process(1, "server")
    };
    let rows = |lock| between(vec![], 1, vec![idle(lock)]);
    assert_eq!(rows(0)[0].numbers.lost_share, Some(0.0));
    assert_eq!(rows(0)[0].culprit.clone().unwrap().0.name, "client");
    assert_eq!(rows(100)[0].culprit.clone().unwrap().0.name, "holder");
}

#[test]
fn a_wait_for_a_worker_is_the_largest_stall_where_it_is_longer_than_what_was_lost() {
    let trainer = |lock| ProcessSnapshot {
        dispatcher_time: account(&[
            (Phase::Host, State::Running, 600),
            (Phase::Host, State::Off(Reason::Poll), 240),
            (Phase::Host, State::Off(Reason::Lock), lock),
        ]),
        waits: vec![
            snapshot::Wait {
                tgid: Some(Tgid(7)),
                relation: Relation::Worker,
                ..wait(Reason::Poll, "pt_data_worker", 240)
            },
            wait(Reason::Lock, "holder", lock),
        ],
        ..process(1, "trainer")
    };
    let culprit = |lock| between(vec![], 1, vec![trainer(lock)])[0].culprit.clone().unwrap();
    let (wait, share) = culprit(160);
    assert_eq!((wait.text().as_str(), share), ("data: pt_data_worker (7)", 0.24));
    assert_eq!(culprit(300).0.name, "holder");
}

#[test]
fn an_interval_without_length_or_without_calls_has_rows_of_nothing() {
    for seconds in [0, 5] {
        let rows = between(vec![starved(1)], seconds, vec![starved(1)]);
        let [row] = &rows[..] else { panic!("{rows:?}") };
        assert!(row.numbers.launches_per_second.abs() < f64::EPSILON);
        let ProcessRow { p50_seconds, p99_seconds, spread, lost_share, parts, .. } = row.numbers;
        assert_eq!((p50_seconds, p99_seconds, spread), (None, None, None));
        assert_eq!((lost_share, parts.cells(20)), (None, Vec::new()));
        assert_eq!((row.culprit.clone(), row.ops.len()), (None, 0));
    }
}

#[test]
fn counters_that_decrease_count_as_nothing() {
    let rows = between(vec![starved(3)], 1, vec![starved(1)]);
    assert!(rows[0].numbers.launches_per_second.abs() < f64::EPSILON);
    assert_eq!(rows[0].numbers.dispatcher_seconds, 0.0);
    assert!(rows[0].preempted_by.is_empty());
}

#[test]
fn a_process_that_appears_counts_from_its_beginning() {
    let late = ProcessSnapshot { first_seen: Nanos(11 * SECOND + SECOND / 2), ..starved(1) };
    let rows = between(vec![healthy(1)], 2, vec![healthy(1), late]);
    assert_eq!(rows.len(), 2);
    assert!(
        (rows[1].numbers.launches_per_second - 1000.0).abs() < 1e-9,
        "500 launches in half a second"
    );
}

#[test]
fn a_process_that_ends_is_shown_once_more_and_then_not() {
    let mut intervals = Intervals::default();
    let ended = || ProcessSnapshot { ended: Some(Nanos(11 * SECOND)), ..starved(2) };
    intervals.next(observation(10 * SECOND, vec![starved(1)]), None);
    let view = intervals.next(observation(12 * SECOND, vec![ended()]), None);
    assert!(view.rows[0].numbers.has_ended);
    assert!(
        (view.rows[0].numbers.launches_per_second - 500.0).abs() < 1e-9,
        "500 in its last second"
    );
    assert!(intervals.next(observation(14 * SECOND, vec![ended()]), None).rows.is_empty());
    assert!(intervals.next(observation(16 * SECOND, vec![]), None).rows.is_empty());
}

#[test]
fn only_processes_that_make_calls_and_are_selected_have_rows() {
    let worker = ProcessSnapshot { dispatches: false, ..process(7, "worker") };
    let mut intervals = Intervals::default();
    let all = || vec![healthy(1), starved(1), worker.clone()];
    intervals.next(observation(SECOND, all()), None);
    assert_eq!(intervals.next(observation(2 * SECOND, all()), None).rows.len(), 2);
    let one = intervals.next(observation(3 * SECOND, all()), Some(Tgid(4243)));
    assert_eq!(one.rows.iter().map(|row| row.numbers.pid).collect::<Vec<_>>(), [4243]);
}

#[test]
fn hostile_names_cannot_move_the_cursor_or_turn_the_line() {
    let name = "\u{1b}[2J\u{202e}evil\n\u{200b}";
    let hostile = ProcessSnapshot { comm: comm(name), ..starved(1) };
    let rows = between(vec![], 1, vec![hostile]);
    assert_eq!(rows[0].numbers.comm, "?[2J?evil??");
}

#[test]
fn launches_are_counted_in_the_layer_that_makes_them() {
    let runtime = calls("cudaLaunchKernel", false, &[(9_000, 100)]);
    let direct = calls("cuLaunchKernel", false, &[(5_000, 900)]);
    let nested = CallSnapshot { nested: true, ..calls("cuLaunchKernel", false, &[(5_000, 101)]) };
    let row = |calls: &[CallSnapshot]| {
        let process = ProcessSnapshot { calls: calls.to_vec(), ..process(1, "x") };
        between(vec![], 1, vec![process]).remove(0).numbers
    };
    let of_runtime = row(&[runtime.clone(), nested.clone()]);
    assert!(of_runtime.p50_seconds.unwrap() >= 9e-6, "the driver's launches are the runtime's");
    let of_both = row(&[runtime, nested, direct]);
    assert!(of_both.p50_seconds.unwrap() < 6e-6, "most are the driver's own");
    let ratio = of_both.launches_per_second / of_runtime.launches_per_second;
    assert!((ratio - 10.0).abs() < 1e-9, "{ratio}");
}

#[test]
fn launches_of_graphs_count_and_have_quantiles_where_there_are_no_others() {
    let graphs = calls("cudaGraphLaunch", false, &[(50_000, 10)]);
    let process = ProcessSnapshot { calls: vec![graphs], ..process(1, "x") };
    let rows = between(vec![], 10, vec![process.clone()]);
    let own = &rows[0].numbers;
    assert!(own.launches_per_second > 0.0 && own.p50_seconds.unwrap() >= 50e-6);
    let kernels = calls("cudaLaunchKernel", false, &[(5_000, 10)]);
    let both = ProcessSnapshot { calls: [process.calls, vec![kernels]].concat(), ..process };
    assert!(between(vec![], 10, vec![both])[0].numbers.p99_seconds.unwrap() < 6e-6);
}

#[test]
fn time_is_lost_without_a_cpu_or_behind_locks_disks_and_pages_outside_of_sync_and_queued_in_it() {
    for &phase in Phase::ALL {
        for state in State::all() {
            let lost = match state {
                State::Off(Reason::Runqueue) => true,
                State::Off(
                    Reason::Preempted
                    | Reason::Lock
                    | Reason::KernelLock
                    | Reason::Io
                    | Reason::PageFault,
                ) => phase != Phase::Sync,
                _ => false,
            };
            assert_eq!(Part::of(phase, state).is_lost(), lost, "{phase:?} {state:?}");
            assert_eq!(state.is_lost_in(phase), lost, "{phase:?} {state:?}");
        }
    }
}

#[test]
fn a_bar_has_the_given_number_of_cells_and_is_divided_as_the_time_is() {
    let rows = rows();
    let letters = |row: &Row, cells| {
        row.numbers.parts.cells(cells).into_iter().map(Part::letter).collect::<String>()
    };
    assert_eq!(letters(&rows[1], 20), "llllllllllPPPPPPPPPP");
    assert_eq!(letters(&rows[0], 25), "hhl......................".to_owned());
    for cells in 0..200 {
        assert_eq!(letters(&rows[0], cells).len(), cells);
    }
}

#[test]
fn processes_that_ended_are_one_row_and_rank_below_what_lost_more_seconds() {
    let mut rows = rows();
    let live = rows.len();
    let brief = |pid: u32| {
        let mut row = rows[0].clone();
        (row.id, row.numbers.pid, row.numbers.has_ended) = (ProcId(pid), pid, true);
        (row.numbers.parts, row.numbers.lost_seconds) = Default::default();
        row
    };
    let ended: Vec<Row> = (1..=22).map(brief).collect();
    rows.extend(ended);
    super::collapse_ended(&mut rows);
    super::super::state::State::default().arrange(&mut rows);
    assert_eq!(rows.len(), live + 1);
    let last = rows.last().unwrap();
    assert_eq!((&*last.numbers.comm, last.numbers.has_ended), ("22 exited", true));
}
