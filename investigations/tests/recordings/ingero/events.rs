//! Rows as events: when they were, of whom, and inside which others.

use std::ops::ControlFlow;

use gpucause_abi::state::Reason;
use gpucause_ingero::Ingero;
use gpucause_investigations::explain::Report;
use gpucause_trace::recording::{Call, Event, Filter, Kind, Recording as _};

use super::fixture::{Database, MS, Row, START, Schema, US};

fn events(db: &Database, filter: &Filter) -> Vec<Event> {
    let mut all = Vec::new();
    let trace = Ingero::open(&db.path()).unwrap();
    trace
        .events(filter, &mut |event| {
            all.push(event.clone());
            ControlFlow::Continue(())
        })
        .unwrap();
    all
}

fn call(event: &Event) -> &Call {
    match &event.kind {
        Kind::Call(call) => call,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_driver_call_inside_a_runtime_call_of_its_thread_is_not_outermost() {
    let mut db = Database::new(Schema::V08);
    let launch = Row::launch(7, MS, 50 * US, 1);
    let (inside, beside) = (
        Row::launch(7, MS + 5 * US, 20 * US, 2).driver(),
        Row::launch(7, MS + 6 * US, 20 * US, 2).driver(),
    );
    db.add([launch, inside, beside.thread(8)]);
    let outermost: Vec<_> =
        events(&db, &Filter::default()).iter().map(|e| call(e).outermost).collect();
    assert_eq!(outermost, [true, false, true]);
}

#[test]
fn a_wait_is_stored_at_its_end_and_counts_for_the_call_that_it_is_in() {
    let mut db = Database::new(Schema::V09);
    db.add([
        Row::launch(7, 10 * MS, 4 * MS, 1),
        Row::off(7, 11 * MS, 2 * MS, 7),
        Row::off(9, 10 * MS, 4 * MS, 9),
    ]);
    let events = events(&db, &Filter::default());
    let wait = events.iter().find(|e| e.start_ns == START + 11 * MS).unwrap();
    assert_eq!(wait.end_ns(), START + 13 * MS);
    let launch = events.iter().find(|e| matches!(e.kind, Kind::Call(_))).unwrap();
    assert_eq!(call(launch).off_cpu_ns, Some(2_000_000));
}

#[test]
fn reasons_are_reported_only_where_the_rows_prove_them() {
    let mut db = Database::new(Schema::V10);
    db.name(50, "fluent-bit");
    db.add([
        Row::off(7, 0, MS, 7),
        Row::off(7, 10 * MS, MS, 50),
        Row::read(7, 20 * MS, MS - 10 * US),
        Row::off(7, 20 * MS, MS, 50),
        Row::wake(51, 30 * MS + 900 * US, 7),
        Row::off(7, 30 * MS, MS, 50),
        Row::wake(51, 40 * MS + 100 * US, 7),
        Row::off(7, 40 * MS, MS, 50),
    ]);
    let reported: Vec<_> = events(&db, &Filter::default())
        .into_iter()
        .filter_map(|event| match event.kind {
            Kind::OffCpu(off) => Some((off.reason, off.by.map(|by| by.comm.to_string()))),
            _ => None,
        })
        .collect();
    let culprit = || Some("fluent-bit".to_owned());
    let waker = reported[3].1.clone();
    assert_eq!(
        reported,
        [
            (None, None),
            (Some(Reason::Preempted), culprit()),
            (Some(Reason::Io), None),
            (Some(Reason::Other), waker),
            (Some(Reason::Runqueue), culprit()),
        ]
    );
}

#[test]
fn a_filter_chooses_by_time_process_and_length() {
    let mut db = Database::new(Schema::V08);
    db.add((0..10).map(|i| Row::launch(7, i * MS, (i + 1) * 10 * US, 1)));
    db.add([Row::launch(8, 0, MS, 1)]);
    let from = Filter { from_ns: Some(START + 5 * MS), ..Filter::default() };
    assert_eq!(events(&db, &from).len(), 5);
    let until = Filter { until_ns: Some(START + 5 * MS), ..Filter::default() };
    assert_eq!(events(&db, &until).len(), 6);
    let long = Filter { at_least_ns: 95_000, ..Filter::default() };
    assert_eq!(events(&db, &long).len(), 2);
    let mut seen = 0;
    let trace = Ingero::open(&db.path()).unwrap();
    trace
        .events(&Filter::default(), &mut |_| {
            seen += 1;
            ControlFlow::Break(())
        })
        .unwrap();
    assert_eq!((seen, trace.event_count().unwrap()), (1, 11));
}

#[test]
fn only_the_first_launch_of_a_kernel_in_a_process_is_cold() {
    let mut db = Database::new(Schema::V08);
    db.add([
        Row::launch(7, 0, US, 1),
        Row::launch(7, MS, US, 1),
        Row::launch(7, 2 * MS, US, 2),
        Row::launch(8, 3 * MS, US, 1),
    ]);
    let cold: Vec<_> =
        events(&db, &Filter::default()).iter().map(|e| call(e).cold.unwrap()).collect();
    assert_eq!(cold, [true, false, true, true]);
}

#[test]
fn a_file_without_sessions_was_recorded_as_long_as_its_events_are() {
    let mut db = Database::new(Schema::V08);
    db.add([Row::launch(7, 0, MS, 1), Row::launch(7, 2_999 * MS, MS, 1)]);
    db.sql().execute("DELETE FROM sessions", []).unwrap();
    let report = Report::of(&db.path(), &Ingero::open(&db.path()).unwrap()).unwrap();
    let recorded = report.nodes[0].recorded.as_ref().unwrap();
    assert_eq!(recorded.seconds, recorded.until.unwrap() - recorded.from.unwrap());
    assert_eq!(recorded.seconds, 3.0);
}

#[test]
fn functions_that_calls_came_from_are_demangled_and_keep_their_offset() {
    let mut db = Database::new(Schema::V08);
    db.add([Row::launch(7, 0, 20 * US, 1)]);
    let frames = r#"[{"i":"0x7f993b40fb8b","f":"libcudart.so.12"},{"s":"cudaDeviceSynchronize+0x185","f":"libcudart.so.12"},
        {"s":"_ZN2at6nativeL9copy_implERNS_6TensorERKS1_b+0x5ad","f":"libtorch_cpu.so"},{"s":"train_step","f":"train.py","l":12}]"#;
    let sql = db.sql();
    sql.execute("INSERT INTO stack_traces VALUES (5, '', ?)", [frames]).unwrap();
    sql.execute("UPDATE events SET stack_hash = 5", []).unwrap();
    let report = Report::of(&db.path(), &Ingero::open(&db.path()).unwrap()).unwrap();
    let lines = &report.nodes[0].recorded.as_ref().unwrap().stacks[0].frames;
    assert!(lines[1].contains("cudaDeviceSynchronize+0x185"), "{lines:?}");
    assert!(lines[2].contains("at::native::copy_impl+0x5ad"), "{lines:?}");
    assert!(lines[3].contains("train_step") && lines[3].contains("train.py:12"), "{lines:?}");
    assert!(lines.iter().all(|line| !line.contains("_ZN")), "{lines:?}");
}
