use super::*;
use crate::settings::Settings;
use crate::{Engine, EngineInput};
use gpucause_abi::hist::slot_of;
use gpucause_abi::op::op_of_symbol;
use gpucause_abi::snapshot::{CallSnapshot, Snapshot};
use gpucause_abi::state::{Phase, Reason, State};
use std::sync::Arc;

const SECOND: u64 = 1_000_000_000;

fn histogram(value: u64, count: u64) -> Histogram {
    let slot = u16::try_from(slot_of(Nanos(value))).unwrap();
    let slots = [(slot, count)].into_iter().filter(|&(_, count)| count > 0).collect();
    Histogram { sum: Nanos(value * count), max: Nanos(value), slots }
}

/// So many launches of 10 us, and as many cold ones of a second, in so many seconds; a quarter of those was lost.
fn process(id: u32, launches: u64, seconds: u64) -> ProcessSnapshot {
    let call = |name, cold, durations| {
        CallSnapshot::unstalled(op_of_symbol(name).unwrap(), cold, durations)
    };
    let nested =
        CallSnapshot { nested: true, ..call("cuLaunchKernel", false, histogram(5_000, launches)) };
    let mut process = ProcessSnapshot::new(ProcId(id), Tgid(100 + id), Comm([b'p'; 16]));
    process.dispatches = true;
    process.calls = vec![
        call("cudaLaunchKernel", false, histogram(10_000, launches)),
        call("cudaLaunchKernel", true, histogram(SECOND, launches)),
        call("cudaMalloc", false, histogram(10_000, launches)),
        nested,
    ];
    process.launches.untimed = launches;
    let time = &mut process.dispatcher_time.0;
    time[Phase::Host as usize][State::Running.index()] = Nanos(seconds * SECOND * 3 / 4);
    time[Phase::Host as usize][State::Off(Reason::Lock).index()] = Nanos(seconds * SECOND / 4);
    process
}

fn input(at_seconds: u64, processes: Vec<ProcessSnapshot>) -> EngineInput {
    let snapshot =
        Snapshot { taken_at: Nanos(at_seconds * SECOND), processes, ..Snapshot::default() };
    EngineInput::new(Arc::new(snapshot), at_seconds as f64)
}

fn engine(inputs: impl IntoIterator<Item = EngineInput>) -> Engine {
    let mut engine = Engine::new(Settings::default());
    inputs.into_iter().for_each(|input| engine.evaluate(&input));
    engine
}

#[test]
fn activity_is_what_was_added_between_the_oldest_and_the_newest_snapshot() {
    let engine = engine([
        input(10, vec![process(1, 100, 10)]),
        input(12, vec![process(1, 130, 12)]),
        input(14, vec![process(1, 200, 14)]),
    ]);
    let all = engine.activities().unwrap();
    assert_eq!(all.window, (Nanos(10 * SECOND), Nanos(14 * SECOND)));
    let [own] = &all.processes[..] else { panic!("{all:?}") };
    assert_eq!((own.pid, own.span), (Tgid(101), Nanos(4 * SECOND)));
    // Warm, cold and untimed; nested ones and other calls are none.
    assert_eq!((own.launches, own.timed, own.warm.count()), (300, 200, 100));
    assert_eq!(own.warm.quantile(0.5), Some(Nanos(10_000)));
    assert_eq!((own.time.total(), own.time.all_lost()), (Nanos(4 * SECOND), Nanos(SECOND)));
    let (before, now) = (process(1, 100, 10), process(1, 200, 14));
    let between = Activity::between(Some(&before), &now, all.window);
    assert_eq!(*own, between, "snapshots and what is kept of them agree");
}

#[test]
fn a_process_has_activity_only_of_the_time_that_is_known() {
    assert_eq!(engine([]).activities(), None);
    assert_eq!(engine([input(1, vec![process(1, 1, 1)])]).activities(), None);
    let begun = ProcessSnapshot { first_seen: Nanos(11 * SECOND), ..process(2, 50, 1) };
    let mut ended = process(3, 10, 10);
    ended.ended = Some(Nanos(9 * SECOND));
    let mut idle = process(4, 0, 0);
    idle.dispatches = false;
    let missed = process(5, 1, 1);
    let engine = engine([
        input(10, vec![ended.clone(), idle.clone()]),
        input(12, vec![begun, ended, idle, missed]),
    ]);
    let all = engine.activities().unwrap();
    let known: Vec<_> = all.processes.iter().map(|own| (own.pid.0, own.span)).collect();
    assert_eq!(known, [(102, Nanos(SECOND))]);
}

#[test]
fn the_timeline_has_each_evaluation_and_the_share_that_was_lost() {
    let of = |at: u64| input(at, vec![process(1, at * 10, at), process(2, at * 10, at)]);
    let engine = engine([10, 12, 14].map(of));
    let points: Vec<_> = engine.timeline().copied().collect();
    let [first, second] = &points[..] else { panic!("{points:?}") };
    assert_eq!((first.at, second.at, second.seconds), (12.0, 14.0, 2.0));
    assert_eq!((second.launches, second.dispatcher_seconds), (120, 4.0));
    assert_eq!(second.lost_seconds, 1.0);
}

#[test]
fn time_in_which_no_process_made_calls_is_neither_in_the_timeline_nor_in_the_numbers() {
    let begun = |at: u64| ProcessSnapshot { first_seen: Nanos(599 * SECOND), ..process(2, at, 1) };
    let ended = ProcessSnapshot { ended: Some(Nanos(11 * SECOND)), ..process(1, 10, 1) };
    let engine = engine([
        input(10, vec![process(1, 10, 1)]),
        input(12, vec![ended]),
        input(14, vec![]),
        input(16, vec![]),
        input(600, vec![begun(50)]),
    ]);
    let points: Vec<_> = engine.timeline().map(|own| (own.at, own.seconds)).collect();
    assert_eq!(points, [(12.0, 1.0), (600.0, 1.0)]);
    assert_eq!(engine.activities().unwrap().window.0, Nanos(599 * SECOND));
}

#[test]
fn points_of_time_in_which_nothing_was_observed_are_left_out() {
    let mut points: Vec<_> =
        [10.0, 12.0, 14.0, 16.0, 18.0].map(|at| TimelinePoint::new(at, 2.0)).into();
    let ended = Period { until: Some(13.0), ..Period::disabled(10.0, "SIGUSR1") };
    let partial = Period { state: crate::observation::State::Partial, ..Period::attached(13.0) };
    let periods = [ended, partial, Period::disabled(16.0, "x")];
    points.retain(|own| own.is_observed(&periods));
    let at: Vec<_> = points.iter().map(|own| own.at).collect();
    assert_eq!(at, [10.0, 14.0, 16.0]);
}

#[test]
fn the_timeline_is_bounded_in_time_and_in_points() {
    let point = |at: f64| TimelinePoint::new(at, 1.5);
    let mut timeline = Timeline::default();
    (0..100_000).for_each(|tick| timeline.push(point(f64::from(tick) * 0.001)));
    assert_eq!(timeline.points().len(), MAX_POINTS);
    (0..2_000).for_each(|tick| timeline.push(point(1_000.0 + f64::from(tick) * 1.5)));
    let (first, last) =
        (timeline.points().next().copied().unwrap(), timeline.points().last().copied().unwrap());
    assert_eq!(last.at - first.at, TIMELINE_SECONDS);
    assert_eq!(timeline.points().len(), 601);
    // LIVE_PAGE.md states these sizes.
    assert_eq!((size_of::<TimelinePoint>(), size_of::<Identity>(), MAX_POINTS), (48, 48, 640));
}
