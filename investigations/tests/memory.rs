//! These tests read a recording while queries take all memory that SQLite may have. That memory is one for the whole program, so
//! this is a program of its own.

use std::ops::ControlFlow;

use gpucause_abi::{ProcId, Tgid};
use gpucause_investigations::any_format::open;
use gpucause_investigations::query::{QueryError, QueryLimits, query};
use gpucause_trace::recording::{Filter, RecordingError};
use gpucause_trace::trace::{NewEvent, NewKind, Start, Writer};
use rusqlite::Connection;

#[test]
fn a_file_that_there_is_no_memory_to_read_is_not_called_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.db");
    let start = Start { node: "a".into(), recorder: "test".into(), ..Start::default() };
    let mut writer = Writer::create(&path, &start).unwrap();
    let process = writer.process(ProcId(1), Tgid(42), "train").unwrap();
    let event = |at| NewEvent {
        start_ns: at,
        duration_ns: 1,
        process,
        tid: 43,
        kind: NewKind::Other("x"),
        stack: None,
    };
    writer.add_events((0..10_000).map(event)).unwrap();
    writer.finish().unwrap();
    let recording = open(&path).unwrap();
    let count = || {
        let mut events = 0;
        let read = recording.events(&Filter::default(), &mut |_| {
            events += 1;
            ControlFlow::Continue(())
        });
        read.map(|()| events)
    };
    assert_eq!(count().unwrap(), 10_000);

    // A query beside it may leave as little memory as this.
    let greedy = Connection::open_in_memory().unwrap();
    greedy.execute_batch("PRAGMA hard_heap_limit = 1;").unwrap();
    let refused = count().unwrap_err();
    assert!(matches!(refused, RecordingError::Busy(..)), "{refused}");
    let refused = open(&path).unwrap_err();
    assert!(matches!(refused, RecordingError::Busy(..)), "{refused}");
    let refused = query(&path, "SELECT count(*) FROM events", &QueryLimits::default()).unwrap_err();
    assert!(matches!(refused, QueryError::TooLarge(..)), "{refused}");
}
